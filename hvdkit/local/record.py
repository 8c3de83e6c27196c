"""What a run on this machine leaves behind, so that `hvdkit status`, `logs`, `why`, `list` and `delete` know it.

A folder a run, under $XDG_STATE_HOME/hvdkit/runs: `run.json`, and `logs/` with a file a rank. Only the launcher writes
there. A run without an end whose launcher is gone was killed.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path

from hvdkit.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_RESTART_ME, EnvironmentProblem, HvdkitError, InputError
from hvdkit.jobs.spec import JobSpec
from hvdkit.jobs.state import FAILED, RUNNING, SUCCEEDED, JobState

# Of the launcher's own exit codes.
_ENDED_BY_SIGNAL = {
    EXIT_INTERRUPTED: "Interrupted",
    128 + signal.SIGHUP: "Interrupted",
    128 + signal.SIGTERM: "Stopped",
}
MOST_RUNS = 50  # then the oldest that has ended goes
_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class LocalRun:
    """A run, as `run.json` has it."""

    name: str
    backend: str
    command: list[str]
    workers: int
    slots: int
    folder: str
    """Where the command was started."""

    machine: str
    pid: int
    """Of `hvdkit launch`."""

    pid_started: str
    """When that process started, in the kernel's own count: its number may belong to another one by now."""

    started: str
    """As RFC 3339."""

    ended: str | None = None
    exit_code: int | None = None
    reason: str = ""
    rank: int | None = None
    """The first rank that failed."""

    tail: list[str] = field(default_factory=list)
    """Its last lines."""

    version: int = _VERSION

    @property
    def place(self) -> Path:
        """The run's folder among the records."""
        return runs_folder() / self.name

    @property
    def alive(self) -> bool:
        """Whether its launcher still runs; of another machine with the same home folder we believe it."""
        if self.ended is not None:
            return False
        return self.machine != socket.gethostname() or _started_at(self.pid) == self.pid_started


class Recorder:
    """Keeps the record of the run that this process launches. Without a place to write to, it keeps none."""

    def __init__(self, run: LocalRun | None) -> None:
        self._run = run

    @property
    def log_dir(self) -> Path | None:
        """Folder for a file a rank."""
        return self._run.place / "logs" if self._run else None

    @contextlib.contextmanager
    def ends_with_it(self) -> Iterator[None]:
        """Around the run: one that could not even start ends with that error."""
        try:
            yield
        except HvdkitError as error:
            self.end(exit_code=error.exit_code, reason=str(error), rank=None, tail=[])
            raise

    def end(self, *, exit_code: int, reason: str, rank: int | None, tail: list[str]) -> None:
        """The run has ended."""
        if self._run is not None:
            ended = {"ended": _now(), "exit_code": exit_code, "reason": reason, "rank": rank, "tail": tail}
            with contextlib.suppress(OSError):  # the outcome itself matters more
                _write(replace(self._run, **ended))


def begin(spec: JobSpec) -> Recorder:
    """Start the record of a run; InputError when one of this name runs here already."""
    before = find_run(spec.name)
    if before is not None and before.alive:
        raise InputError(
            f"name: a run '{spec.name}' is at work here already (process {before.pid}); choose another --name, or end "
            f"it with `hvdkit delete {spec.name}`."
        )
    run = LocalRun(
        name=spec.name,
        backend=spec.backend,
        command=list(spec.command),
        workers=spec.workers,
        slots=spec.slots,
        folder=str(Path.cwd()),
        machine=socket.gethostname(),
        pid=os.getpid(),
        pid_started=_started_at(os.getpid()),
        started=_now(),
    )
    try:
        shutil.rmtree(run.place, ignore_errors=True)
        run.place.mkdir(parents=True)
        _write(run)
    except OSError:
        return Recorder(None)  # a full disk or a read-only home must not keep anybody from training
    _forget_the_oldest()
    return Recorder(run)


def runs_folder() -> Path:
    """Where the records are."""
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "hvdkit" / "runs"


def all_runs() -> list[LocalRun]:
    """Every run that is on record, oldest first."""
    folder = runs_folder()
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return sorted(filter(None, map(find_run, names)), key=lambda run: run.started)


def find_run(name: str) -> LocalRun | None:
    """The run of this name; None where there is none, or its record cannot be read."""
    if not re.fullmatch(r"[a-z][-a-z0-9]{0,62}", name):
        return None  # no job has such a name, and no path leaves the folder
    try:
        return LocalRun(**json.loads((runs_folder() / name / "run.json").read_text()))
    except (OSError, ValueError, TypeError):
        return None


def state_of(run: LocalRun) -> JobState:
    """Where a run stands, in the words of every backend."""
    common = {"workers": run.workers, "started": run.started, "ended": run.ended}
    if run.alive:
        return JobState(phase=RUNNING, ready=run.workers, **common)
    if run.exit_code == 0:
        return JobState(phase=SUCCEEDED, ready=run.workers, exit_code=0, **common)
    if run.ended is None:
        message = f"process {run.pid} of hvdkit launch is gone without a word: it was killed, or the machine restarted."
        return JobState(phase=FAILED, reason="Lost", message=message, exit_code=EXIT_FAILED, **common)
    if run.exit_code == EXIT_RESTART_ME:
        reason = "Stopped"
    elif run.rank is not None:
        reason = "RankFailed"
    else:
        reason = _ENDED_BY_SIGNAL.get(run.exit_code, "LaunchFailed")
    return JobState(phase=FAILED, reason=reason, message=run.reason, exit_code=run.exit_code, **common)


def stop(run: LocalRun, seconds: float) -> None:
    """Ask a run to stop in good order, and wait until it has."""
    if run.machine != socket.gethostname():
        raise InputError(f"the run '{run.name}' is at work on {run.machine}; stop it there.")
    os.kill(run.pid, signal.SIGTERM)
    end = time.monotonic() + seconds
    while run.alive:
        if time.monotonic() > end:
            raise EnvironmentProblem(f"the run '{run.name}' (process {run.pid}) did not stop within {seconds:g} s.")
        time.sleep(0.1)


def forget(run: LocalRun) -> None:
    """Remove the record."""
    shutil.rmtree(run.place, ignore_errors=True)


def _write(run: LocalRun) -> None:
    new = run.place / "run.json.new"
    new.write_text(json.dumps(asdict(run), indent=2) + "\n")
    new.replace(run.place / "run.json")  # a reader sees the old or the new one, whole


def _forget_the_oldest() -> None:
    runs = all_runs()
    for run in runs[: max(0, len(runs) - MOST_RUNS)]:
        if not run.alive:
            forget(run)


def _started_at(pid: int) -> str:
    """The start of a process in the kernel's clock ticks; empty when it is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]


def _now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
