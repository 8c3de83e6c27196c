"""The control groups of a cluster: all of its processes are in one tree, which tells when the last of them is gone."""

import os
import time
from pathlib import Path

from .problem import Problem

_TOP = Path("/sys/fs/cgroup")
_NEEDED = {"cpu", "cpuset", "memory", "pids"}


def create(cluster: str, group: str = "programs") -> str:
    """A group of the cluster, as the kubelet names it: one for the programs, one a node for its pods."""
    try:
        for hierarchy in _hierarchies():
            top = hierarchy / _tree(cluster)
            (top / group).mkdir(parents=True)
            if _version_2():
                controllers = (hierarchy / "cgroup.controllers").read_text().split()
                for parent in (hierarchy, top):
                    (parent / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in controllers))
    except OSError as error:
        raise Problem(f"pods need control groups that can be written, and here: {error}") from error
    return f"/{_tree(cluster)}/{group}"


def enter(cluster: str) -> None:
    """Put this process, and whatever it starts, into the cluster's tree."""
    # With version 1, `pids` alone: it only counts, while groups of `cpu` and `memory` would change how programs run.
    hierarchy = _TOP if _version_2() else _TOP / "pids"
    (hierarchy / _tree(cluster) / "programs/cgroup.procs").write_text(str(os.getpid()))


def processes(cluster: str, group: str) -> set[int]:
    """All that runs in a group, by ids as the reader's own namespace has them."""
    files = [file for one in _hierarchies() for file in (one / _tree(cluster) / group).rglob("cgroup.procs")]
    return {int(line) for file in files for line in file.read_text().split()}


def remove(cluster: str, limit: float = 60) -> None:
    """Remove the tree, as soon as every process in it has ended."""
    deadline = time.monotonic() + limit
    for hierarchy in _hierarchies():
        top = hierarchy / _tree(cluster)
        while top.exists():
            try:
                for folder, _, _ in os.walk(top, topdown=False):
                    os.rmdir(folder)  # noqa: PTH106 (thousands of objects for nothing)
            except OSError as error:
                if time.monotonic() > deadline:
                    raise Problem(f"processes of the cluster {cluster} do not end: {error}") from error
                time.sleep(0.05)


def _tree(cluster: str) -> str:
    return f"hvdkit-e2e-{cluster}"


def _version_2() -> bool:
    return (_TOP / "cgroup.controllers").exists()


def _hierarchies() -> list[Path]:
    """The one of version 2, or one a controller; some machines have links from one name to another."""
    if _version_2():
        return [_TOP]
    found = {folder.resolve() for folder in _TOP.iterdir() if (folder / "cgroup.procs").exists()}
    missing = _NEEDED - {folder.name for folder in _TOP.iterdir()}
    if missing:
        raise Problem(f"{_TOP} has no control groups for {', '.join(sorted(missing))}, which the kubelet needs")
    return sorted(found)
