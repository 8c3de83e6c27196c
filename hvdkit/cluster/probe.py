"""A look at the cluster that changes nothing: is one configured, does it answer, what does it serve."""

from dataclasses import dataclass
from typing import Any

from hvdkit.cluster.api import in_short
from hvdkit.cluster.connection import configured, kubeconfig_files, log_in
from hvdkit.errors import HvdkitError

__all__ = ["ClusterProbe", "kubeconfig_files", "probe"]

# The API groups that hvdkit's backends use; others are not asked for.
GROUP_VERSIONS = ("kubeflow.org/v2beta1", "kubeflow.org/v1")


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
    if not configured():
        return ClusterProbe(configured=False)
    try:
        from kubernetes import client
    except ImportError:
        return ClusterProbe(configured=True, client_missing=True)
    try:
        login = log_in()
    except HvdkitError as error:
        return ClusterProbe(configured=True, error=str(error))
    login.configuration.retries = 0  # the answer is for a person who waits for it
    found: dict[str, Any] = {"configured": True, "context": login.context, "server": login.configuration.host}
    with client.ApiClient(login.configuration) as api:
        try:
            version = client.VersionApi(api).get_code(_request_timeout=timeout).git_version
            served = frozenset().union(*(_served_kinds(client, api, name, timeout) for name in GROUP_VERSIONS))
        except Exception as error:  # from certificates to DNS, each library below has its own family of errors
            return ClusterProbe(**found, error=in_short(error))
    return ClusterProbe(**found, reachable=True, version=version, served_kinds=served)


def _served_kinds(client: Any, api: Any, group_version: str, timeout: float) -> frozenset[str]:
    group, version = group_version.split("/")
    try:
        resources = client.CustomObjectsApi(api).get_api_resources(group, version, _request_timeout=timeout)
    except client.ApiException as error:
        if error.status == 404:
            return frozenset()
        raise
    return frozenset(f"{group_version}/{resource.kind}" for resource in resources.resources)
