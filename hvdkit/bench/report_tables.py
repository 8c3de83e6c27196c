"""The tables and texts of a report, as HTML."""

from collections.abc import Iterable
from html import escape

from hvdkit.bench.compare import Comparison
from hvdkit.bench.points import IDEAL
from hvdkit.bench.results import Results
from hvdkit.bench.samples import PARTS
from hvdkit.bench.statistics import Estimate
from hvdkit.bench.summary import Summary
from hvdkit.bench.verdict import diagnose, percent

PART_HEADINGS = ("computing", "data", "allreduce", "slower ranks", "between steps")


def table(headings: Iterable[str], rows: Iterable[Iterable[str]], *, words: int, caption: str) -> str:
    """An HTML table; the first `words` columns are text, the others numbers."""

    def cells(tag: str, values: Iterable[str]) -> str:
        made = []
        for number, value in enumerate(values):
            scope = ' scope="col"' if tag == "th" else ""
            if number < words:
                made.append(f"<{tag}{scope}>{escape(value)}</{tag}>")
            else:
                made.append(f'<{tag}{scope} class="number">{_breakable(value)}</{tag}>')
        return f"<tr>{''.join(made)}</tr>"

    body = "\n".join(cells("td", row) for row in rows)
    return (
        f'<div class="wide"><table>\n<caption>{escape(caption)}</caption>\n<thead>{cells("th", headings)}</thead>\n'
        f"<tbody>\n{body}\n</tbody></table></div>"
    )


def _breakable(value: str) -> str:
    """A figure and, in brackets, its interval, which may go to the next line but stays whole."""
    figure, bracket, interval = value.partition(" (")
    return f"<span>{escape(figure)}</span>" + (f" <span>({escape(interval)}</span>" if bracket else "")


def points_tables(results: Results, summaries: list[Summary], *, several: bool) -> str:
    """Every point with all its figures: two tables, since one would be wider than a page."""
    name = f"{results.name}: " if several else ""
    point = ["engine", "data", "workers"]
    speed = [*point, "runs", "images/s", "step, ms", "speed-up", "efficiency", "of ideal", "jitter"]
    parts = [*point, *PART_HEADINGS, "cores used", "memory a rank"]
    return "\n".join(
        table(headings, [[*_point(summary), *row(summary)] for summary in summaries], words=2, caption=name + caption)
        for headings, row, caption in (
            (speed, _speed, "mean over runs and 95 % interval"),
            (parts, _parts, "shares of a step and 95 % interval; use of the machine"),
        )
    )


def _point(summary: Summary) -> list[str]:
    point = summary.point
    return ["independent processes" if point.engine == IDEAL else point.engine, point.data, str(point.workers)]


def _speed(summary: Summary) -> list[str]:
    step = summary.step_seconds and summary.step_seconds.scaled(1000)
    return [
        str(summary.done) + (f" ({summary.failed} failed)" if summary.failed else ""),
        number(summary.images_per_second),
        number(step),
        number(summary.speedup),
        _percent(summary.efficiency),
        "" if summary.point.engine == IDEAL else _percent(summary.of_ideal),
        _percent(summary.jitter),
    ]


def _parts(summary: Summary) -> list[str]:
    memory = summary.peak_memory_bytes
    return [
        *(_share(summary, part) for part in PARTS),
        "" if summary.cores_used is None else f"{summary.cores_used:.2f}",
        "" if memory is None else f"{memory / 2**20:,.0f} MiB",
    ]


def _share(summary: Summary, part: str) -> str:
    text = _percent(summary.shares[part])
    # An engine that waits inside the backward pass cannot tell computing from waiting.
    return f"{text}, with waits" if part == "compute" and summary.done and not summary.shares["communication"] else text


def number(estimate: Estimate | None) -> str:
    """Three digits that matter, with the interval."""
    if estimate is None:
        return ""
    digits = 0 if estimate.value >= 100 else 1 if estimate.value >= 10 else 2
    text = f"{estimate.value:,.{digits}f}"
    return text if estimate.low is None else f"{text} ({estimate.low:,.{digits}f} … {estimate.high:,.{digits}f})"


def _percent(estimate: Estimate | None) -> str:
    return "" if estimate is None else percent(estimate)


def verdict_section(results: Results, *, several: bool) -> str:
    """The judgements, each with its evidence and what to try."""
    made = []
    for judgement in diagnose(results).judgements:
        name = f"{escape(results.name)}: " if several else ""
        items = [
            f"<li><strong>{escape(finding.cause)}</strong>: {escape('; '.join(finding.evidence))}. "
            f"Try: {escape(finding.advice)}.</li>"
            for finding in judgement.limits
        ]
        kind = "verdict limited" if judgement.limits else "verdict"
        causes = f"<ul>{''.join(items)}</ul>" if items else ""
        made.append(f'<section class="{kind}"><p>{name}{escape(judgement.text)}</p>{causes}</section>')
    return "\n".join(made)


def comparison_table(comparison: Comparison) -> str:
    """Each point that both have."""
    rows = [
        [str(found.point), found.answer, percent(found.ratio), f"{found.p:.3f}", _seen(found.smallest_difference)]
        for found in comparison.points
    ]
    headings = ["point", "answer", "throughput of A", "p", "difference that would have been seen"]
    notes = "".join(f"<li>{escape(note)}</li>" for note in comparison.notes)
    made = table(headings, rows, words=2, caption="B against A, permutation test over runs")
    return made + (f"<ul>{notes}</ul>" if notes else "")


def _seen(difference: float | None) -> str:
    return "none" if difference is None else f"{difference:.0%}"  # so few runs can show none at so many points


def failures_list(results: Results) -> str:
    """What failed, and why."""
    failed = [run for run in results.runs if run.problem is not None]
    items = [f"<li>{escape(str(run.point))}, round {run.repeat + 1}: {escape(run.problem)}</li>" for run in failed]
    return f"<h3>Failed runs</h3>\n<ul>{''.join(items)}</ul>" if items else ""


def environment_table(results: Results) -> str:
    """The machine and the flags."""
    facts = dict(results.environment)
    rows = [[name, str(value)] for name, value in facts.pop("versions", {}).items()]
    facts["memory"] = f"{facts.pop('memory_bytes', 0) / 2**30:.1f} GiB"
    rows = [[name, str(value)] for name, value in facts.items()] + rows
    for name, value in results.settings.as_json().items():
        text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
        rows.append([f"--{name.replace('_', '-')}", text])
    caption = f"Machine, versions and flags of {results.name or 'the sweep'}"
    return table(["what", "value"], rows, words=2, caption=caption)
