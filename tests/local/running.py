"""Starts real ranks on this machine for the tests, and leaves none behind."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

SECONDS = 600  # a run that takes longer hangs
_BIN = Path(sys.executable).parent

MPIRUN = ("mpirun", "-np", "2", "--bind-to", "none", "--oversubscribe", "--mca", "mpi_yield_when_idle", "1")
LAUNCHERS = {
    "mpirun": MPIRUN,
    "horovodrun-mpi": ("horovodrun", "--mpi", "-np", "2"),
    "horovodrun-gloo": ("horovodrun", "--gloo", "-np", "2"),
    "hvdkit-mpi": ("hvdkit", "launch", "--backend", "local", "--workers", "2", "--"),
    "torchrun": ("torchrun", "--nproc-per-node", "2"),
    "hvdkit-gloo": ("hvdkit", "launch", "--backend", "local", "--workers", "2", "--controller", "gloo", "--"),
}


def environment(**extra: str) -> dict[str, str]:
    """Of a user who has this Python's programs on the path and has set nothing of MPI or Horovod."""
    foreign = ("OMPI_", "OPAL_", "PMIX_", "HOROVOD_", "HVDKIT_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return {
        **kept,
        "PATH": f"{_BIN}:{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        **extra,
    }


@contextmanager
def started(
    *command: str, cwd: Path | None = None, output: IO | None = None, **extra: str
) -> Iterator[subprocess.Popen]:
    """The process, with its output in pipes or a file; its whole process group is ended in the end."""
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env=environment(**extra),
        stdin=subprocess.DEVNULL,
        stdout=output or subprocess.PIPE,
        stderr=output or subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    watchdog = threading.Timer(SECONDS, os.killpg, (process.pid, signal.SIGKILL))  # ends a test that reads on and on
    watchdog.start()
    try:
        yield process
    finally:
        watchdog.cancel()
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def run(*command: str, cwd: Path | None = None, **extra: str) -> subprocess.CompletedProcess:
    """Run to the end; TimeoutExpired when it hangs."""
    with started(*command, cwd=cwd, **extra) as process:
        stdout, stderr = process.communicate(timeout=SECONDS)
        return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)
