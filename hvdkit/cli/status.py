"""`hvdkit status`: where a job stands."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from hvdkit.cli.table import duration, show_table
from hvdkit.cli.target import OnCluster, find, newest, place_flags

if TYPE_CHECKING:
    from hvdkit.cluster.live import Moment
    from hvdkit.jobs.state import JobState
    from hvdkit.local.record import LocalRun

EXAMPLES = """\b
Examples:
  hvdkit status                     the newest job
  hvdkit status train-x7b4k         phase, pods, and what they wait for
  hvdkit status train-x7b4k --watch until it has ended
  hvdkit status train-x7b4k --json  for programs
"""


@click.command(epilog=EXAMPLES)
@click.argument("job", required=False)
@click.option("--watch", is_flag=True, help="Go on until the job has ended, with a line for each change.")
@click.option("--json", "as_json", is_flag=True, help="As JSON; with --watch a line for each change.")
@place_flags
def command(job: str | None, watch: bool, as_json: bool, context: str | None, namespace: str | None) -> int:
    """Show where a JOB stands: on a cluster, or a run on this machine.

    Exit code 0 whatever the job does; 'hvdkit wait' has the job's own.
    """
    found = find(job, context, namespace) if job else newest(context, namespace)
    if isinstance(found, OnCluster):
        of_cluster(found, watch=watch, as_json=as_json)
    else:
        of_run(found, watch=watch, as_json=as_json)
    return 0


def of_cluster(found: OnCluster, *, watch: bool, as_json: bool) -> None:
    """The status of a job on a cluster."""
    from hvdkit.cluster.follow import state_line
    from hvdkit.cluster.job import gather, read_state
    from hvdkit.cluster.live import LiveJob, Moment

    if not watch:
        objects = gather(found.cluster, found.job)
        moment = Moment(read_state(found.job.backend, objects), objects)
        click.echo(json.dumps(described(found, moment), indent=2)) if as_json else show(found, moment)
        return
    before = None
    with LiveJob(found.cluster, found.job) as live:
        for moment in live.moments():
            now = described(found, moment) if as_json else state_line(moment.state)
            if now != before:
                click.echo(json.dumps(now) if as_json else f"{found.job.name}: {now}")
                before = now
            if moment.state.finished:
                return


def show(found: OnCluster, moment: "Moment") -> None:
    """The status as people read it."""
    job = found.job
    show_state(job.name, moment.state, f"{job.backend}, namespace {found.cluster.namespace} of {found.cluster.context}")
    rows = [
        tuple(str(value) for value in (pod["name"], pod["phase"], pod["ready"], pod["restarts"], pod["node"]))
        for pod in pods_described(moment)
    ]
    if rows:
        click.echo("")
        show_table(("POD", "PHASE", "READY", "RESTARTS", "NODE"), rows)


def show_state(name: str, found: "JobState", where: str) -> None:
    """The part that every backend has."""
    from hvdkit.cluster.follow import state_line

    click.echo(f"{name}: {state_line(found)}")
    click.echo(f"  backend   {where}")
    if found.started and not found.ended:
        click.echo(f"  started   {found.started}, {duration(found.started, None)} ago")
    if found.ended:
        code = "unknown" if found.exit_code is None else found.exit_code
        click.echo(f"  ended     {found.ended} after {duration(found.started, found.ended)}, exit code {code}")
    if found.finished and found.exit_code != 0:
        click.echo(f"  why       hvdkit why {name}")


def described(found: OnCluster, moment: "Moment") -> dict[str, Any]:
    """The status for programs."""
    place = {"namespace": found.cluster.namespace, "context": found.cluster.context}
    known = {"version": 1, "name": found.job.name, "backend": found.job.backend, **place, **asdict(moment.state)}
    return {**known, "pods": pods_described(moment)}


def pods_described(moment: "Moment") -> list[dict[str, Any]]:
    """A few words about each pod."""
    from hvdkit.jobs.live import created, is_launcher, is_ready, phase_of, pods_of, restarts

    return [
        {
            "name": pod["metadata"]["name"],
            "launcher": is_launcher(pod),
            "phase": phase_of(pod),
            "ready": is_ready(pod),
            "restarts": restarts(pod),
            "node": (pod.get("spec") or {}).get("nodeName") or "-",
        }
        for pod in sorted(pods_of(moment.objects), key=lambda pod: (not is_launcher(pod), created(pod)))
    ]


def of_run(run: "LocalRun", *, watch: bool, as_json: bool) -> None:
    """The status of a run on this machine."""
    import time

    from hvdkit.local.record import find_run, state_of

    while watch and run.alive:
        time.sleep(0.2)
    run = find_run(run.name) or run
    found = state_of(run)
    if as_json:
        known = {"version": 1, "name": run.name, "backend": run.backend, **asdict(found), "pods": []}
        click.echo(json.dumps(known, indent=2))
    else:
        show_state(run.name, found, f"{run.backend}, process {run.pid} on {run.machine}")
