"""metrics.jsonl: one JSON object a line, the history of a run."""

import json
from pathlib import Path

from hvdkit.errors import InputError

VERSION = 1


class History:
    """Appends to metrics.jsonl in a folder; without a folder it keeps nothing."""

    def __init__(self, folder: Path | None) -> None:
        self._file = None
        if folder is None:
            return
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # Line by line, so that a reader of a running job sees whole lines.
            self._file = (folder / "metrics.jsonl").open("a", buffering=1, encoding="utf-8")
        except OSError as error:
            raise InputError(f"--output: {folder} cannot be written: {error.strerror}.") from None

    def write(self, kind: str, **values: object) -> None:
        """Add one line: its kind ('interval' or 'summary') and the values."""
        if self._file is not None:
            self._file.write(json.dumps({"version": VERSION, "kind": kind, **values}) + "\n")
