"""What a person sees while a sweep runs: a table that fills, and when it will be done; or a line a run."""

import statistics
from typing import TYPE_CHECKING

from hvdkit.bench.points import Point
from hvdkit.bench.results import Results, Run
from hvdkit.bench.summary import Summary, summarise
from hvdkit.bench.verdict import percent

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

Left = list[tuple[int, Point]]


def eta_seconds(results: Results, left: Left) -> float | None:
    """Seconds that the runs left will take, by those of the same point, else of all; None when nothing is known."""
    known = [run.seconds for run in results.runs]
    if not known:
        return None

    def one(point: Point) -> float:
        same = [run.seconds for run in results.of(point)]
        return statistics.fmean(same or known)

    return sum(one(point) for _, point in left)


class Lines:
    """For logs and pipes: one line a run."""

    def __init__(self, console: "Console") -> None:
        self._console = console

    def before(self, point: Point, repeat: int, results: Results, left: Left) -> None:
        pass

    def after(self, run: Run, results: Results, left: Left) -> None:
        said = f"failed: {run.problem}" if run.problem else f"{run.figures.images_per_second:,.1f} images/s"
        eta = eta_seconds(results, left)
        count = f"{len(left)} run{'' if len(left) == 1 else 's'}"
        then = f"; {count} left, {clock(eta)}" if left and eta is not None else ""
        if run.problem and run.repeat + 1 < results.settings.repeats and run.point not in {point for _, point in left}:
            then = f"; given up for now, the same command tries it again{then}"
        self._console.print(
            f"round {run.repeat + 1}, {run.point}: {said}{then}", markup=False, highlight=False, soft_wrap=True
        )


class Screen:
    """For a terminal: the table of all points, drawn anew when something has changed."""

    def __init__(self, console: "Console") -> None:
        from rich.live import Live

        self._console = console
        # No thread that draws: its share of a core would be taken from what is measured.
        self._live: Live = Live(console=console, auto_refresh=False, transient=True)

    def __enter__(self) -> "Screen":
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def before(self, point: Point, repeat: int, results: Results, left: Left) -> None:
        eta = eta_seconds(results, left)
        when = f", about {clock(eta)} left" if eta is not None else ""
        caption = f"running {point}, round {repeat + 1} of {results.settings.repeats}; {len(left)} runs to go{when}"
        self._live.update(table(results, summarise(results), caption), refresh=True)

    def after(self, run: Run, results: Results, left: Left) -> None:
        if run.problem is not None:
            self._console.print(f"{run.point} failed: {run.problem}", markup=False, highlight=False, soft_wrap=True)


def table(results: Results, summaries: list[Summary], caption: str | None = None) -> "RenderableType":
    """All points with their figures."""
    from rich.table import Table
    from rich.text import Text

    made = Table(
        caption=Text(caption, style="none") if caption else None, caption_justify="left", box=None, pad_edge=False
    )
    for heading, justify in COLUMNS:
        made.add_column(heading, justify=justify, no_wrap=True)
    found = {summary.point: summary for summary in summaries}
    for point in results.settings.points():
        made.add_row(*map(Text, _row(point, found.get(point), results.settings.repeats)))
    return made


COLUMNS = (
    ("engine", "left"),
    ("data", "left"),
    ("workers", "right"),
    ("runs", "right"),
    ("images/s", "right"),
    ("efficiency", "right"),
    ("of ideal", "right"),
    ("waits for data", "right"),
    ("allreduce", "right"),
    ("others", "right"),
)


def _row(point: Point, summary: Summary | None, repeats: int) -> list[str]:
    place = [point.engine, point.data, str(point.workers)]
    if summary is None:
        return [*place, f"0/{repeats}", *[""] * 6]
    runs = f"{summary.done}/{repeats}" + (f", {summary.failed} failed" if summary.failed else "")
    pace = summary.images_per_second
    throughput = "" if pace is None else f"{pace.value:,.1f}"
    if pace is not None and pace.low is not None:
        throughput += f" ({pace.low:,.0f} … {pace.high:,.0f})"
    shares = [summary.shares[part] for part in ("data", "communication", "straggling")]
    return [
        *place,
        runs,
        throughput,
        percent(summary.efficiency) if summary.efficiency and point.workers > 1 else "",
        percent(summary.of_ideal) if summary.of_ideal and point.engine != "ideal" else "",
        *("" if share is None or point.engine == "ideal" else f"{100 * share.value:.0f} %" for share in shares),
    ]


def clock(seconds: float) -> str:
    """`40 s`, `12 min`, `3 h 05 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min"
