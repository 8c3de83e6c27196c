"""The volumes of a JobSpec as Kubernetes writes them, and the PV and claim of an NFS folder. Pure."""

import json

from hvdkit.errors import InputError
from hvdkit.jobs.metadata import MANAGED_BY, Object
from hvdkit.jobs.spec import JobSpec
from hvdkit.jobs.volumes import Nfs, Volume

_NFS_CAPACITY = "1Ti"  # Kubernetes wants a number; NFS knows none, and the server's own limit holds


def nfs_through_pv(spec: JobSpec) -> bool:
    """Whether NFS is mounted through a PV and a claim."""
    if spec.nfs_mode == "auto":
        own_options = any(volume.nfs is not None and volume.nfs.own_options for volume in spec.volumes)
        return own_options or spec.security.enforced == "restricted"
    return spec.nfs_mode == "pv"


def volumes(spec: JobSpec, *, shm: bool) -> tuple[list[Object], list[Object]]:
    """The `volumes` of a pod and the `volumeMounts` of its container."""
    found: list[Object] = []
    mounts: list[Object] = []
    for index, volume in enumerate(spec.volumes):
        name = f"{volume.source.replace('_', '-')}-{index}"
        found.append({"name": name, **_source(spec, volume)})
        mount: Object = {"name": name, "mountPath": volume.mount}
        if volume.sub_path:
            mount["subPath"] = volume.sub_path
        if volume.read_only:
            mount["readOnly"] = True
        mounts.append(mount)
    if shm:
        # The container's own has 64 MiB, and a data loader or NCCL that needs more dies of a bus error.
        limit = {"sizeLimit": spec.shm} if spec.shm else {}
        found.append({"name": "shm", "emptyDir": {"medium": "Memory", **limit}})
        mounts.append({"name": "shm", "mountPath": "/dev/shm"})
    if spec.security.read_only_root:
        found.append({"name": "tmp", "emptyDir": {}})
        mounts.append({"name": "tmp", "mountPath": "/tmp"})
    return found, mounts


def nfs_objects(spec: JobSpec) -> list[Object]:
    """A static PV and a claim for each NFS folder, the same for every job that uses it, so that jobs share them.

    They belong to no job: they carry no job's label and stay when it goes.
    """
    if not nfs_through_pv(spec):
        return []
    if spec.namespace is None and any(volume.nfs for volume in spec.volumes):
        raise InputError("namespace: nfs_mode pv needs it, because a PV serves one namespace only; say which with -n.")
    found: dict[str, list[Object]] = {}
    for volume in spec.volumes:
        if volume.nfs is not None:
            name = nfs_claim(spec, volume.nfs)
            found[name] = [_persistent_volume(spec, volume.nfs, name), _claim(spec, name)]
    return [made for pair in found.values() for made in pair]


def nfs_claim(spec: JobSpec, nfs: Nfs) -> str:
    """The name of an NFS folder's PV and claim. A PV serves one claim, so each namespace has its own."""
    import hashlib  # loads OpenSSL, which is a good part of the start of `hvdkit render`; only a PV needs it

    identity = json.dumps([spec.namespace, nfs.server, nfs.path, *nfs.mount_options])
    return f"hvdkit-nfs-{hashlib.sha256(identity.encode()).hexdigest()[:16]}"


def _source(spec: JobSpec, volume: Volume) -> Object:
    read_only = {"readOnly": True} if volume.read_only else {}
    if volume.nfs is not None:
        if nfs_through_pv(spec):
            return {"persistentVolumeClaim": {"claimName": nfs_claim(spec, volume.nfs), **read_only}}
        return {"nfs": {"server": volume.nfs.server, "path": volume.nfs.path, **read_only}}
    if volume.pvc is not None:
        return {"persistentVolumeClaim": {"claimName": volume.pvc, **read_only}}
    if volume.host_path is not None:
        kind = {"type": volume.host_path.type} if volume.host_path.type else {}
        return {"hostPath": {"path": volume.host_path.path, **kind}}
    if volume.empty_dir is not None:
        medium = {"medium": "Memory"} if volume.empty_dir.memory else {}
        limit = {"sizeLimit": volume.empty_dir.size} if volume.empty_dir.size else {}
        return {"emptyDir": {**medium, **limit}}
    if volume.config_map is not None:
        return {"configMap": {"name": volume.config_map}}
    return {"secret": {"secretName": volume.secret}}


def _persistent_volume(spec: JobSpec, nfs: Nfs, name: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name, "labels": dict(MANAGED_BY)},
        "spec": {
            "capacity": {"storage": _NFS_CAPACITY},
            "accessModes": ["ReadWriteMany"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "",
            **({"mountOptions": list(nfs.mount_options)} if nfs.mount_options else {}),
            # Bound to its claim from the start: nobody else's claim can take it.
            "claimRef": {"namespace": spec.namespace, "name": name},
            "nfs": {"server": nfs.server, "path": nfs.path},
        },
    }


def _claim(spec: JobSpec, name: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": spec.namespace, "labels": dict(MANAGED_BY)},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "storageClassName": "",  # not "the default class": this claim waits for the PV above
            "volumeName": name,
            "resources": {"requests": {"storage": _NFS_CAPACITY}},
        },
    }
