"""The live line of a build: what is being done, how far it is, for how long."""

import sys
import time
from typing import TextIO

PLAIN_SECONDS = 10  # between two lines where the output is no terminal


class Progress:
    """One changing line on a terminal; elsewhere (CI, a file) a plain line now and then."""

    def __init__(self, *, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._step = ""
        self._step_started = self._last_shown = time.monotonic()
        self._counts = (0, 0)
        self._status = None
        if self._stream.isatty():
            from rich.console import Console

            self._console = Console(file=self._stream)
            self._status = self._console.status("")

    def __enter__(self) -> "Progress":
        if self._status:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status:
            self._status.stop()

    def step(self, name: str) -> None:
        """Begin another piece of work."""
        self._step, self._counts = name, (0, 0)
        self._step_started = time.monotonic()
        self._show()

    def count(self, done: int, total: int) -> None:
        """How many files of how many this step has behind it."""
        self._counts = (done, total)
        self.tick()

    def say(self, text: str) -> None:
        """A line that stays."""
        if self._status:
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            print(text, file=self._stream, flush=True)

    def tick(self) -> None:
        """Called often; shows the line again when it is time."""
        if self._status or time.monotonic() - self._last_shown >= PLAIN_SECONDS:
            self._show()

    def line(self) -> str:
        """The text as it stands: `compiling 31 of 64 files, 2:10`."""
        done, total = self._counts
        minutes, seconds = divmod(int(time.monotonic() - self._step_started), 60)
        files = f" {done} of {total} files" if total else ""
        clock = f", {minutes}:{seconds:02}" if minutes or seconds else ""
        return f"{self._step}{files}{clock}"

    def _show(self) -> None:
        self._last_shown = time.monotonic()
        if self._status:
            from rich.text import Text

            self._status.update(Text(self.line()))
        else:
            self.say(self.line())
