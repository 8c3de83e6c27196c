"""`hvdkit list`: all jobs."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from hvdkit.cli.table import age, duration, show_table
from hvdkit.cli.target import open_cluster, place_flags

if TYPE_CHECKING:
    from hvdkit.jobs.state import JobState

EXAMPLES = """\b
Examples:
  hvdkit list                  runs on this machine and jobs of the namespace
  hvdkit list -n team-a        jobs of another namespace only
  hvdkit list --json           for programs
"""


# Reasons for which a job has not succeeded, and that are no fault of it.
ENDED_AS_ASKED = ("Stopped", "Interrupted")


@click.command(epilog=EXAMPLES)
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@place_flags
def command(as_json: bool, context: str | None, namespace: str | None) -> int:
    """List the runs on this machine and hvdkit's jobs on the cluster, oldest first."""
    from hvdkit.cluster.connection import configured

    known: list[dict[str, Any]] = []
    if context is None and namespace is None:
        from hvdkit.local.record import all_runs, state_of

        known += [described(run.name, run.backend, run.machine, run.started, state_of(run)) for run in all_runs()]
    if configured() or context is not None or namespace is not None:
        from hvdkit.cluster.job import all_jobs

        try:
            cluster = open_cluster(context, namespace)
            for job, found in all_jobs(cluster):
                made = job.main["metadata"].get("creationTimestamp")
                known.append(described(job.name, job.backend, cluster.namespace, made, found))
        except Exception:
            show(known, as_json=as_json)  # what is here does not depend on a cluster that does not answer
            raise
    show(known, as_json=as_json)
    return 0


def described(name: str, backend: str, place: str, made: str | None, found: "JobState") -> dict[str, Any]:
    """One job."""
    return {"name": name, "backend": backend, "place": place, "created": made, **asdict(found)}


def show(known: list[dict[str, Any]], *, as_json: bool) -> None:
    """All of them."""
    if as_json:
        click.echo(json.dumps({"version": 1, "jobs": known}, indent=2))
        return
    if not known:
        click.echo("there is no job; `hvdkit launch` starts one.")
        return
    rows = [
        (
            job["name"],
            job["backend"],
            job["place"],
            job["reason"] if job["reason"] in ENDED_AS_ASKED else job["phase"],
            f"{job['ready']}/{job['workers']}",
            age(job["created"]),
            "-" if job["reason"] == "Lost" else duration(job["started"], job["ended"]),
        )
        for job in known
    ]
    show_table(("NAME", "BACKEND", "WHERE", "PHASE", "WORKERS", "AGE", "RAN FOR"), rows)
