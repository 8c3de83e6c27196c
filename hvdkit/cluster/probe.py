"""A look at the cluster that changes nothing: is one configured, does it answer, what does it serve."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# The API groups that hvdkit's backends use; others are not asked for.
GROUP_VERSIONS = ("kubeflow.org/v2beta1", "kubeflow.org/v1")
_SERVICE_ACCOUNT_TOKEN = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")


@dataclass(frozen=True, kw_only=True)
class ClusterProbe:
    """What is known of the cluster."""

    configured: bool
    """A kubeconfig file, or a service account when this runs in a pod."""

    context: str = ""
    """The context of the kubeconfig, or 'in-cluster'."""

    server: str = ""
    """Address of the API server."""

    version: str = ""
    """Of Kubernetes, when it answered."""

    reachable: bool = False
    """Whether the API server answered us."""

    error: str = ""
    """Why not, in a few words."""

    client_missing: bool = False
    """The Python client is not installed, so nobody was asked."""

    served_kinds: frozenset[str] = frozenset()
    """Served kinds among GROUP_VERSIONS, such as 'kubeflow.org/v2beta1/MPIJob'."""


def probe(timeout: float) -> ClusterProbe:
    """Ask the configured cluster for its version and its job kinds; never raises for what it finds."""
    in_pod = bool(os.environ.get("KUBERNETES_SERVICE_HOST")) and _SERVICE_ACCOUNT_TOKEN.exists()
    if not kubeconfig_files() and not in_pod:
        return ClusterProbe(configured=False)
    try:
        from kubernetes import client
    except ImportError:
        return ClusterProbe(configured=True, client_missing=True)
    try:
        configuration, context = _load_configuration()
    except Exception as error:  # the client raises whatever its YAML reader or a login plugin raised
        return ClusterProbe(configured=True, error=f"the configuration cannot be read: {_in_short(error)}")
    configuration.retries = 0  # the answer is for a person who waits for it
    found: dict[str, Any] = {"configured": True, "context": context, "server": configuration.host}
    with client.ApiClient(configuration) as api:
        try:
            version = client.VersionApi(api).get_code(_request_timeout=timeout).git_version
            served = frozenset().union(*(_served_kinds(client, api, name, timeout) for name in GROUP_VERSIONS))
        except Exception as error:  # from certificates to DNS, each library below has its own family of errors
            return ClusterProbe(**found, error=_in_short(error))
    return ClusterProbe(**found, reachable=True, version=version, served_kinds=served)


def kubeconfig_files() -> list[Path]:
    """The kubeconfig files that kubectl would read."""
    named = [Path(part).expanduser() for part in os.environ.get("KUBECONFIG", "").split(os.pathsep) if part]
    return [path for path in named or [Path("~/.kube/config").expanduser()] if path.is_file()]


def _load_configuration() -> tuple[Any, str]:
    from kubernetes import client, config

    configuration = client.Configuration()
    files = kubeconfig_files()
    if not files:
        config.load_incluster_config(client_configuration=configuration)
        return configuration, "in-cluster"
    joined = os.pathsep.join(map(str, files))
    config.load_kube_config(joined, client_configuration=configuration, persist_config=False)
    _, active = config.list_kube_config_contexts(joined)
    return configuration, active["name"]


def _served_kinds(client: Any, api: Any, group_version: str, timeout: float) -> frozenset[str]:
    group, version = group_version.split("/")
    try:
        resources = client.CustomObjectsApi(api).get_api_resources(group, version, _request_timeout=timeout)
    except client.ApiException as error:
        if error.status == 404:
            return frozenset()
        raise
    return frozenset(f"{group_version}/{resource.kind}" for resource in resources.resources)


def _in_short(error: Exception) -> str:
    """The innermost reason in one line: these libraries wrap errors in errors."""
    status = getattr(error, "status", None)
    if status:
        return f"it answered {status} {getattr(error, 'reason', '')}".strip()
    while isinstance(getattr(error, "reason", None), Exception):
        error = error.reason
    lines = str(error).strip().splitlines()
    text = lines[0] if lines else type(error).__name__
    # urllib3 puts the object's own description in front: "HTTPSConnection(host=…): Failed to …".
    return text.partition("): ")[2] or text
