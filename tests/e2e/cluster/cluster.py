"""The cluster as a test sees it: from inside its namespaces, by methods."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import yaml

from . import certificates, control_plane, images, operators
from .build import link_programs
from .node import Node
from .places import VARIABLE, Places
from .problem import Problem
from .processes import Processes

GPU = "nvidia.com/gpu"
_SECURITY = "pod-security.kubernetes.io"


class Cluster:
    """A cluster that runs, for processes inside it."""

    def __init__(self, places: Places) -> None:
        self.places = places
        self.processes = Processes(places.folder)

    @classmethod
    def current(cls) -> "Cluster":
        """The cluster in whose namespaces this process runs."""
        if folder := os.environ.get(VARIABLE):
            return cls(Places(Path(folder)))
        raise Problem("this runs in no cluster: start it by `python -m tests.e2e.cluster run -- COMMAND`")

    @property
    def kubeconfig(self) -> Path:
        """The administrator's; KUBECONFIG names it too."""
        return self.places.kubeconfig()

    def kubectl(self, *words: str, text: str | None = None) -> str:
        """kubectl's output, as the administrator; a failure raises an error with what it said."""
        try:
            return control_plane.kubectl(self.places, *words, text=text)
        except subprocess.CalledProcessError as error:
            raise Problem(f"kubectl {' '.join(words)}: {error.stderr.strip()}") from error

    def get(self, *words: str) -> dict:
        """An object or a list, as `kubectl get … --output=json` gives it."""
        return json.loads(self.kubectl("get", *words, "--output=json"))

    def apply(self, *objects: dict) -> None:
        self.kubectl("apply", "--server-side", "--filename=-", text=yaml.safe_dump_all(objects))

    def namespace(self, name: str, level: str | None = "restricted") -> str:
        """A namespace that enforces a Pod Security level; None enforces nothing."""
        labels = {f"{_SECURITY}/enforce": level} if level else {}
        self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
        return name

    def volume(self, namespace: str, name: str, size: str = "10Gi") -> Path:
        """A PersistentVolumeClaim that every pod on every node can write, bound to a folder: that folder."""
        folder = self.places.folder / "volumes" / f"{namespace}-{name}"
        folder.mkdir(parents=True)
        folder.chmod(0o777)  # pods are not root, and the kubelet changes no owner here
        shared = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
        claim = {"namespace": namespace, "name": name}
        self.apply(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": f"{namespace}-{name}"},
                "spec": {
                    **shared,
                    "capacity": {"storage": size},
                    "hostPath": {"path": str(folder)},
                    "claimRef": claim,
                },
            },
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": claim,
                "spec": {**shared, "resources": {"requests": {"storage": size}}, "volumeName": f"{namespace}-{name}"},
            },
        )
        bound = "--for=jsonpath={.status.phase}=Bound"
        self.kubectl("wait", bound, f"persistentvolumeclaim/{name}", f"--namespace={namespace}", "--timeout=60s")
        return folder

    def kubeconfig_for(self, service_account: str, namespace: str) -> Path:
        """The kubeconfig of a service account, which may do what its roles allow and no more."""
        token = self.kubectl("create", "token", service_account, f"--namespace={namespace}", "--duration=24h").strip()
        return certificates.write_kubeconfig(self.places, f"{namespace}-{service_account}", {"token": token}, namespace)

    def set_gpus(self, node: str, count: int) -> None:
        """Tell the scheduler of GPUs; no device stands behind them."""
        amounts = {GPU: str(count)}
        patch = json.dumps({"status": {"capacity": amounts, "allocatable": amounts}})
        self.kubectl("patch", "node", node, "--subresource=status", "--type=merge", f"--patch={patch}")

    def add_node(self, gpus: int = 0) -> Node:
        """One more node, ready."""
        node = Node(self.places, len(self.nodes()) + 1)
        node.start_containerd(self.processes)
        node.start_kubelet(self.processes)
        self.wait_for_node(node, gpus)
        return node

    def nodes(self) -> list[Node]:
        folders = self.places.folder.glob("node-*")
        return [Node(self.places, number) for number in sorted(int(folder.name[5:]) for folder in folders)]

    def wait_for_node(self, node: Node, gpus: int) -> None:
        self.kubectl("wait", "--for=create", f"node/{node.name}", "--timeout=120s")
        self.kubectl("wait", "--for=condition=Ready", f"node/{node.name}", "--timeout=120s")
        if gpus:
            self.set_gpus(node.name, gpus)

    def import_image(self, archive: Path) -> None:
        """Give every node the images of an archive, until the cluster ends."""
        for node in self.nodes():
            images.import_into(node.socket, archive)

    def stop(self, program: str, how: signal.Signals = signal.SIGKILL) -> None:
        """End a program, say kube-apiserver, coredns or kubelet-2."""
        self.processes.stop(program, how)

    def start(self, program: str, *flags: str) -> None:
        """Start a program again that was stopped, with further flags if there are any."""
        self.processes.start(program, [*self.processes.command(program), *flags])


def start(places: Places, *, nodes: int, gpus: int) -> Cluster:
    """Start everything, in namespaces that are already our own; returns once all of it is ready."""
    begun = time.monotonic()
    os.environ.update(places.variables())
    cluster = Cluster(places)
    link_programs(places.programs)
    certificates.create(places)
    control_plane.make_network()
    members = [Node(places, number + 1) for number in range(nodes)]
    for node in members:
        node.start_containerd(cluster.processes)
    control_plane.start_api(places, cluster.processes)
    for node in members:
        node.start_kubelet(cluster.processes)
    control_plane.start_controllers(places, cluster.processes)
    operators.install(places)
    for node in members:
        cluster.wait_for_node(node, gpus)
    control_plane.wait_for_controllers(places, cluster.processes)
    operators.wait(places)
    places.ready.write_text(f"{time.monotonic() - begun:.1f}\n")
    return cluster
