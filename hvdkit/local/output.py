"""The output of many ranks on one terminal: whole lines, each with its rank, and a file a rank."""

import os
import re
import sys
import time
from collections import deque
from pathlib import Path
from typing import IO

from hvdkit.errors import InputError
from hvdkit.local.writer import Writer

TAIL_LINES = 20
LONGEST_LINE = 1 << 20  # a longer one is shown in pieces, so that memory does not grow without end
SECONDS_BETWEEN_REDRAWS = 1.0  # of a progress bar that a rank draws with carriage returns
_COLOURS = (36, 32, 33, 35, 34, 91, 92, 93, 94, 95, 96)
# A carriage return at the very end of what has arrived may still be followed by its newline.
_LINE_END = re.compile(rb"\n|\r\n|\r(?=[^\n])")


class RankOutput:
    """Takes the bytes of every rank and prints whole lines."""

    def __init__(self, world_size: int, log_dir: Path | None, writer: Writer) -> None:
        self.width = len(str(world_size - 1))
        self.writer = writer
        self.tails: dict[int, deque[str]] = {}
        self._unfinished: dict[tuple[int, bool], bytes] = {}
        self._redrawn: dict[int, float] = {}
        self._colour = {
            stream: stream.isatty() and not os.environ.get("NO_COLOR") for stream in (sys.stdout, sys.stderr)
        }
        self._files = _open_logs(log_dir, world_size) if log_dir else {}

    def write(self, rank: int, data: bytes, *, error: bool) -> None:
        """Bytes from a rank's stdout, or stderr when `error`."""
        before = self._unfinished.get((rank, error), b"")
        # Only what is new can end a line, or the carriage return before it.
        search_from = max(0, len(before) - 1)
        text = before + data
        start = 0
        for end in _LINE_END.finditer(text, search_from):
            self._line(rank, text[start : end.start()], error=error, redraw=end[0] == b"\r")
            start = end.end()
        rest = text[start:]
        if len(rest) > LONGEST_LINE:
            self._line(rank, rest, error=error)
            rest = b""
        self._unfinished[rank, error] = rest

    def finish(self, rank: int) -> None:
        """The rank has ended: show what it left without a newline, and bring its file to disk."""
        for error in (False, True):
            rest = self._unfinished.pop((rank, error), b"").removesuffix(b"\r")
            if rest:
                self._line(rank, rest, error=error)
        if rank in self._files:
            self._files.pop(rank).close()

    def say(self, line: str) -> None:
        """A line of the launcher's own."""
        self.writer.write(sys.stderr, f"hvdkit: {line}\n".encode())

    def tail(self, rank: int) -> list[str]:
        """The last lines of a rank."""
        return list(self.tails.get(rank, ()))

    def _line(self, rank: int, line: bytes, *, error: bool, redraw: bool = False) -> None:
        self._log(rank, line)
        if redraw and not self._may_redraw(rank):
            return
        self.tails.setdefault(rank, deque(maxlen=TAIL_LINES)).append(line.decode(errors="replace"))
        stream = sys.stderr if error else sys.stdout
        prefix = f"[{rank:>{self.width}}]"
        if self._colour[stream]:
            prefix = f"\x1b[{_COLOURS[rank % len(_COLOURS)]}m{prefix}\x1b[0m"
        self.writer.write(stream, prefix.encode() + b" " + line + b"\n")

    def _may_redraw(self, rank: int) -> bool:
        now = time.monotonic()
        if now - self._redrawn.get(rank, 0.0) < SECONDS_BETWEEN_REDRAWS:
            return False
        self._redrawn[rank] = now
        return True

    def _log(self, rank: int, line: bytes) -> None:
        if rank not in self._files:
            return
        try:
            self._files[rank].write(line + b"\n")
        except OSError as failure:  # a full disk must not end the training
            path = self._files.pop(rank).name
            self.say(f"{path} is not written any more: {failure.strerror}")


def _open_logs(log_dir: Path, world_size: int) -> dict[int, IO[bytes]]:
    try:
        log_dir.mkdir(parents=True, exist_ok=True)
        return {rank: (log_dir / f"rank-{rank}.log").open("wb", buffering=0) for rank in range(world_size)}
    except OSError as error:
        raise InputError(f"--log-dir: cannot write to {log_dir}: {error.strerror}.") from error
