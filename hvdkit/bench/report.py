"""The report of one sweep or several: a page that needs nothing but itself, and its plots as files."""

import re
from html import escape
from pathlib import Path

from hvdkit.bench import plots
from hvdkit.bench.colours import as_variables, css
from hvdkit.bench.compare import compare
from hvdkit.bench.points import FEWEST_REPEATS, IDEAL
from hvdkit.bench.report_tables import (
    comparison_table,
    environment_table,
    failures_list,
    points_tables,
    verdict_section,
)
from hvdkit.bench.results import Results
from hvdkit.bench.statistics import LEVEL
from hvdkit.bench.summary import summarise
from hvdkit.bench.verdict import NOTABLE
from hvdkit.errors import InputError

CAPTIONS = {
    "throughput": "Throughput against workers. Bars: 95 % interval over runs. Dashed: as many independent processes "
    "that do not communicate, the limit of the machine itself. Dotted: perfect scaling.",
    "efficiency": "What each worker brings, in percent of one that is alone. What the dashed line loses, the machine "
    "takes; only the gap between the lines is the price of working together.",
    "breakdown": "Where the time of a step goes, mean over ranks. The least wait for the allreduce in each step is "
    "communication; what other ranks wait longer, they wait for slower ones. DDP waits inside its backward pass and "
    "cannot tell.",
    "ranks": "Each rank's own work a step at the largest point: middle half (box), median (line), 5th and 95th "
    "percentile (whiskers) over the steps of all runs. A rank to the right of the others holds them up.",
}
STYLE = """
body { background: var(--page); color: var(--text); font: 16px/1.5 system-ui, sans-serif; margin: 0 auto;
  max-width: 64rem; padding: 1.5rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.25rem; margin-top: 2.5rem; }
p.facts, figcaption, td.note { color: var(--muted); font-size: .9rem; }
figure { margin: 1.5rem 0; } svg { max-width: 100%; height: auto; }
div.wide { margin: 1rem 0; overflow-x: auto; } table { border-collapse: collapse; font-size: .85rem; }
caption { color: var(--muted); padding: .3rem .6rem; text-align: left; }
th, td { border-bottom: 1px solid var(--grid); padding: .3rem .5rem; text-align: left; vertical-align: top; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
td.number span { white-space: nowrap; } td.number span + span { color: var(--muted); display: block; }
section.verdict { background: var(--panel); border-left: 4px solid var(--blue); margin: 1rem 0; padding: .6rem 1rem; }
section.limited { border-color: var(--orange); }
"""
# Nothing is loaded from anywhere, and nothing on the page runs.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def write_report(all_results: list[Results], folder: Path) -> list[Path]:
    """Write report.html and plots/ into the folder; returns the files."""
    measured = [(results, summarise(results)) for results in all_results]
    if not any(summary.done for _, summaries in measured for summary in summaries if summary.point.engine != IDEAL):
        raise InputError("there is no successful run to report on; `hvdkit bench scaling` says why they failed.")
    drawn = {name: plots.draw(name, measured) for name in plots.PLOTS}
    paths = [folder / "report.html"]
    try:
        (folder / "plots").mkdir(parents=True, exist_ok=True)
        paths[0].write_text(page(measured, {name: svg for name, (svg, _) in drawn.items()}), encoding="utf-8")
        for name, (svg, png) in drawn.items():
            for kind, data in (("svg", svg.encode()), ("png", png)):
                path = folder / "plots" / f"{name}.{kind}"
                path.write_bytes(data)
                paths.append(path)
    except OSError as error:
        raise InputError(f"--output: {error.filename} cannot be written: {error.strerror}.") from None
    return paths


def page(measured: plots.Measured, svgs: dict[str, str]) -> str:
    """The whole HTML page."""
    names = [results.name or results.settings.model for results, _ in measured]
    title = f"Scaling: {', '.join(names)}"
    body = [f"<h1>{escape(title)}</h1>"]
    for results, _ in measured:
        body.append(_facts(results))
    body.append("<h2>What limits it</h2>")
    body += [verdict_section(results, several=len(measured) > 1) for results, _ in measured]
    if len(measured) > 1:
        body.append("<h2>Compared</h2>")
        body += [_comparison(measured[0][0], other) for other, _ in measured[1:]]
    body.append("<h2>Plots</h2>")
    body += [_figure(name, svg) for name, svg in svgs.items()]
    body.append("<h2>Figures</h2>")
    for results, summaries in measured:
        body.append(points_tables(results, summaries, several=len(measured) > 1))
        body.append(failures_list(results))
    body.append("<h2>How it was measured</h2>")
    body += [_method(results) + environment_table(results) for results, _ in measured]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        f"<title>{escape(title)}</title>\n<style>\n{css()}\n{STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(body)
        + "\n</main>\n</body>\n</html>\n"
    )


def _facts(results: Results) -> str:
    settings = results.settings
    facts = [
        f"{settings.model}, batch {settings.batch_size} {'a rank' if settings.mode == 'weak' else 'for the world'}",
        f"{settings.mode} scaling",
        f"backend {settings.backend}",
        f"{settings.threads} thread{'s'[: settings.threads > 1]} a rank",
        results.created.replace("T", " ").replace("Z", " UTC"),
    ]
    name = f"<strong>{escape(results.name)}</strong>: " if results.name else ""
    return f'<p class="facts">{name}{escape("; ".join(facts))}</p>'


def _figure(name: str, svg: str) -> str:
    """The SVG as part of the page, in the page's colours, with a name for those who cannot see it."""
    inline = as_variables(svg[svg.index("<svg") :])
    # Matplotlib gives the same names in every plot; on one page they must differ.
    inline = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", inline)
    inline = inline.replace("<svg ", f'<svg role="img" aria-labelledby="caption-{name}" ', 1)
    caption = f'<figcaption id="caption-{name}">{escape(CAPTIONS[name])}</figcaption>'
    return f'<figure id="{name}">\n{inline}\n{caption}\n</figure>'


def _comparison(a: Results, b: Results) -> str:
    heading = f"<h3>{escape(b.name)} against {escape(a.name)}</h3>"
    try:
        return heading + comparison_table(compare(a, b))
    except InputError as error:
        return heading + f"<p>Not comparable: {escape(str(error))}</p>"


def _method(results: Results) -> str:
    settings = results.settings
    return (
        f"<p>Every point was run {settings.repeats} times, in rounds that run all points; of {settings.steps} steps of "
        f"a run the first {settings.warmup_steps} do not count. The clock is that of the slowest rank. A figure is the "
        "mean over runs (geometric for throughput and ratios) with Student's 95 % interval; ratios are taken within "
        f"rounds. A cause is named when its share of a step's time is above {NOTABLE:.0%} with that confidence, from "
        f"{FEWEST_REPEATS} runs or more. Comparisons are permutation tests at a level of {LEVEL:.0%} for all points "
        "together.</p>"
    )
