"""The output of many ranks on one terminal: whole lines, each with its rank, and a file a rank."""

import os
import sys
import time
from collections import deque
from pathlib import Path
from typing import IO

from hvdkit.errors import InputError

TAIL_LINES = 20
LONGEST_LINE = 1 << 20  # a longer one is shown in pieces, so that memory does not grow without end
SECONDS_BETWEEN_REDRAWS = 1.0  # of a progress bar that a rank draws with carriage returns
_COLOURS = (36, 32, 33, 35, 34, 91, 92, 93, 94, 95, 96)


class RankOutput:
    """Takes the bytes of every rank and prints whole lines."""

    def __init__(self, world_size: int, log_dir: Path | None) -> None:
        self.width = len(str(world_size - 1))
        self.tails: dict[int, deque[str]] = {}
        self._buffers: dict[tuple[int, bool], bytearray] = {}
        self._redrawn: dict[int, float] = {}
        self._colour = {
            stream: stream.isatty() and not os.environ.get("NO_COLOR") for stream in (sys.stdout, sys.stderr)
        }
        self._files = _open_logs(log_dir, world_size) if log_dir else {}

    def write(self, rank: int, data: bytes, *, error: bool) -> None:
        """Bytes from a rank's stdout, or stderr when `error`."""
        buffer = self._buffers.setdefault((rank, error), bytearray())
        buffer += data
        start = 0
        for end in _line_ends(buffer):
            line = buffer[start:end]
            redraw = buffer[end : end + 1] == b"\r" and buffer[end : end + 2] != b"\r\n"
            start = end + (2 if buffer[end : end + 2] == b"\r\n" else 1)
            self._log(rank, bytes(line))
            if not redraw or self._may_redraw(rank):
                self._show(rank, bytes(line), error=error)
        del buffer[:start]
        if len(buffer) > LONGEST_LINE:
            self._log(rank, bytes(buffer))
            self._show(rank, bytes(buffer), error=error)
            buffer.clear()

    def finish(self, rank: int) -> None:
        """The rank has ended: show what it left without a newline, and bring its file to disk."""
        for error in (False, True):
            rest = self._buffers.pop((rank, error), b"")
            if rest:
                self._log(rank, bytes(rest))
                self._show(rank, bytes(rest), error=error)
        if rank in self._files:
            self._files.pop(rank).close()

    def tail(self, rank: int) -> list[str]:
        """The last lines of a rank."""
        return list(self.tails.get(rank, ()))

    def _log(self, rank: int, line: bytes) -> None:
        if rank not in self._files:
            return
        try:
            self._files[rank].write(line + b"\n")
        except OSError as failure:  # a full disk must not end the training
            path = self._files.pop(rank).name
            sys.stderr.write(f"hvdkit: {path} is not written any more: {failure.strerror}\n")

    def _may_redraw(self, rank: int) -> bool:
        now = time.monotonic()
        if now - self._redrawn.get(rank, 0.0) < SECONDS_BETWEEN_REDRAWS:
            return False
        self._redrawn[rank] = now
        return True

    def _show(self, rank: int, line: bytes, *, error: bool) -> None:
        text = line.decode(errors="replace")
        self.tails.setdefault(rank, deque(maxlen=TAIL_LINES)).append(text)
        stream = sys.stderr if error else sys.stdout
        prefix = f"[{rank:>{self.width}}]"
        if self._colour[stream]:
            prefix = f"\x1b[{_COLOURS[rank % len(_COLOURS)]}m{prefix}\x1b[0m"
        stream.write(f"{prefix} {text}\n")
        stream.flush()


def _line_ends(buffer: bytearray) -> list[int]:
    """Where lines end: at a newline, or at a carriage return that is not the first half of one."""
    ends = []
    position = 0
    while position < len(buffer):
        newline, carriage = buffer.find(b"\n", position), buffer.find(b"\r", position)
        found = min((place for place in (newline, carriage) if place >= 0), default=-1)
        # A carriage return at the very end may still be followed by its newline: wait for it.
        if found < 0 or (found == carriage and found == len(buffer) - 1):
            break
        ends.append(found)
        position = found + (2 if buffer[found : found + 2] == b"\r\n" else 1)
    return ends


def _open_logs(log_dir: Path, world_size: int) -> dict[int, IO[bytes]]:
    try:
        log_dir.mkdir(parents=True, exist_ok=True)
        return {rank: (log_dir / f"rank-{rank}.log").open("wb", buffering=0) for rank in range(world_size)}
    except OSError as error:
        raise InputError(f"--log-dir: cannot write to {log_dir}: {error.strerror}.") from error
