"""`hvdkit resume`: start a suspended job."""

import click

from hvdkit.cli.target import on_cluster, place_flags

EXAMPLES = """\b
Examples:
  hvdkit resume train-x7b4k    after hvdkit suspend, or launch --suspend
"""


@click.command(epilog=EXAMPLES)
@click.argument("job")
@place_flags
def command(job: str, context: str | None, namespace: str | None) -> int:
    """Resume a suspended JOB on a cluster; it goes on from its checkpoint."""
    from hvdkit.cluster.change import set_suspended

    found = on_cluster(job, context, namespace, "resume")
    changed = set_suspended(found.cluster, found.job, False)
    click.echo(f"{job} is resumed." if changed else f"{job} was not suspended.")
    return 0
