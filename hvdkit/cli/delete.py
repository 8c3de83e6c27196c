"""`hvdkit delete`: end jobs and remove everything that was made for them."""

from typing import TYPE_CHECKING

import click

from hvdkit.cli.target import OnCluster, find, open_cluster, place_flags
from hvdkit.errors import InputError

if TYPE_CHECKING:
    from hvdkit.local.record import LocalRun

EXAMPLES = """\b
Examples:
  hvdkit delete train-x7b4k            its pods get --grace seconds to save
  hvdkit delete a b c                  several
  hvdkit delete --all                  every job of the namespace
  hvdkit delete --all --finished       those that have ended
"""


@click.command(epilog=EXAMPLES)
@click.argument("jobs", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All jobs of hvdkit in the namespace.")
@click.option("--finished", is_flag=True, help="With --all: only those that have ended.")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Return when the pods have gone.")
@click.option("--timeout", type=click.IntRange(min=1), default=120, show_default=True, help="Seconds to wait.")
@place_flags
def command(
    jobs: tuple[str, ...],
    everything: bool,
    finished: bool,
    wait: bool,
    timeout: int,
    context: str | None,
    namespace: str | None,
) -> int:
    """Delete JOBS, running or not; a run on this machine is asked to stop, and its record goes."""
    if bool(jobs) == everything:
        raise InputError("delete: name the jobs, or give --all.")
    if finished and not everything:
        raise InputError("--finished: it belongs to --all.")
    if everything:
        return delete_all(finished=finished, wait=wait, timeout=timeout, context=context, namespace=namespace)
    for name in jobs:
        delete_one(name, wait=wait, timeout=timeout, context=context, namespace=namespace)
    return 0


def delete_one(name: str, *, wait: bool, timeout: int, context: str | None, namespace: str | None) -> None:
    """One job by its name."""
    from hvdkit.cluster.delete import delete, delete_remains, wait_until_gone

    try:
        found = find(name, context, namespace)
    except InputError as error:
        from hvdkit.cluster.connection import configured

        if not configured() or "was not made by hvdkit" in str(error):
            raise
        count = delete_remains(open_cluster(context, namespace), name)
        click.echo(f"{name}: the job itself was gone; {count} objects that it had left are deleted.")
        return
    if not isinstance(found, OnCluster):
        delete_run(found, timeout)
        return
    delete(found.cluster, found.job)
    if wait:
        wait_until_gone(found.cluster, found.job, timeout)
    click.echo(f"{name} deleted.")


def delete_all(*, finished: bool, wait: bool, timeout: int, context: str | None, namespace: str | None) -> int:
    """Every job of the namespace; runs on this machine are named one by one."""
    from hvdkit.cluster.delete import delete, wait_until_gone
    from hvdkit.cluster.job import all_jobs

    cluster = open_cluster(context, namespace)
    chosen = [job for job, found in all_jobs(cluster) if found.finished or not finished]
    for job in chosen:
        delete(cluster, job)
    for job in chosen:
        if wait:
            wait_until_gone(cluster, job, timeout)
        click.echo(f"{job.name} deleted.")
    if not chosen:
        click.echo(f"there is nothing to delete in namespace {cluster.namespace}.")
    return 0


def delete_run(run: "LocalRun", timeout: int) -> None:
    """Stop a run on this machine, and forget it."""
    from hvdkit.local.record import forget, stop

    if run.alive:
        stop(run, timeout)
    forget(run)
    click.echo(f"{run.name} deleted.")
