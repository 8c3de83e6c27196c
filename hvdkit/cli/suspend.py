"""`hvdkit suspend`: end the pods of a job, and keep the job."""

import click

from hvdkit.cli.target import on_cluster, place_flags

EXAMPLES = """\b
Examples:
  hvdkit suspend train-x7b4k    its ranks save and leave; hvdkit resume goes on
"""


@click.command(epilog=EXAMPLES)
@click.argument("job")
@place_flags
def command(job: str, context: str | None, namespace: str | None) -> int:
    """Suspend a JOB on a cluster: its ranks are asked to save and stop, and their GPUs are free."""
    from hvdkit.cluster.change import set_suspended

    found = on_cluster(job, context, namespace, "suspend")
    changed = set_suspended(found.cluster, found.job, True)
    click.echo(f"{job} is suspended." if changed else f"{job} was suspended already.")
    return 0
