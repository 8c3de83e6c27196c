"""The Kubernetes side of a Monarch job: its mesh's pods are ready, and its mesh is deleted when it ends."""

import contextlib
import http.client
import os
import ssl
import sys
import time
from pathlib import Path
from typing import Any

from hvdkit.errors import EnvironmentProblem
from hvdkit.runtime.monarch_mesh import namespace
from hvdkit.runtime.pod_names import wait_until_none_is_missing

GROUP, VERSION, PLURAL = "monarch.pytorch.org", "v1alpha1", "monarchmeshes"
SECONDS_BETWEEN_LOOKS = 2.0
SECONDS_BEFORE_ANOTHER_TRY = (1.0, 3.0, 5.0)  # to delete the mesh; together less than a pod's grace period
_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
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
    """Delete the MonarchMesh, and with it the pods, so that no GPU stays held.

    By the standard library alone: it must go also where the image lacks Monarch and the kubernetes package.
    """
    if "KUBERNETES_SERVICE_HOST" not in os.environ:
        return  # no pod: whoever started this has been told
    for pause in (*SECONDS_BEFORE_ANOTHER_TRY, None):
        try:
            status, problem = _ask_to_delete(mesh)
        except (OSError, http.client.HTTPException) as error:
            status, problem = 0, _short(error)
        if 200 <= status < 300 or status == 404:  # gone already
            return
        if pause is None or 400 <= status < 500:
            break
        time.sleep(pause)
    print(f"hvdkit: the MonarchMesh {mesh} could not be deleted: {problem}", file=sys.stderr)


def _ask_to_delete(mesh: str) -> tuple[int, str]:
    """The API server's answer."""
    path = f"/apis/{GROUP}/{VERSION}/namespaces/{namespace()}/{PLURAL}/{mesh}"
    token = (_ACCOUNT / "token").read_text().strip()
    with contextlib.closing(_connection()) as connection:
        connection.request("DELETE", path, headers={"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        return answer.status, answer.reason


def _connection() -> http.client.HTTPConnection:
    """To the API server, as every pod knows it."""
    trusted = ssl.create_default_context(cafile=str(_ACCOUNT / "ca.crt"))
    port = int(os.environ.get("KUBERNETES_SERVICE_PORT", 443))
    return http.client.HTTPSConnection(os.environ["KUBERNETES_SERVICE_HOST"], port, timeout=20, context=trusted)


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
