"""`hvdkit bench compare`: faster, slower or no difference, with an exit code for CI."""

import json
from pathlib import Path

import click

from hvdkit.errors import EXIT_FAILED, EXIT_USAGE

FILE = click.Path(path_type=Path)
EXAMPLES = """\b
Examples:
  hvdkit bench compare before/results.json after/results.json
  hvdkit bench compare before after        folders of sweeps
"""


@click.command(epilog=EXAMPLES)
@click.argument("a", type=FILE)
@click.argument("b", type=FILE)
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as JSON.")
def command(a: Path, b: Path, as_json: bool) -> int:
    """Say at which points B is faster or slower than A.

    A permutation test over runs, at a level of 5 % for all points together; sweeps that were run by turns (see
    `hvdkit bench scaling --rounds`) are compared round by round. Exit code 0: not slower at any point of A; 1: slower
    at some point; 2: the results cannot be compared, or not at every point: B has fewer than 5 successful runs at one
    where A has them.
    """
    from hvdkit.bench.compare import NOTABLE, compare, fewest_rounds
    from hvdkit.bench.result_file import find, load
    from hvdkit.bench.verdict import percent

    found = compare(load(find(a)), load(find(b)))
    if as_json:
        click.echo(json.dumps(found.as_json(), indent=2))
    else:
        for point in found.points:
            click.echo(f"{point.point}: {point.answer}; B reaches {percent(point.ratio)} of A (p = {point.p:.3f})")
            if point.answer == "no difference":
                seen = "none could have been seen"
                if point.smallest_difference is not None:
                    seen = f"a difference of {100 * point.smallest_difference:.0f} % would probably have been seen"
                click.echo(f"  {seen}; with this noise, {100 * NOTABLE:.0f} % takes {point.runs_needed} runs a side")
        if not all(point.by_turns for point in found.points):
            unseen = "" if found.machine_compared else ", and nothing here would show it: too few independent processes"
            rounds = f"{fewest_rounds(len(found.points))} rounds by turns"
            click.echo(
                f"note: not compared round by round, which takes {rounds}: an hour in which the machine was slower "
                f"looks like slower code{unseen}"
            )
        for note in found.notes:
            click.echo(f"note: {note}")
        lacks = len(found.unjudged)
        click.echo(found.answer + (f", but B lacks {lacks} point{'s'[: lacks > 1]} of A" if lacks else ""))
    if found.slower:
        return EXIT_FAILED
    return EXIT_USAGE if found.unjudged else 0
