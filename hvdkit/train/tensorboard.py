"""The history of a run as TensorBoard's files."""

import contextlib
import os
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hvdkit.errors import EnvironmentProblem, InputError
from hvdkit.train.report import Evaluation, Interval, Reporter


class TensorBoard(Reporter):
    """Writes scalars by step into a folder.

    Through TensorBoard's record writer, at once: the usual SummaryWriter writes from a thread of its own, whose
    traceback would be the first to tell of a full disk.
    """

    def __init__(self, folder: Path, warn: Callable[[str], None], step: int | None = None) -> None:
        """`step`: where a resumed training goes on; what a killed run wrote beyond it is not shown any more."""
        try:
            from tensorboard.compat.proto import event_pb2, summary_pb2
            from tensorboard.summary.writer.record_writer import RecordWriter
        except ImportError as error:
            raise EnvironmentProblem(
                f"--tensorboard: TensorBoard cannot be used ({error}); run \"pip install 'hvdkit[train]'\"."
            ) from error
        self._events, self._summaries = event_pb2, summary_pb2
        self._folder = folder
        self._warn = warn
        # TensorBoard reads the files of a folder in the order of their names, so that of a restart must be later.
        name = f"events.out.tfevents.{time.time_ns() // 1000}.{socket.gethostname()}.{os.getpid()}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = (folder / name).open("xb")
            self._records: RecordWriter | None = RecordWriter(self._file)
            self._add(file_version="brain.Event:2")
            if step is not None:
                start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
                self._add(step=step + 1, session_log=start)
            self._file.flush()
        except OSError as error:
            raise InputError(f"--tensorboard: {folder} cannot be written: {error.strerror}.") from None

    def interval(self, interval: Interval) -> None:
        self._write(
            interval.step,
            {
                "train/loss": interval.loss,
                "train/accuracy_percent": interval.accuracy_percent,
                "train/learning_rate": interval.learning_rate,
                "train/epoch": interval.epoch,
                "speed/images_per_second": interval.images_per_second,
                "speed/step_seconds": interval.step_seconds,
                "speed/data_wait_seconds": interval.data_wait_seconds,
                "speed/allreduce_wait_seconds": interval.allreduce_wait_seconds,
            },
        )

    def evaluation(self, evaluation: Evaluation) -> None:
        self._write(
            evaluation.step, {"test/accuracy_percent": evaluation.accuracy_percent, "test/loss": evaluation.loss}
        )

    def note(self, text: str) -> None:
        pass  # for people

    def summary(self, summary: Mapping[str, Any]) -> None:
        pass  # the last evaluation has said it

    def close(self) -> None:
        if self._records is not None:
            self._records = None
            self._file.close()  # every record was flushed

    def _write(self, step: int, scalars: Mapping[str, float | None]) -> None:
        if self._records is None:
            return
        values = [
            self._summaries.Summary.Value(tag=name, simple_value=value)
            for name, value in scalars.items()
            if value is not None
        ]
        try:
            self._add(step=step, summary=self._summaries.Summary(value=values))
            self._file.flush()
        except OSError as error:
            self._give_up(error)

    def _add(self, **event: Any) -> None:
        self._records.write(self._events.Event(wall_time=time.time(), **event).SerializeToString())

    def _give_up(self, error: OSError) -> None:
        # A reader stops at a torn record, so nothing written after it would be seen.
        self._records = None
        with contextlib.suppress(OSError):
            self._file.close()
        self._warn(f"{self._folder} gets no more of TensorBoard's data: {error.strerror}; the training goes on.")
