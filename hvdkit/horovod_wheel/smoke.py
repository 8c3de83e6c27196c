"""A wheel counts only after this: two ranks use it, once with MPI and once with Gloo."""

import os
import re
import sys
import zipfile
from pathlib import Path

from hvdkit.errors import HvdkitError
from hvdkit.horovod_wheel.commands import Log, run
from hvdkit.horovod_wheel.openmpi import OpenMpi
from hvdkit.horovod_wheel.progress import Progress

RANK_SCRIPT = Path(__file__).with_name("smoke_rank.py")
TIMEOUT_SECONDS = 300  # importing torch from a cold disk takes most of it
PASSED = "hvdkit smoke test passed on rank"


def smoke_test(wheel: Path, open_mpi: OpenMpi, env: dict[str, str], folder: Path, log: Log, progress: Progress) -> None:
    """Raise unless the wheel, unpacked under `folder`, works. `env` carries Horovod's requirements in PYTHONPATH."""
    site_packages = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site_packages)
    if open_mpi.is_wheel:
        # As in a venv, so that the wheel's relative rpath is tested as well.
        for path in open_mpi.library_folder.iterdir():
            if not path.name.startswith("python"):
                (folder / "lib" / path.name).symlink_to(path)
    env = open_mpi.environment(env)
    env["PYTHONPATH"] = os.pathsep.join([str(site_packages), env["PYTHONPATH"]])
    env |= {"OMP_NUM_THREADS": "1", "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    rank = [sys.executable, str(RANK_SCRIPT)]
    mpirun = [str(open_mpi.prefix / "bin/mpirun"), "-np", "2", "--oversubscribe", "--bind-to", "none"]
    for controller, command in (("mpi", [*mpirun, *rank, "rank"]), ("gloo", [*rank, "gloo"])):
        progress.step(f"smoke test: 2 ranks with {controller}")
        settings = {"HOROVOD_CONTROLLER": controller, "HOROVOD_CPU_OPERATIONS": controller}
        _two_ranks(command, controller, env | settings, log, progress)


def _two_ranks(command: list[str], controller: str, env: dict[str, str], log: Log, progress: Progress) -> None:
    passed = set()

    def on_line(line: str) -> None:
        passed.update(re.findall(rf"{PASSED} (\d)", line))

    failure = f"the built wheel failed its smoke test with {controller}"
    try:
        code = run(command, log=log, env=env, on_line=on_line, on_tick=progress.tick, timeout=TIMEOUT_SECONDS)
    except TimeoutError as error:
        raise HvdkitError(f"{failure} ({error}): the full log is {log.path}") from error
    if code != 0 or passed != {"0", "1"}:
        raise HvdkitError(f"{failure} (exit code {code}): the full log is {log.path}")
