"""The Kubernetes side of a Monarch job: its mesh's pods are ready, and its mesh is deleted when it ends."""

import sys
from typing import Any

from hvdkit.errors import EnvironmentProblem
from hvdkit.runtime.monarch_mesh import namespace
from hvdkit.runtime.pod_names import wait_until_none_is_missing

GROUP, VERSION, PLURAL = "monarch.pytorch.org", "v1alpha1", "monarchmeshes"
SECONDS_BETWEEN_LOOKS = 2.0
_INDEX = "apps.kubernetes.io/pod-index"


def wait_for_pods(mesh: str, hosts: int, seconds: float) -> None:
    """Return when every pod of the mesh is ready; EnvironmentProblem that names the missing ones."""
    api = _client().CoreV1Api()
    selector = f"app.kubernetes.io/name=monarch-worker,monarch.pytorch.org/mesh-name={mesh}"

    def look() -> dict[str, str]:
        try:
            pods = api.list_namespaced_pod(namespace(), label_selector=selector, _request_timeout=20).items
        except Exception as error:  # the API server may be away for a moment; its client raises what it likes
            if getattr(error, "status", None) == 403:
                raise EnvironmentProblem(
                    f"the controller may not list the pods of namespace {namespace()}; its ServiceAccount needs the "
                    "Role and RoleBinding that `hvdkit render` prints beside the job."
                ) from error
            return {"all": f"the API server does not answer: {_short(error)}"}
        states = {pod.metadata.labels.get(_INDEX): _state(pod) for pod in pods}
        found = {f"{mesh}-{number}": states.get(str(number), "does not exist") for number in range(hosts)}
        return {name: state for name, state in found.items() if state}

    wait_until_none_is_missing(look, seconds, "pods of the mesh", longest_pause=SECONDS_BETWEEN_LOOKS)


def delete_mesh(mesh: str) -> None:
    """Delete the MonarchMesh, and with it the pods, so that no GPU stays held."""
    try:
        _client().CustomObjectsApi().delete_namespaced_custom_object(
            GROUP, VERSION, namespace(), PLURAL, mesh, _request_timeout=20
        )
    except Exception as error:
        if getattr(error, "status", None) != 404:  # gone already
            print(f"hvdkit: the MonarchMesh {mesh} could not be deleted: {_short(error)}", file=sys.stderr)


def _client() -> Any:
    try:
        from kubernetes import client, config
    except ImportError as error:
        raise EnvironmentProblem("the kubernetes package is missing here; install 'hvdkit[cluster]'.") from error
    try:
        config.load_incluster_config()
    except config.ConfigException as error:
        raise EnvironmentProblem(
            f"this is not a pod with access to the Kubernetes API ({error}); without a cluster use --local."
        ) from error
    return client


def _state(pod: Any) -> str:
    """Why a pod is not ready; empty when it is."""
    if any(condition.type == "Ready" and condition.status == "True" for condition in pod.status.conditions or ()):
        return ""
    for status in pod.status.container_statuses or ():
        waiting = status.state.waiting if status.state else None
        if waiting is not None and waiting.reason:
            return waiting.reason
    return pod.status.phase or "not ready"


def _short(error: Exception) -> str:
    return str(getattr(error, "reason", None) or error).strip().splitlines()[0]
