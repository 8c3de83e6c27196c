"""The server of nfs/ as a pod of the tests' cluster, and nodes that can mount it although their kernel cannot."""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import yaml
from cluster.cluster import Cluster
from image_store import NFS_SERVER

HERE = Path(__file__).parent
NFS = HERE.parents[1] / "nfs"
NAMESPACE = "hvdkit-nfs"  # as nfs/ has it
EXPORT = "/data"
LIMIT = 300
_SIZE = 512 << 20
_HELPER = Path("/sbin/mount.nfs")
_USER = 1000  # whose files they all are, see nfs/ganesha.conf


class NfsServer:
    """The server, while its pod comes and goes; `disk` is the exported folder on its disk."""

    def __init__(self, cluster: Cluster, disk: Path) -> None:
        self.cluster, self.disk = cluster, disk

    @property
    def address(self) -> str:
        service = self.cluster.get("service", "nfs", f"--namespace={NAMESPACE}")
        return service["spec"]["clusterIP"]

    def start(self) -> None:
        """One pod, until it is ready."""
        self._scale(1)
        words = ("rollout", "status", "statefulset/nfs", f"--namespace={NAMESPACE}", f"--timeout={LIMIT}s")
        self.cluster.kubectl(*words)

    def stop(self) -> None:
        """None, until it is gone."""
        self._scale(0)
        self.cluster.kubectl("wait", "--for=delete", "pod/nfs-0", f"--namespace={NAMESPACE}", f"--timeout={LIMIT}s")

    def log(self) -> str:
        return self.cluster.kubectl("logs", "nfs-0", f"--namespace={NAMESPACE}")

    def _scale(self, count: int) -> None:
        self.cluster.kubectl("scale", "statefulset/nfs", f"--namespace={NAMESPACE}", f"--replicas={count}")


@contextlib.contextmanager
def nfs_server(cluster: Cluster, folder: Path, fill: Callable[[Path], None]) -> Iterator[NfsServer]:
    """`kubectl apply -k nfs/` with an image and a disk, as its README says; `fill` puts files on the disk before."""
    with _disk(cluster.places.folder / "nfs-disk") as disk:
        (disk / "data").mkdir()
        fill(disk / "data")
        _run("chown", "--recursive", f"{_USER}:{_USER}", disk / "data")
        cluster.apply(_volume(cluster, disk))
        shutil.copytree(NFS, folder / "nfs")
        (folder / "kustomization.yaml").write_text(yaml.safe_dump(_overlay()))
        cluster.kubectl("apply", f"--kustomize={folder}")
        server = NfsServer(cluster, disk / "data")
        try:
            server.start()
            yield server
        finally:
            cluster.kubectl("delete", "namespace", NAMESPACE)
            cluster.kubectl("delete", "persistentvolume", NAMESPACE)


@contextlib.contextmanager
def nodes_that_mount_nfs(cluster: Cluster) -> Iterator[None]:
    """Put the client of nfs_client/ in the place of nfs-common's program, for this cluster's kubelets only."""
    assert _HELPER.exists(), f"{_HELPER} is missing, which a node needs to mount NFS (Debian: nfs-common)"
    assert Path("/dev/fuse").exists(), "this kernel has no FUSE, with which the tests mount NFS"
    log = cluster.places.logs / "nfs-client.log"
    ours = cluster.places.folder / "mount.nfs"
    variables = f"PYTHONPATH={HERE} HVDKIT_NFS_CLIENT_LOG={log}"
    ours.write_text(f'#!/bin/sh\necho "$@" >> {log}\nexec env {variables} {sys.executable} -m nfs_client "$@"\n')
    ours.chmod(0o755)
    # Cluster.current() has made sure that the mounts here are the cluster's own, and the machine's stay as they are.
    _run("mount", "--bind", ours, _HELPER.resolve())
    try:
        yield
    finally:
        _run("umount", _HELPER.resolve())


@contextlib.contextmanager
def _disk(file: Path) -> Iterator[Path]:
    """A disk with ext4 that holds nothing but the server's files."""
    mounted = file.with_suffix(".mounted")
    file.touch()
    os.truncate(file, _SIZE)
    _run("mkfs.ext4", "-q", file)
    mounted.mkdir()
    _run("mount", "-o", "loop", file, mounted)
    try:
        yield mounted
    finally:
        _run("umount", mounted)
        mounted.rmdir()
        file.unlink()


def _volume(cluster: Cluster, disk: Path) -> dict:
    """The disk as a volume of node 1; unlike a hostPath it gets the pod's group from the kubelet."""
    here = {"key": "kubernetes.io/hostname", "operator": "In", "values": [cluster.nodes()[0].name]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": NAMESPACE},
        "spec": {
            "capacity": {"storage": str(_SIZE)},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "",
            "claimRef": {"namespace": NAMESPACE, "name": "volume-nfs-0"},
            "local": {"path": str(disk)},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
        },
    }


def _overlay() -> dict:
    """What a user sets in nfs/kustomization.yaml, and what the README says about the containerd of Debian 12."""
    [image] = yaml.safe_load((NFS / "kustomization.yaml").read_text())["images"]
    name, _, tag = NFS_SERVER.removeprefix("localhost/").partition(":")
    changes = {
        "/spec/volumeClaimTemplates/0/spec/resources/requests/storage": str(_SIZE),
        "/spec/template/spec/securityContext/seccompProfile/type": "Unconfined",
        # Of a small machine's two, so that the workers find room beside it.
        "/spec/template/spec/containers/0/resources/requests/cpu": "100m",
    }
    patch = [{"op": "replace", "path": path, "value": value} for path, value in changes.items()]
    return {
        "resources": ["nfs"],
        "images": [{"name": image["newName"], "newName": name, "newTag": tag}],
        "patches": [{"target": {"kind": "StatefulSet"}, "patch": yaml.safe_dump(patch)}],
    }


def _run(*words: str | Path) -> None:
    subprocess.run(list(map(str, words)), check=True)
