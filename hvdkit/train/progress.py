"""What a person sees of a training: a live bar on a terminal, elsewhere one plain line per interval."""

import contextlib
import math
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from hvdkit.train.history import FILE_NAME
from hvdkit.train.report import Evaluation, Interval, Reporter

if TYPE_CHECKING:
    from rich.progress import Progress

NOTABLY_SLOWER = 1.1  # times the mean: a rank so far behind costs the world a tenth of its speed
SHORTEST_BAR = 10  # columns, with the blanks around it


def create(to_stderr: bool) -> Reporter:
    """A bar if the stream is a terminal that can redraw a line, else plain lines."""
    stream = sys.stderr if to_stderr else sys.stdout
    can_redraw = stream.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")
    if "OMPI_COMM_WORLD_RANK" in os.environ:
        can_redraw = False  # mpirun gives its ranks a terminal of its own making, wherever the output goes in the end
    return BarProgress(stream) if can_redraw else LineProgress(stream)


class LineProgress(Reporter):
    """Plain lines, for pipes, files and pods."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def interval(self, interval: Interval) -> None:
        self.note("  ".join([_place(interval), *_figures(interval).values()]))

    def evaluation(self, evaluation: Evaluation) -> None:
        self.note(_describe(evaluation))

    def note(self, text: str) -> None:
        with _losing_output():
            # At once: behind a pipe a line would otherwise wait for the buffer to fill.
            print(_printable(text, self._stream), file=self._stream, flush=True)

    def summary(self, summary: Mapping[str, Any]) -> None:
        for line in summary_lines(summary):
            self.note(line)

    def close(self) -> None:
        pass


class BarProgress(LineProgress):
    """A bar at the bottom of the terminal; everything else appears above it."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        from rich.console import Console

        self._console = Console(file=stream)
        self._bar: Progress | None = None

    def interval(self, interval: Interval) -> None:
        with _losing_output():
            place = _place(interval)
            state = {
                "total": interval.steps,
                "completed": interval.step,
                "place": place,
                "figures": _fitting(_figures(interval), self._console.width - len(place) - SHORTEST_BAR),
            }
            if self._bar is None:
                self._bar = self._start(state)
            else:
                self._bar.update(self._bar.task_ids[0], **state, refresh=True)

    def note(self, text: str) -> None:
        with _losing_output():
            self._console.print(_printable(text, self._stream), markup=False, highlight=False, soft_wrap=True)

    def summary(self, summary: Mapping[str, Any]) -> None:
        self.close()
        super().summary(summary)

    def close(self) -> None:
        if self._bar is not None:
            with _losing_output():
                self._bar.stop()
            self._bar = None

    def _start(self, state: dict[str, Any]) -> "Progress":
        from rich.progress import BarColumn, Progress, TextColumn
        from rich.table import Column

        def text(field: str) -> TextColumn:
            return TextColumn(
                f"{{task.fields[{field}]}}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")
            )

        bar = Progress(
            text("place"),
            BarColumn(bar_width=None, table_column=Column(ratio=1)),
            text("figures"),
            console=self._console,
            auto_refresh=False,  # no thread that draws: its share of a core would be taken from the training
            transient=True,
            expand=True,
            redirect_stdout=self._stream is sys.stdout,  # with --json, stdout belongs to the result
        )
        bar.add_task("", **state)
        bar.start()
        self._console.show_cursor(True)  # a rank that is killed could not bring it back
        return bar


def summary_lines(summary: Mapping[str, Any]) -> list[str]:
    """What came out, in a few aligned lines; what the summary does not have is left out."""
    rows = []
    accuracy = summary.get("test_accuracy_percent")
    if accuracy is not None:
        rows.append(("test accuracy", f"{accuracy:.2f} % of {summary['test_images']:,} images of {summary['data']}"))
    pace = summary.get("images_per_second")
    if pace is not None:
        ranks = summary["ranks"]
        rows.append(("speed", f"{pace:,.0f} images/s over {ranks} rank{'' if ranks == 1 else 's'}"))
    if summary.get("seconds") is not None:
        rows.append(("time", clock(summary["seconds"])))
    waits = [
        f"{summary[key]:.1f} % for {what}"
        for key, what in (("data_wait_percent", "data"), ("allreduce_wait_percent", "allreduce"))
        if summary.get(key) is not None
    ]
    if waits:
        rows.append(("waited", ", ".join(waits)))
    if summary.get("checkpoint"):
        rows.append(("checkpoint", str(summary["checkpoint"])))
    if summary.get("output"):
        rows.append(("metrics", str(Path(summary["output"]) / FILE_NAME)))
    width = max((len(label) for label, _ in rows), default=0)
    return [f"{label:<{width}}  {value}" for label, value in rows]


def clock(seconds: float) -> str:
    """`0:12`, `59:59`, `26:00:01`."""
    if not math.isfinite(seconds):
        return "unknown"
    minutes, seconds = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def _place(interval: Interval) -> str:
    epoch = f"  epoch {interval.epoch}/{interval.epochs}" if interval.epochs > 1 else ""
    return f"step {interval.step}/{interval.steps}{epoch}"


def _figures(interval: Interval) -> dict[str, str]:
    figures = {
        "loss": f"loss {interval.loss:.4f}",
        "accuracy": f"accuracy {interval.accuracy_percent:.1f} %",
        "pace": f"{interval.images_per_second:,.0f} images/s",
        "eta": f"ETA {clock(interval.eta_seconds)}",
    }
    mean = interval.mean_step_seconds
    if mean and interval.step_seconds > NOTABLY_SLOWER * mean:
        behind = 100 * (interval.step_seconds / mean - 1)
        figures["slowest"] = f"rank {interval.slowest_rank} on {interval.slowest_host} {behind:.0f} % slower"
    return figures


def _fitting(figures: dict[str, str], width: int) -> str:
    """As many as a narrow terminal has room for, the ones that matter most."""
    for name in ("accuracy", "loss", "eta", "slowest", None):
        text = "  ".join(figures.values())
        if len(text) <= width:
            break
        figures.pop(name, None)
    return text


def _describe(evaluation: Evaluation) -> str:
    return (
        f"epoch {evaluation.epoch}: test accuracy {evaluation.accuracy_percent:.2f} %  loss {evaluation.loss:.4f}  "
        f"({evaluation.images:,} images)"
    )


@contextlib.contextmanager
def _losing_output() -> Iterator[None]:
    """A full disk under the log, or a terminal that was closed, is no reason to lose the training."""
    try:
        yield
    except BrokenPipeError:
        raise  # the reader has left (`| head`): end as any other program does
    except OSError:
        pass


def _printable(text: str, stream: TextIO) -> str:
    """A file's name may hold what the stream cannot encode, which must not end the training."""
    encoding = stream.encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)
