"""Starts `hvdkit launch` as a user would and finds every process that belongs to the run."""

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

HVDKIT = [sys.executable, "-m", "hvdkit"]
LIMIT = 120.0  # generous: the machines are slow at times, and a condition that holds ends the wait at once


class Launch:
    """A running `hvdkit launch`, its output in a file, its processes marked by an environment variable."""

    def __init__(self, folder: Path, *arguments: str, stdin: int = subprocess.DEVNULL) -> None:
        self.mark = f"HVDKIT_TEST_MARK={uuid.uuid4().hex}".encode()
        self.log = folder / f"launch-{uuid.uuid4().hex[:6]}.log"
        name, value = self.mark.decode().split("=")
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*HVDKIT, "launch", "--backend", "local", *arguments],
                stdin=stdin,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | {name: value},
                cwd=folder,
            )

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def wait(self) -> int:
        return self.process.wait(timeout=LIMIT)

    def wait_for(self, text: str, times: int = 1) -> None:
        def seen() -> bool:
            return self.output().count(text) >= times

        wait_until(seen, lambda: f"{times} x {text!r} in the output:\n{self.output()}")

    def processes(self) -> dict[int, str]:
        """pid → command line of every living process of this run, orphans included."""
        found = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    alive = "State:\tZ" not in (entry / "status").read_text()
                    if alive and self.mark in (entry / "environ").read_bytes():
                        found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        return found

    def pid_of(self, text: str) -> int:
        """The first process whose command line contains `text`; waits for it to appear."""

        def find() -> list[int]:
            return [pid for pid, line in sorted(self.processes().items()) if text in line]

        wait_until(lambda: bool(find()), lambda: f"a process with {text!r}: {self.processes()}\n{self.output()}")
        return find()[0]

    def wait_until_gone(self, since: float | None = None) -> None:
        """No process is left 10 s after that time of the monotonic clock (now if it is not given)."""
        passed = 0.0 if since is None else time.monotonic() - since
        wait_until(lambda: not self.processes(), lambda: f"an end of {self.processes()}", limit=10.0 - passed)

    def kill_all(self) -> None:
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


@contextlib.contextmanager
def launching(folder: Path, *arguments: str) -> Iterator[Launch]:
    """A launch that a failing test does not leave behind."""
    launch = Launch(folder, *arguments)
    try:
        yield launch
    finally:
        launch.kill_all()


def wait_until(condition: Callable[[], bool], what: Callable[[], str], limit: float = LIMIT) -> None:
    deadline = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < deadline, f"waited {limit:.0f} s for {what()}"
        time.sleep(0.05)


def run_hvdkit(*arguments: str, **kwargs) -> subprocess.CompletedProcess[str]:
    """Run an hvdkit command to its end."""
    return subprocess.run([*HVDKIT, *arguments], capture_output=True, text=True, timeout=LIMIT, **kwargs)
