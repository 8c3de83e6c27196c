"""Checks of the machine itself: Python, compiler, shared memory, NFS."""

import os
import platform
import sys
from pathlib import Path

from hvdkit.checks.doctor_finding import FAILURE, OK, WARNING, Finding, ask, how_it_ended, last_line

OLDEST_PYTHON = (3, 10)
ENOUGH_SHARED_MEMORY = 1 << 30
_PROGRAM = "#include <vector>\nint main() { return static_cast<int>(std::vector<int>(1).at(0)); }\n"


def check_python() -> Finding:
    """The Python that runs us."""
    text = f"{platform.python_version()} ({sys.executable})"
    if sys.version_info[:2] < OLDEST_PYTHON:
        wanted = ".".join(map(str, OLDEST_PYTHON))
        return Finding("Python", FAILURE, f"{text} is older than {wanted}", f"install Python {wanted} or newer")
    return Finding("Python", OK, text)


def check_compiler() -> Finding:
    """A C++ compiler that can compile what Horovod needs; only `hvdkit horovod build` uses it."""
    from hvdkit.horovod_wheel.compilation import find_compiler

    way_out = "install one, for example: apt-get install g++ (needed once, to build Horovod)"
    command, wanted = find_compiler("CXX")
    if not command:
        return Finding("C++ compiler", FAILURE, f"no {' or '.join(wanted)} on PATH", way_out)
    name = " ".join(command)
    _, version, _ = ask(*command, "--version", seconds=20)
    description = f"{name}: {version.splitlines()[0].strip()}" if version.strip() else name
    code, _, errors = _compile(command)
    if code != 0:
        reason = next((line for line in errors.splitlines() if "error" in line), last_line(errors, how_it_ended(code)))
        return Finding(
            "C++ compiler",
            FAILURE,
            f"{description} cannot compile C++20: {reason}",
            "install a compiler with its standard library, for example: apt-get install g++",
        )
    return Finding("C++ compiler", OK, description)


def _compile(compiler: list[str]) -> tuple[int | None, str, str]:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "probe.cc"
        source.write_text(_PROGRAM)
        return ask(*compiler, "-std=c++20", "-o", str(Path(folder) / "probe"), str(source), seconds=60)


def check_shared_memory(path: str = "/dev/shm") -> Finding:
    """Room in /dev/shm: containers have 64 MiB by default."""
    try:
        state = os.statvfs(path)
    except OSError as error:
        return Finding("shared memory", WARNING, f"{path}: {error.strerror}", f"mount a tmpfs on {path}")
    free = state.f_bavail * state.f_frsize
    text = f"{free / (1 << 20):,.0f} MiB free in {path}"
    if free < ENOUGH_SHARED_MEMORY:
        return Finding(
            "shared memory",
            WARNING,
            f"{text}; NCCL, Open MPI and data loaders exchange data there",
            "give the container more: docker run --shm-size 1g, or an emptyDir with medium Memory in a pod",
        )
    return Finding("shared memory", OK, text)


def check_nfs(root: Path = Path("/")) -> Finding:
    """Whether this machine can mount NFS: the helper program and the kernel's client."""
    helper = any((root / folder / "mount.nfs").exists() for folder in ("sbin", "usr/sbin", "bin", "usr/bin"))
    kernel = _kernel_has_nfs(root)
    if helper and kernel:
        return Finding("NFS client", OK, "mount.nfs and the kernel's client are here")
    missing = " and ".join(
        part for part, there in (("mount.nfs", helper), ("the kernel's NFS client", kernel)) if not there
    )
    way_out = "install nfs-common (Debian) or nfs-utils (Fedora)"
    if not kernel:
        way_out += ", with a kernel that has the nfs module"
    return Finding("NFS client", WARNING, f"this machine cannot mount NFS: it lacks {missing}", way_out)


def _kernel_has_nfs(root: Path) -> bool:
    try:
        known = (root / "proc/filesystems").read_text().split()
    except OSError:
        known = []
    modules = root / "lib/modules" / platform.release() / "kernel/fs/nfs"
    return "nfs" in known or "nfs4" in known or any(modules.glob("nfs.ko*"))
