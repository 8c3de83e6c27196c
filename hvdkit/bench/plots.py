"""The plots of a report, by matplotlib."""

import io
from collections.abc import Iterator
from typing import TYPE_CHECKING

from hvdkit.bench.colours import LIGHT, SERIES
from hvdkit.bench.points import IDEAL
from hvdkit.bench.results import Results
from hvdkit.bench.statistics import Estimate
from hvdkit.bench.summary import Summary
from hvdkit.errors import EnvironmentProblem

try:
    import matplotlib
    from matplotlib.figure import Figure
except ImportError as error:
    raise EnvironmentProblem(
        f"plots need matplotlib ({error}); run \"pip install 'hvdkit[bench]'\"; results.json is complete without them."
    ) from error

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARKERS = ("o", "s", "^", "D")
UNTOLD = "untold"  # an engine that waits inside the backward pass cannot tell computing from waiting
BAR_PARTS = {
    # name: (in words, colour, hatching)
    "compute": ("computing", "blue", ""),
    UNTOLD: ("computing and waiting, not told apart", "grey", "oo"),
    "data": ("waiting for data", "green", ".."),
    "communication": ("waiting for the allreduce", "orange", "//"),
    "straggling": ("waiting for slower ranks", "purple", "xx"),
    "other": ("between steps", "muted", "--"),
}
MOST_RANKS = 24  # in the plot of ranks: more boxes cannot be read
SETTINGS = {
    "font.family": "sans-serif",
    "font.size": 10,
    "svg.fonttype": "none",  # text stays text: it can be searched, read aloud, and coloured by the page
    "text.color": LIGHT["text"],
    "axes.labelcolor": LIGHT["text"],
    "axes.edgecolor": LIGHT["muted"],
    "xtick.color": LIGHT["text"],
    "ytick.color": LIGHT["text"],
    "grid.color": LIGHT["grid"],
    "hatch.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
}

Series = tuple[str, str, list[Summary]]
"""Its label, its engine, and its points by rising numbers of workers."""

Measured = list[tuple[Results, list[Summary]]]
"""The sweeps of a report, each with its summaries."""


def throughput(measured: Measured) -> Figure:
    """Images a second against workers, with the machine's own limit and perfect scaling."""
    with matplotlib.rc_context(SETTINGS):
        figure, axes = _figure("workers", "images/s")
        _draw_series(axes, measured, "images_per_second", 1)
        first = next((points for _, engine, points in _series(measured) if engine != IDEAL), [])
        if first and first[0].images_per_second:
            baseline = first[0].images_per_second.value / first[0].point.workers
            workers = [summary.point.workers for summary in first]
            axes.plot(
                workers, [baseline * n for n in workers], ":", color=LIGHT["muted"], label="perfect scaling", lw=1.2
            )
        axes.set_ylim(bottom=0)
        _finish(figure, axes, measured)
        return figure


def efficiency(measured: Measured) -> Figure:
    """What each worker brings, in percent of the one that is alone."""
    with matplotlib.rc_context(SETTINGS):
        figure, axes = _figure("workers", "efficiency, %")
        _draw_series(axes, measured, "efficiency", 100)
        axes.axhline(100, linestyle=":", color=LIGHT["muted"], lw=1.2, label="perfect scaling")
        axes.set_ylim(0, max(110, axes.get_ylim()[1]))
        _finish(figure, axes, measured)
        return figure


def breakdown(measured: Measured) -> Figure:
    """Where the time of a step goes, for each point that communicates."""
    rows = [
        (f"{label}, {summary.point.workers} worker{'s'[: summary.point.workers > 1]}", summary)
        for label, engine, points in _series(measured)
        for summary in points
        if engine != IDEAL and summary.done
    ]
    with matplotlib.rc_context(SETTINGS):
        figure, axes = _figure("share of a step, %", "", height=1.4 + 0.42 * len(rows))
        left = [0.0] * len(rows)
        for part, (name, colour, hatch) in BAR_PARTS.items():
            widths = [100 * _bar(summary, part) for _, summary in rows]
            if part == UNTOLD and not any(widths):
                continue
            axes.barh(
                range(len(rows)),
                widths,
                left=left,
                label=name,
                color=LIGHT[colour],
                hatch=hatch,
                edgecolor=LIGHT["page"],
                height=0.7,
            )
            left = [before + width for before, width in zip(left, widths, strict=True)]
        axes.set_yticks(range(len(rows)), [name for name, _ in rows])
        axes.invert_yaxis()
        axes.set_xlim(0, 100)
        axes.grid(axis="x")
        _legend_below(figure, axes)
        return figure


def _bar(summary: Summary, part: str) -> float:
    """The share of a part, 0 where it is not known."""
    untold = summary.shares["communication"] is None
    if part in ("compute", UNTOLD):
        share = summary.shares["compute"] if untold == (part == UNTOLD) else None
    else:
        share = summary.shares[part]
    return 0.0 if share is None else max(0.0, share.value)


def ranks(measured: Measured) -> Figure:
    """Each rank's own work a step at the largest point of each series: the spread over steps of all runs."""
    boxes = [box for results, summaries in measured for box in _rank_boxes(results, summaries, len(measured) > 1)]
    with matplotlib.rc_context(SETTINGS):
        figure, axes = _figure("own work a step, ms", "", height=1.2 + 0.3 * len(boxes))
        colour = LIGHT["blue"]
        axes.bxp(
            boxes,
            orientation="horizontal",
            showfliers=False,
            widths=0.6,
            patch_artist=True,
            boxprops={"facecolor": LIGHT["panel"], "edgecolor": colour},
            medianprops={"color": LIGHT["orange"], "linewidth": 2},
            whiskerprops={"color": colour},
            capprops={"color": colour},
        )
        axes.invert_yaxis()
        axes.set_xlim(left=0)
        axes.grid(axis="x")
        return figure


PLOTS = {"throughput": throughput, "efficiency": efficiency, "breakdown": breakdown, "ranks": ranks}


def draw(name: str, measured: Measured) -> tuple[str, bytes]:
    """A plot as SVG text and as PNG."""
    figure = PLOTS[name](measured)
    svg, png = io.StringIO(), io.BytesIO()
    # With a salt the names inside are the same in every run.
    with matplotlib.rc_context({"svg.hashsalt": "hvdkit", "svg.fonttype": "none"}):
        figure.savefig(svg, format="svg", bbox_inches="tight", facecolor=LIGHT["page"], metadata={"Date": None})
    figure.savefig(
        png, format="png", bbox_inches="tight", facecolor=LIGHT["page"], dpi=150, metadata={"Software": None}
    )
    return svg.getvalue(), png.getvalue()


def _figure(x_label: str, y_label: str, height: float = 4.0) -> tuple[Figure, "Axes"]:
    figure = Figure(figsize=(7.2, height))
    axes = figure.add_subplot()
    axes.set_axisbelow(True)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    return figure, axes


def _series(measured: Measured) -> Iterator[Series]:
    for results, summaries in measured:
        prefix = f"{results.name}: " if len(measured) > 1 else ""
        places = dict.fromkeys((summary.point.engine, summary.point.data) for summary in summaries)
        for engine, data in places:
            points = [summary for summary in summaries if (summary.point.engine, summary.point.data) == (engine, data)]
            name = "independent processes" if engine == IDEAL else engine
            several = len(results.settings.data) > 1
            yield f"{prefix}{name}{f', {data}' if several else ''}", engine, points


def _draw_series(axes: "Axes", measured: Measured, field: str, factor: float) -> None:
    drawn = 0
    series = list(_series(measured))
    counts = _counts(measured)
    for number, (label, engine, points) in enumerate(series):
        place = number - (len(series) - 1) / 2
        estimates = [(summary.point.workers, getattr(summary, field)) for summary in points]
        estimates = [(workers, estimate.scaled(factor)) for workers, estimate in estimates if estimate is not None]
        if not estimates:
            continue
        colour = LIGHT["grey"] if engine == IDEAL else LIGHT[SERIES[drawn % len(SERIES)]]
        marker = "x" if engine == IDEAL else MARKERS[(drawn + drawn // len(SERIES)) % len(MARKERS)]
        drawn += engine != IDEAL
        axes.errorbar(
            [_aside(workers, place, counts) for workers, _ in estimates],
            [estimate.value for _, estimate in estimates],
            yerr=_reach([estimate for _, estimate in estimates]),
            label=label,
            color=colour,
            marker=marker,
            linestyle="--" if engine == IDEAL else "-",
            capsize=4,
            lw=1.8,
            zorder=2 + number / 100,
        )


def _counts(measured: Measured) -> list[int]:
    return sorted({summary.point.workers for _, summaries in measured for summary in summaries})


def _many(counts: list[int]) -> bool:
    """Whether the axis of workers has to double instead of count."""
    return bool(counts) and counts[-1] > 8 * counts[0]


def _aside(workers: int, place: float, counts: list[int]) -> float:
    """Series stand side by side, so that their intervals do not hide each other."""
    return workers * 1.02**place if _many(counts) else workers + 0.008 * counts[-1] * place


def _reach(estimates: list[Estimate]) -> list[list[float]]:
    below = [0.0 if estimate.low is None else estimate.value - estimate.low for estimate in estimates]
    above = [0.0 if estimate.high is None else estimate.high - estimate.value for estimate in estimates]
    return [below, above]


def _finish(figure: Figure, axes: "Axes", measured: Measured) -> None:
    workers = _counts(measured)
    if _many(workers):
        axes.set_xscale("log", base=2)
    axes.set_xticks(workers, [str(number) for number in workers])
    axes.minorticks_off()
    axes.grid()
    _legend_below(figure, axes)


def _legend_below(figure: Figure, axes: "Axes") -> None:
    """Where it hides no line; a fixed distance below the axes, whatever their height."""
    below = -0.55 / (figure.get_figheight() * axes.get_position().height)
    axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, below), ncols=2)


def _rank_boxes(results: Results, summaries: list[Summary], several: bool) -> Iterator[dict]:
    """Quartiles and the 5th and 95th percentile of each rank, in milliseconds."""
    largest = {}
    for summary in summaries:
        if summary.point.engine != IDEAL and summary.done:
            largest[summary.point.engine, summary.point.data] = summary
    for summary in largest.values():
        runs = [run for run in results.of(summary.point) if run.problem is None]
        order = sorted(range(summary.point.ranks), key=lambda rank: summary.own_seconds[rank], reverse=True)
        chosen = sorted(order[:MOST_RANKS])  # the slowest ones, where there are too many
        for rank in chosen:
            steps = sorted(
                1000 * seconds for run in runs for seconds in run.ranks[rank]["seconds"]["own"][run.warmup :]
            )
            low, first, median, third, high = (
                steps[int(share * (len(steps) - 1))] for share in (0.05, 0.25, 0.5, 0.75, 0.95)
            )
            place = f"{results.name}: " if several else ""
            data = f", {summary.point.data}" if len(results.settings.data) > 1 else ""
            known = "" if summary.shares["communication"] else " (forward pass)"
            label = f"{place}{summary.point.engine}{known}{data}, rank {rank}"
            yield {"label": label, "whislo": low, "q1": first, "med": median, "q3": third, "whishi": high}
