"""`hvdkit why`: why a job failed or does not start, and what to do."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from hvdkit.cli.target import OnCluster, find, newest, open_cluster, place_flags
from hvdkit.errors import InputError

if TYPE_CHECKING:
    from hvdkit.cluster.api import Cluster
    from hvdkit.cluster.why_facts import Answer
    from hvdkit.local.record import LocalRun

EXAMPLES = """\b
Examples:
  hvdkit why                   the newest job
  hvdkit why train-x7b4k       cause, evidence, what to do
  hvdkit why train-x7b4k --json
"""


@click.command(epilog=EXAMPLES)
@click.argument("job", required=False)
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@place_flags
def command(job: str | None, as_json: bool, context: str | None, namespace: str | None) -> int:
    """Say why a JOB failed or does not start: conditions, pods, events and the first failing rank in one answer."""
    if job:
        name, answer = job, answer_for(job, context, namespace)
    else:
        found = newest(context, namespace)
        name, answer = found.job.name if isinstance(found, OnCluster) else found.name, answer_of(found)
    if as_json:
        click.echo(json.dumps({"version": 1, "name": name, **asdict(answer)}, indent=2))
        return 0
    click.echo(f"{name}: {answer.cause}")
    for line in answer.evidence:
        click.echo(f"  {line}")
    if answer.what_to_do:
        click.echo(f"  -> {answer.what_to_do}")
    return 0


def answer_for(name: str, context: str | None, namespace: str | None) -> "Answer":
    """The answer, for a run on this machine or a job on a cluster, also one whose object is gone."""
    try:
        found = find(name, context, namespace)
    except InputError:
        from hvdkit.cluster.connection import configured

        if not configured():
            raise
        return of_job(open_cluster(context, namespace), name)
    return answer_of(found)


def answer_of(found: "LocalRun | OnCluster") -> "Answer":
    """The answer for what was found."""
    return of_job(found.cluster, found.job.name) if isinstance(found, OnCluster) else of_run(found)


def of_job(cluster: "Cluster", name: str) -> "Answer":
    """The answer for a job on a cluster."""
    from hvdkit.cluster.gather import facts_of
    from hvdkit.cluster.why import explain

    return explain(facts_of(cluster, name))


def of_run(run: "LocalRun") -> "Answer":
    """The answer for a run on this machine: its record has it."""
    from hvdkit.cluster.why_facts import Answer, tail_lines
    from hvdkit.local.record import state_of

    found = state_of(run)
    if found.phase == "Running":
        return Answer(cause=f"the run has not failed: it is Running as process {run.pid}.")
    if found.phase == "Succeeded":
        return Answer(cause=f"nothing is wrong: the run '{run.name}' succeeded.")
    rank = f" --rank {run.rank}" if run.rank is not None else ""
    kept = (run.place / "logs").is_dir()
    where = f"`hvdkit logs {run.name}{rank}` has the whole log." if kept else "its --log-dir has the whole log."
    return Answer(
        trouble="lost" if run.ended is None else "rank",
        cause=f"{found.message.rstrip('.')}; exit code {found.exit_code}.",
        evidence=tail_lines(run.tail),
        what_to_do=where,
    )
