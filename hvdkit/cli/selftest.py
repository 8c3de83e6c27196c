"""`hvdkit selftest`: are collectives correct here, how fast, and which library does them."""

from typing import TYPE_CHECKING

import click

from hvdkit.jobs.spec import CONTROLLERS

if TYPE_CHECKING:
    from hvdkit.checks.selftest import SelfTest

EXAMPLES = """\b
Examples:
  hvdkit selftest                                  2 ranks over MPI
  hvdkit selftest --workers 4 --controller gloo    4 ranks, without MPI
  hvdkit selftest --json                           for machines
"""


@click.command(epilog=EXAMPLES)
@click.option("--workers", "-w", type=int, default=2, show_default=True, help="Ranks to start on this machine.")
@click.option(
    "--controller",
    type=click.Choice(CONTROLLERS),
    default="mpi",
    show_default=True,
    help="How the ranks find each other.",
)
@click.option("--json", "as_json", is_flag=True, help="The result as JSON.")
def command(workers: int, controller: str, as_json: bool) -> int:
    """Run real collectives on this machine: correct, how fast, by which library.

    Exit code 1 when a result is wrong or another library than the expected one did the work.
    """
    from hvdkit.checks.selftest import selftest

    if not as_json:
        click.echo(f"starting {workers} rank{'' if workers == 1 else 's'} over {controller} ...", err=True)
    result = selftest(workers, controller)
    click.echo(result.to_json() if as_json else describe(result))
    return int(bool(result.wrong))


def describe(result: "SelfTest") -> str:
    """The result for people."""
    lines = [f"{result.ranks} ranks on {result.hosts} host{'' if result.hosts == 1 else 's'}, {result.device}"]
    for operation in result.operations:
        failures = [text for text in result.wrong if text.startswith(operation)]
        lines.append(f"{operation:<10} {'WRONG' if failures else 'correct on every rank'}")
    done_by = ", ".join(
        f"{name} ({count} allreduces in Horovod's timeline)" for name, count in result.libraries.items()
    )
    lines.append(f"{'reduced by':<10} {done_by or 'unknown'}")
    lines += ["", "allreduce of      time     algorithm           bus"]
    for row in result.bandwidth:
        lines.append(
            f"{_size(row['bytes']):>12}  {1000 * row['seconds']:>5.2f} ms  "
            f"{row['algorithm_bytes_per_second'] / 1e9:>7.3f} GB/s  {row['bus_bytes_per_second'] / 1e9:>7.3f} GB/s"
        )
    lines.append("")
    lines += [f"wrong: {text}" for text in result.wrong] or ["all correct."]
    return "\n".join(lines)


def _size(count: float) -> str:
    return f"{count / (1 << 20):.0f} MiB" if count >= 1 << 20 else f"{count / (1 << 10):.0f} KiB"
