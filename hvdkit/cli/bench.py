"""`hvdkit bench`: how it scales, and why not better. Each command is a file `bench_<name>.py` beside this one."""

import click

from hvdkit.cli import LazyCommands

# The one-line help stands here, so that `hvdkit bench --help` imports none of them.
COMMANDS = {
    "scaling": "Measure throughput and efficiency from 1 to N workers, and say what limits them.",
    "report": "Make an HTML page and plots of recorded results.",
    "allreduce": "Measure allreduces on this machine, by library and size.",
    "project": "Project efficiency to more GPUs.",
    "compare": "Say whether B is faster or slower than A; exit code 1 when it is slower.",
}

EXAMPLES = """\b
Examples:
  hvdkit bench scaling --workers 1,2,4
  hvdkit bench report scaling/results.json
  hvdkit bench compare before/results.json after/results.json
"""


class BenchCommands(LazyCommands):
    """Commands that live in `hvdkit.cli.bench_<name>`."""

    commands_help = COMMANDS
    module = "hvdkit.cli.bench_{name}"


@click.group(cls=BenchCommands, epilog=EXAMPLES)
def command() -> None:
    """Benchmarks with honest figures: repeated runs, every rank's times, 95 % intervals, and the cause."""
