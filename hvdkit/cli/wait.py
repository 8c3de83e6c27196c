"""`hvdkit wait`: return when a job has ended, with its exit code."""

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hvdkit.cli.target import OnCluster, find, place_flags
from hvdkit.errors import EnvironmentProblem

if TYPE_CHECKING:
    from hvdkit.jobs.state import JobState
    from hvdkit.local.record import LocalRun

EXAMPLES = """\b
Examples:
  hvdkit wait train-x7b4k                   exit code = the job's
  hvdkit wait train-x7b4k --timeout 3600    at most an hour, else exit code 3
  hvdkit wait train-x7b4k --save-logs logs/ and keep the logs of its pods
"""


@click.command(epilog=EXAMPLES)
@click.argument("job")
@click.option("--timeout", type=click.IntRange(min=1), help="Seconds to wait at most.")
@click.option("--save-logs", type=click.Path(path_type=Path), metavar="DIR", help="Collect the logs of all pods here.")
@place_flags
def command(job: str, timeout: int | None, save_logs: Path | None, context: str | None, namespace: str | None) -> int:
    """Wait until JOB has ended; the exit code is the job's."""
    from hvdkit.cluster.follow import exit_code_of, state_line

    found = find(job, context, namespace)
    ended = of_cluster(found, timeout, save_logs) if isinstance(found, OnCluster) else of_run(found, timeout)
    click.echo(f"{job}: {state_line(ended)}")
    return exit_code_of(ended)


def of_cluster(found: OnCluster, timeout: int | None, save_logs: Path | None) -> "JobState":
    """The end of a job on a cluster."""
    from hvdkit.cluster.follow import Follower

    follower = Follower(found.cluster, found.job, printer=None, save_logs=save_logs)
    ended = follower.to_end(timeout=timeout)
    if not ended.finished:
        raise still_running(found.job.name, timeout)
    return ended


def of_run(run: "LocalRun", timeout: int | None) -> "JobState":
    """The end of a run on this machine."""
    from hvdkit.local.record import find_run, state_of

    end = time.monotonic() + (timeout or float("inf"))
    while run.alive:
        if time.monotonic() > end:
            raise still_running(run.name, timeout)
        time.sleep(0.2)
        run = find_run(run.name) or run
    return state_of(run)


def still_running(name: str, timeout: int | None) -> EnvironmentProblem:
    return EnvironmentProblem(f"--timeout: '{name}' has not ended within {timeout} s; it goes on.")
