"""The cluster's programs: started, ended and found again by name, from whichever process of the cluster."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from .problem import Problem


class Processes:
    """Programs that run in the background, each with a log and a record in a folder."""

    def __init__(self, folder: Path) -> None:
        self.records = folder / "processes"
        self.logs = folder / "logs"

    def start(self, name: str, command: list[str] | None = None) -> None:
        """Start a program; without a command, the one that it had before it was stopped."""
        command = command or self.command(name)
        self.records.mkdir(parents=True, exist_ok=True)
        self.logs.mkdir(parents=True, exist_ok=True)
        with self.log(name).open("ab") as log:
            # In a session of its own, a Ctrl-C at the tests does not reach it.
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        record = self.records / f"{name}.json"
        fresh = record.with_suffix(".fresh")
        fresh.write_text(json.dumps({"pid": process.pid, "command": command}))
        fresh.rename(record)

    def stop(self, name: str, how: signal.Signals = signal.SIGTERM) -> None:
        """End a program and wait until it is gone."""
        if self.alive(name):
            os.kill(self.pid(name), how)
            wait_until(lambda: not self.alive(name), f"{name} has ended")

    def pid(self, name: str) -> int:
        return self._record(name)["pid"]

    def command(self, name: str) -> list[str]:
        """What it was last started with."""
        return self._record(name)["command"]

    def alive(self, name: str) -> bool:
        try:
            status = Path(f"/proc/{self.pid(name)}/stat").read_text()
        except FileNotFoundError:
            return False
        return status.rpartition(")")[2].split()[0] != "Z"  # one that nobody has waited for still has an id

    def log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def _record(self, name: str) -> dict:
        return json.loads((self.records / f"{name}.json").read_text())


def wait_until(
    condition: Callable[[], object],
    what: str,
    processes: Processes | None = None,
    needed: Iterable[str] = (),
    limit: float = 120,
    pause: float = 0.1,
) -> None:
    """Wait for a condition; fail at once when a program that it needs is gone."""
    deadline = time.monotonic() + limit
    while not condition():
        for name in needed:
            if processes and not processes.alive(name):
                raise Problem(f"{name} ended before {what}; its log says:\n{_tail(processes.log(name))}")
        if time.monotonic() > deadline:
            logs = "".join(f"\n{name}:\n{_tail(processes.log(name))}" for name in needed) if processes else ""
            raise Problem(f"after {limit:.0f} s it is still not so that {what}{logs}")
        time.sleep(pause)


def _tail(log: Path, lines: int = 15) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
