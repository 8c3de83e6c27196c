"""`hvdkit scale`: another number of workers for an elastic job."""

import click

from hvdkit.cli.target import on_cluster, place_flags

EXAMPLES = """\b
Examples:
  hvdkit scale train-x7b4k --workers 6    of a job with --min-workers and --max-workers
"""


@click.command(epilog=EXAMPLES)
@click.argument("job")
@click.option("--workers", "-w", type=click.IntRange(min=1), required=True, help="Workers from now on.")
@place_flags
def command(job: str, workers: int, context: str | None, namespace: str | None) -> int:
    """Give an elastic JOB on a cluster another number of workers; training goes on."""
    from hvdkit.cluster.change import scale

    found = on_cluster(job, context, namespace, "scale")
    before = scale(found.cluster, found.job, workers)
    click.echo(f"{job}: {before} -> {workers} workers." if before != workers else f"{job} has {workers} workers.")
    return 0
