"""Runs the programs of a build: their output goes to one log file, and none of them outlives us."""

import contextlib
import os
import re
import select
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from hvdkit.errors import EnvironmentProblem

GRACE_SECONDS = 5
DISK_FULL = "No space left on device"
# gcc and clang (file:line:column: error:), nvcc (file(line): error), the linker, CMake and ninja's own complaints
ERROR_LINE = re.compile(
    r"^(\S.*?[:(]\d+(:\d+)?\)?: (fatal )?error\b|.*\bld(\.\w+)?: |CMake Error|ninja: (error|fatal))",
    re.MULTILINE,
)


class Log:
    """The full log of one build."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("w", errors="replace")

    def write(self, text: str) -> None:
        """Add text; visible at once to someone who follows the file."""
        self._file.write(text)
        self._file.flush()

    def close(self) -> None:
        """Close the file; it stays where it is."""
        self._file.close()

    def first_error(self) -> str | None:
        """The first complaint of a compiler, linker or CMake with the line that explains it."""
        text = self.path.read_text(errors="replace")
        found = ERROR_LINE.search(text)
        if found is None:
            return None
        lines = text[found.start() :].splitlines()
        # CMake puts what is wrong on the lines after the place.
        wanted = 4 if lines[0].startswith("CMake Error") else 1
        return " ".join(" ".join(line for line in lines[:wanted] if line.strip()).split())

    def require_room(self, doing: str) -> None:
        """Raise when a program ran out of room; all that they write, temporary files too, lies below the cache."""
        if DISK_FULL in self.path.read_text(errors="replace"):
            raise EnvironmentProblem(f"the disk filled up while {doing}: set HVDKIT_CACHE_DIR to a folder with room")

    def last_error(self) -> str:
        """What pip said last about an error, for a step whose complaints come at the end."""
        text = self.path.read_text(errors="replace")
        errors = [line for line in text.splitlines() if line.lower().startswith("error")]
        return errors[-1].partition(":")[2].strip() if errors else "it gave no reason"


def run(
    command: list[str],
    *,
    log: Log,
    env: dict[str, str] | None = None,
    cwd: Path | None = None,
    on_line: Callable[[str], None] | None = None,
    on_tick: Callable[[], None] | None = None,
    timeout: float | None = None,
) -> int:
    """Run a command to its end and return its code; whatever it started has ended too when this returns.

    `on_line` sees each line of its output, `on_tick` is called about once a second. Raises TimeoutError.
    """
    log.write(f"$ {shlex.join(map(str, command))}\n")
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=env,
            cwd=cwd,
            start_new_session=True,  # ninja and mpirun move their children to other groups, but not sessions
        )
    except FileNotFoundError as error:
        raise EnvironmentProblem(f"cannot run {command[0]}: {error.strerror}") from error
    try:
        for line in _lines(process, on_tick, timeout):
            log.write(line)
            if on_line:
                on_line(line)
        return process.wait()
    finally:
        end_session(process)
        process.stdout.close()


def _lines(process: subprocess.Popen, on_tick: Callable[[], None] | None, timeout: float | None) -> Iterator[str]:
    deadline = None if timeout is None else time.monotonic() + timeout
    descriptor = process.stdout.fileno()
    rest = b""
    while True:
        readable, _, _ = select.select([descriptor], [], [], 1.0)
        if on_tick:
            on_tick()
        if deadline is not None and time.monotonic() > deadline:
            raise TimeoutError(f"{process.args[0]} did not end within {timeout:.0f} s")
        if not readable:
            if process.poll() is not None:
                break  # it has ended, and something that it left behind holds the pipe open
            continue
        block = os.read(descriptor, 1 << 16)
        if not block:
            break
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            yield line.decode(errors="replace") + "\n"
    if rest:
        yield rest.decode(errors="replace") + "\n"


def end_session(process: subprocess.Popen) -> None:
    """End every process of the session that `process` leads: first politely, then not."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        members = _session_members(process.pid)
        for descriptor in members:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, number)
        deadline = time.monotonic() + GRACE_SECONDS
        waiting = set(members)
        while waiting and time.monotonic() < deadline:
            ended, _, _ = select.select(waiting, [], [], 0.2)
            waiting -= set(ended)
            process.poll()  # a leader that is not reaped never counts as ended
        for descriptor in members:
            os.close(descriptor)
        if not waiting:
            break
    process.wait()


def _session_members(session: int) -> list[int]:
    """A pidfd for each living process of a session."""
    members = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            # The name in brackets may hold anything; state, parent, group and session follow it.
            state, _, _, member_of = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(member_of) == session and state != "Z":
                members.append(os.pidfd_open(int(folder.name)))
        except (OSError, ValueError):
            continue  # it ended while we looked
    return members
