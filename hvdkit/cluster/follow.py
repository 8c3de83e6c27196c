"""Follows a job to its end: what its pods do, then what its ranks say, and how it ended."""

import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from io import FileIO
from pathlib import Path

from hvdkit.cluster.api import ApiError, Cluster
from hvdkit.cluster.job import Job
from hvdkit.cluster.kinds import Object, name_of, uid_of
from hvdkit.cluster.live import LiveJob, Moment
from hvdkit.cluster.logs import LogFollower, speaking_pods, started
from hvdkit.errors import EXIT_FAILED, EnvironmentProblem, InputError
from hvdkit.jobs.live import is_launcher, pods_of
from hvdkit.jobs.state import RUNNING, SUCCEEDED, SUSPENDED, JobState

SECONDS_FOR_LAST_WORDS = 15.0
SECONDS_BEFORE_COMPLAINT = 10.0
MOST_LOGS = 16  # shown at once; each is a connection of its own

_RANK = re.compile(rb"\[ *(\d+)\]")
_COLOURS = (36, 32, 33, 35, 34, 91, 92, 93, 94, 95, 96)


def say(line: str) -> None:
    """A line of hvdkit's own."""
    print(f"hvdkit: {line}", file=sys.stderr, flush=True)


class Printer:
    """Whole lines of several logs on one terminal, ranks in colour."""

    def __init__(self, keep: Callable[[bytes], bool] = lambda line: True) -> None:
        self._lock = threading.Lock()
        self._keep = keep
        self._colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        self._reader_gone = False

    def show(self, line: bytes, mark: bytes = b"") -> None:
        """One line; the mark goes before it where no rank's number does."""
        if not self._keep(line):
            return
        rank = _RANK.match(line)
        if rank is None:
            line = mark + line
        elif self._colour:
            colour = _COLOURS[int(rank[1]) % len(_COLOURS)]
            line = b"\x1b[%dm%b\x1b[0m%b" % (colour, rank[0], line[rank.end() :])
        with self._lock:
            if self._reader_gone:
                return
            try:
                sys.stdout.buffer.write(line + b"\n")
                sys.stdout.buffer.flush()
            except BrokenPipeError:
                self._reader_gone = True  # `| head`: the job goes on, and its exit code still counts


class Patience:
    """With a job that does not start: an image that is not there, a volume that nobody serves, a node that is full."""

    def __init__(self, seconds: float | None, *, one_is_enough: bool = False) -> None:
        """`one_is_enough`: copies that may take turns have started with the first of them."""
        self._seconds = seconds
        self._one_is_enough = one_is_enough
        self._since = time.monotonic()

    def ends_with(self, found: JobState) -> bool:
        """Whether it has taken too long until now. What has run once is waited for; time in a queue does not count."""
        if found.phase == RUNNING or (self._one_is_enough and found.ready):
            self._seconds = None
        elif found.phase == SUSPENDED:
            self._since = time.monotonic()
        return self._seconds is not None and time.monotonic() - self._since > self._seconds


Shown = Callable[[Moment], list[tuple[Object, bytes]]]


class Follower:
    """Shows a job from its first pod to its end, and keeps logs in files if asked to."""

    def __init__(
        self,
        cluster: Cluster,
        job: Job,
        *,
        printer: Printer | None,
        save_logs: Path | None = None,
        on_state: Callable[[JobState], None] = lambda state: None,
        shown: Shown | None = None,
        since: int | None = None,
    ) -> None:
        self.shown = shown or self._speaking
        """The pods whose lines are shown, each with its mark."""

        self.since = since
        """Seconds of the past that are shown; all of it without."""

        self.on_state = on_state
        """Called with each state; an exception of it ends the following."""

        self.cluster = cluster
        self.job = job
        self.printer = printer
        self.save_logs = save_logs
        self._logs: dict[str, LogFollower] = {}  # by uid: a pod made anew may have the name of the one before
        self._said = ""
        self._said_cut = False
        self._complained = False
        self._said_unsaved = False
        if save_logs is not None:
            check_folder(save_logs)

    @property
    def logs(self) -> list[LogFollower]:
        """The logs that were or are followed."""
        return list(self._logs.values())

    def to_end(
        self, timeout: float | None = None, starting: Patience | None = None, every: float | None = None
    ) -> JobState:
        """Return when the job has ended and its logs have been read, or when that, or its start, takes too long.

        `on_state` is called after each change, and every so many seconds if asked to.
        """
        give_up = time.monotonic() + (timeout or float("inf"))
        every = every or (1.0 if timeout or starting else None)
        with LiveJob(self.cluster, self.job, self._on_trouble) as live:
            for moment in live.moments(every=every):
                self._report(moment.state)
                self._listen(moment)
                self.on_state(moment.state)
                if moment.state.finished:
                    break
                if time.monotonic() > give_up or (starting and starting.ends_with(moment.state)):
                    self.stop()
                    return moment.state
        self._last_words()
        return moment.state

    def stop(self) -> None:
        """Leave the logs."""
        for log in self._logs.values():
            log.stop()

    def _report(self, found: JobState) -> None:
        line = state_line(found)
        if line != self._said and not found.finished:
            self._said = line
            if self.printer is not None:
                say(f"{self.job.name}: {line}")

    def _listen(self, moment: Moment) -> None:
        """Follow the log of each pod that has one and is not followed yet."""
        shown = {uid_of(pod): mark for pod, mark in (self.shown(moment) if self.printer else [])}
        for pod in pods_of(moment.objects):
            uid, name = uid_of(pod), name_of(pod)
            if (uid in shown or self.save_logs) and uid not in self._logs and started(pod):
                take = self._taker(name, shown.get(uid))
                self._logs[uid] = LogFollower(self.cluster, name, take, self.since, uid=uid).start()

    def _speaking(self, moment: Moment) -> list[tuple[Object, bytes]]:
        """The pods whose lines are shown, each with its mark."""
        pods = speaking_pods(self.job, pods_of(moment.objects))
        several = moment.state.workers > 1
        if len(pods) > MOST_LOGS and not is_launcher(pods[0]) and not self._said_cut:
            self._said_cut = True
            workers = max(moment.state.workers, len(pods))
            say(f"showing {MOST_LOGS} of {workers} workers; `hvdkit logs {self.job.name} --worker N` shows another.")
        return [(pod, _mark(pod, number) if several else b"") for number, pod in enumerate(pods[:MOST_LOGS])]

    def _taker(self, pod: str, mark: bytes | None) -> Callable[[bytes], None]:
        file = self._open(self.save_logs / f"{pod}.log") if self.save_logs is not None else None

        def take(line: bytes) -> None:
            nonlocal file
            if mark is not None and self.printer is not None:
                self.printer.show(line, mark)
            if file is not None:
                try:
                    file.write(line + b"\n")
                except OSError as error:
                    self._say_unsaved(error, Path(file.name))
                    file = None

        return take

    def _open(self, path: Path) -> FileIO | None:
        try:
            return path.open("ab", buffering=0)
        except OSError as error:
            self._say_unsaved(error, path)
            return None

    def _say_unsaved(self, error: OSError, path: Path) -> None:
        """A full disk must not end what we follow; nor is it said again for each of a hundred pods."""
        if not self._said_unsaved:
            self._said_unsaved = True
            say(f"--save-logs: {path} is not written: {error.strerror}; the logs there will not be complete.")

    def _last_words(self) -> None:
        end = time.monotonic() + SECONDS_FOR_LAST_WORDS  # for all of them: they come to their ends at the same time
        for log in self._logs.values():
            log.hurry()
        for log in self._logs.values():
            if not log.join(max(0.0, end - time.monotonic())):
                log.stop()
                say(f"the log of pod {log.pod} did not come to its end; `hvdkit logs {self.job.name}` tries again.")
            elif log.error is not None:
                say(f"the log of pod {log.pod} could not be read: {log.error}")

    def _on_trouble(self, seconds: float, error: ApiError) -> None:
        if seconds <= SECONDS_BEFORE_COMPLAINT:
            self._complained = False
        elif not self._complained:
            self._complained = True
            say(f"{error} The job goes on without it; still trying.")


def _mark(pod: Object, number: int) -> bytes:
    """What tells apart the lines of several workers where no rank's number does."""
    return b"" if is_launcher(pod) else b"worker %d: " % number


def state_line(found: JobState) -> str:
    """Where a job stands, in one line."""
    line = f"{found.phase}, {found.ready} of {found.workers} workers ready"
    if found.reason and found.phase != RUNNING:
        message = " ".join(found.message.split())
        line += f": {found.reason}" + (f": {message[:200]}" if message else "")
    return line


def exit_code_of(found: JobState) -> int:
    """The exit code of a job that has ended."""
    if found.phase == SUCCEEDED:
        return 0
    return found.exit_code or EXIT_FAILED


def check_folder(folder: Path) -> None:
    """Make the folder of --save-logs; an error where files cannot be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"hvdkit")
    except FileExistsError:
        raise InputError(f"--save-logs: {folder} is a file; name a folder.") from None
    except OSError as error:
        raise EnvironmentProblem(f"--save-logs: {folder} cannot be written: {error.strerror}.") from None
