"""What makes the pods of a MonarchMesh: the real Monarch operator where there is one, else a stand-in of ours.

The operator is in no registry. Where HVDKIT_E2E_MONARCH_OPERATOR names its binary, that one runs, outside the cluster
and as its administrator. Otherwise a thread does what the tests need of it: for each MonarchMesh a headless Service and
a StatefulSet that starts all its pods at once, with the labels by which Monarch finds them, both owned by the mesh; and
in the mesh's status whether they are ready.

The definition of the MonarchMesh that the cluster gets is the operator's own where HVDKIT_E2E_MONARCH_CRD names its
file. It is not in this repository, nor in any package that we install (torchmonarch's wheel has none). Otherwise it is
made of our own schema, hvdkit/checks/schemas, which leaves the pod itself to the StatefulSet, whose API knows pods.
"""

import copy
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml
from cluster.cluster import Cluster
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

VARIABLE = "HVDKIT_E2E_MONARCH_OPERATOR"
DEFINITION_VARIABLE = "HVDKIT_E2E_MONARCH_CRD"
GROUP, VERSION, PLURAL, KIND = "monarch.pytorch.org", "v1alpha1", "monarchmeshes", "MonarchMesh"
SCHEMA = Path(__file__).parents[2] / "hvdkit" / "checks" / "schemas" / f"{GROUP}_{PLURAL}.yaml"
SECONDS_BETWEEN_LOOKS = 1.0
_WHATEVER = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}

Object = dict[str, Any]


def install_definition(cluster: Cluster) -> None:
    """Have the API server know MonarchMeshes."""
    cluster.apply(definition())
    cluster.kubectl("wait", "--for=condition=Established", f"crd/{PLURAL}.{GROUP}", "--timeout=60s")


def definition() -> Object:
    """The operator's own definition of a MonarchMesh, or one of our schema."""
    if file := os.environ.get(DEFINITION_VARIABLE):
        objects = [one for one in yaml.safe_load_all(Path(file).read_text()) if one]
        found = [one for one in objects if one["metadata"]["name"] == f"{PLURAL}.{GROUP}"]
        assert found, f"{DEFINITION_VARIABLE}: {file} does not define {PLURAL}.{GROUP}"
        return found[0]
    details = yaml.safe_load(SCHEMA.read_text())["spec"]
    [version] = details["versions"]
    schema = without_references(version["schema"])
    served = {"served": True, "storage": True, "subresources": {"status": {}}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {"kind": KIND, "listKind": f"{KIND}List", "plural": PLURAL, "singular": KIND.lower()},
            "versions": [{"name": version["name"], "schema": schema, **served}],
        },
    }


def without_references(schema: Any) -> Any:
    """The schema as an API server takes it, which knows no definitions outside of it."""
    if isinstance(schema, dict):
        if "$ref" in schema:
            return _WHATEVER
        return {key: without_references(value) for key, value in schema.items()}
    return [without_references(one) for one in schema] if isinstance(schema, list) else schema


@contextmanager
def running(cluster: Cluster, log: Path) -> Iterator[None]:
    """The operator, or who stands in for it, until the end of the block."""
    if binary := os.environ.get(VARIABLE):
        with log.open("ab") as output:
            words = [binary, "--health-probe-bind-address=0"]
            environment = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig)}
            process = subprocess.Popen(words, env=environment, stdout=output, stderr=output)
        try:
            yield
            assert process.poll() is None, f"{binary} ended with {process.returncode}:\n{log.read_text()[-2000:]}"
        finally:
            process.terminate()
            process.wait()
        return
    stand_in = StandIn(cluster)
    stand_in.start()
    try:
        yield
    finally:
        stand_in.stop()


class StandIn(threading.Thread):
    """Looks at all MonarchMeshes once a second."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(daemon=True)
        api = config.new_client_from_config(str(cluster.kubeconfig))
        self._custom, self._core = client.CustomObjectsApi(api), client.CoreV1Api(api)
        self._apps = client.AppsV1Api(api)
        self._stopped = threading.Event()
        self._problem: Exception | None = None

    def stop(self) -> None:
        """End it; raises what went wrong, if anything did."""
        self._stopped.set()
        self.join()
        if self._problem is not None:
            raise self._problem

    def run(self) -> None:
        """Until `stop`."""
        try:
            while not self._stopped.wait(SECONDS_BETWEEN_LOOKS):
                for mesh in self._custom.list_cluster_custom_object(GROUP, VERSION, PLURAL)["items"]:
                    if not mesh["metadata"].get("deletionTimestamp"):
                        self._reconcile(mesh)
        except Exception as error:  # the test must know
            self._problem = error

    def _reconcile(self, mesh: Object) -> None:
        name, namespace = mesh["metadata"]["name"], mesh["metadata"]["namespace"]
        _unless_there(self._core.create_namespaced_service, namespace, service(mesh))
        _unless_there(self._apps.create_namespaced_stateful_set, namespace, stateful_set(mesh))
        try:
            found = self._apps.read_namespaced_stateful_set(name, namespace)
            status = status_of(mesh, found.status.replicas or 0, found.status.ready_replicas or 0)
            if status != mesh.get("status"):
                change = {"status": status}
                self._custom.patch_namespaced_custom_object_status(GROUP, VERSION, namespace, PLURAL, name, change)
        except ApiException as error:
            if error.status != 404:  # deleted meanwhile
                raise


def _unless_there(create: Any, namespace: str, made: Object) -> None:
    try:
        create(namespace, made)
    except ApiException as error:
        if error.status not in (403, 404, 409):  # there already, or the namespace ends
            raise


def labels_of_pods(mesh: Object) -> dict[str, str]:
    """By these Monarch finds the pods."""
    return {"app.kubernetes.io/name": "monarch-worker", f"{GROUP}/mesh-name": mesh["metadata"]["name"]}


def metadata_of(mesh: Object, name: str, labels: dict[str, str]) -> Object:
    """Of an object that goes when the mesh goes."""
    owner = {"apiVersion": f"{GROUP}/{VERSION}", "kind": KIND, "controller": True, "blockOwnerDeletion": True}
    owner |= {key: mesh["metadata"][key] for key in ("name", "uid")}
    return {"name": name, "labels": labels, "ownerReferences": [owner]}


def service(mesh: Object) -> Object:
    """The headless Service of a mesh."""
    chosen, port = labels_of_pods(mesh), mesh["spec"]["port"]
    return {
        "metadata": metadata_of(mesh, f"{mesh['metadata']['name']}-svc", chosen),
        "spec": {"clusterIP": "None", "selector": chosen, "ports": [{"name": "monarch", "port": port}]},
    }


def stateful_set(mesh: Object) -> Object:
    """The StatefulSet of a mesh; its labels are also the mesh's own, which Kueue looks at."""
    chosen, template = labels_of_pods(mesh), copy.deepcopy(mesh["spec"]["podTemplate"])
    meta = template.setdefault("metadata", {})
    meta["labels"] = {**meta.get("labels", {}), **chosen}
    name = mesh["metadata"]["name"]
    return {
        "metadata": metadata_of(mesh, name, {**mesh["metadata"].get("labels", {}), **chosen}),
        "spec": {
            "replicas": mesh["spec"]["replicas"],
            "serviceName": f"{name}-svc",
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": chosen},
            "template": template,
        },
    }


def status_of(mesh: Object, replicas: int, ready: int) -> Object:
    """What the mesh says of its pods."""
    done = ready == mesh["spec"]["replicas"]
    before = {one["type"]: one for one in mesh.get("status", {}).get("conditions", [])}.get("Ready", {})
    condition = {"type": "Ready", "status": str(done), "reason": "AllReady" if done else "Waiting", "message": ""}
    same = before.get("status") == condition["status"]
    condition["lastTransitionTime"] = before["lastTransitionTime"] if same else now()
    return {"replicas": replicas, "readyReplicas": ready, "conditions": [condition]}


def now() -> str:
    """The time as Kubernetes writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
