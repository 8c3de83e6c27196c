"""Writes to the terminal from a thread of its own: a reader who stops reading stops nothing but the output."""

import contextlib
import sys
import threading
from collections import deque
from typing import IO

MOST_WAITING = 4 << 20  # bytes; above it the ranks' output is left in their pipes


class Writer:
    """A queue of bytes for stdout and stderr."""

    def __init__(self) -> None:
        self.closed_by_reader = False
        """The reader of our output has gone (`| head`)."""

        self.dropped = 0
        """Lines that nobody will see: see `write`."""

        self._queue: deque[tuple[IO[str], bytes]] = deque()
        self._waiting = 0
        self._dead: set[IO[str]] = set()
        self._closing = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    @property
    def full(self) -> bool:
        """Whether the ranks should wait."""
        return self._waiting > MOST_WAITING

    def write(self, stream: IO[str], data: bytes) -> None:
        """Write soon, in order. Far above the bound, which happens only at the end of a run, drop it."""
        if self._waiting > 2 * MOST_WAITING:
            self.dropped += 1
            return
        with self._changed:
            self._queue.append((stream, data))
            self._waiting += len(data)
            self._changed.notify()
            if self._thread is None:  # not earlier: processes are started before, and fork dislikes threads
                self._thread = threading.Thread(target=self._work, daemon=True)
                self._thread.start()

    def close(self, limit: float | None = None) -> None:
        """Wait until all is written, but not longer than `limit` seconds."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(limit)

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._queue and not self._closing:
                    self._changed.wait()
                if not self._queue:
                    return
                stream, data = self._queue.popleft()
            if stream not in self._dead:
                self._write_now(stream, data)
            with self._changed:
                self._waiting -= len(data)

    def _write_now(self, stream: IO[str], data: bytes) -> None:
        # Bytes, not text: what a rank prints goes out as it came in, whatever this terminal's encoding.
        try:
            stream.buffer.write(data)
            stream.buffer.flush()
        except BrokenPipeError:
            self._dead.add(stream)
            self.closed_by_reader = True
        except OSError as error:  # a full disk must not end the training
            self._dead.add(stream)
            if stream is not sys.stderr:
                with contextlib.suppress(OSError):
                    print(f"hvdkit: the output is not written any more: {error.strerror}", file=sys.stderr)
