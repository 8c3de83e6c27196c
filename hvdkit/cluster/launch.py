"""Launches a job on a cluster: preflight, submit, follow to the end; its exit code is the job's."""

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from hvdkit.cluster.api import Cluster
from hvdkit.cluster.delete import delete
from hvdkit.cluster.follow import Follower, Patience, Printer, check_folder, exit_code_of, say
from hvdkit.cluster.gather import facts_of
from hvdkit.cluster.job import Job
from hvdkit.cluster.live import JobGone
from hvdkit.cluster.preflight import preflight
from hvdkit.cluster.submit import submit
from hvdkit.cluster.why import explain
from hvdkit.cluster.why_facts import Answer
from hvdkit.errors import EXIT_ENVIRONMENT, EXIT_INTERRUPTED, HvdkitError, InputError
from hvdkit.jobs.spec import JobSpec
from hvdkit.jobs.state import SUCCEEDED, JobState


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """How to launch; what is launched is the spec's."""

    detach: bool = False
    """Return when the job is submitted."""

    on_interrupt: str = "ask"
    """What Ctrl-C does with the job: ask, keep or delete."""

    save_logs: Path | None = None
    """Folder for the logs of all pods."""

    as_json: bool = False
    """Print the outcome as JSON on stdout, and no logs."""

    check_capacity: bool = True
    """Refuse what can never fit on the nodes that there are."""


def launch_on_cluster(cluster: Cluster, spec: JobSpec, options: LaunchOptions, reason: str) -> int:
    """Run the spec on the cluster; `reason` says for the first line why this backend."""
    if options.detach and options.save_logs:
        raise InputError("--save-logs: nobody is there to save them with --detach; use `hvdkit wait --save-logs DIR`.")
    if options.save_logs:
        check_folder(options.save_logs)
    ranks = f"{spec.world_size} rank{'s' if spec.world_size > 1 else ''} on {spec.workers} "
    ranks += "pods" if spec.workers > 1 else "pod"
    where = f"namespace {cluster.namespace} of context {cluster.context}"
    say(f"{spec.name}: {ranks}; backend {reason}, {where}")
    ready = preflight(cluster, spec, check_capacity=options.check_capacity)
    for note in ready.notes:
        say(f"{note}.")
    job = submit(cluster, ready.spec, ready.objects)
    for warning in cluster.warnings:
        say(f"the API server warns: {warning}")
    if options.detach:
        print(json.dumps(_place(cluster, job)) if options.as_json else job.name)
        return 0
    return follow(cluster, job, options, start_limit(ready.spec), one_is_enough=ready.spec.independent)


def start_limit(spec: JobSpec) -> float | None:
    """Seconds until the ranks must run; None where they may wait in a queue, and the job's state does not tell."""
    queued = spec.scheduling.gang is not None or (spec.backend == "monarch" and spec.scheduling.queue is not None)
    return None if queued else spec.run.start_timeout


def follow(
    cluster: Cluster, job: Job, options: LaunchOptions, start_timeout: float | None, *, one_is_enough: bool = False
) -> int:
    """See a job through to its end; one that has not started within so many seconds is left, and said why.

    With `one_is_enough` it has started with its first worker: copies may take turns on a cluster too small for all.
    """
    follower: Follower | None = None
    try:
        printer = None if options.as_json else Printer()
        follower = Follower(cluster, job, printer=printer, save_logs=options.save_logs)
        found = follower.to_end(starting=Patience(start_timeout, one_is_enough=one_is_enough))
    except KeyboardInterrupt:
        if follower is not None:
            follower.stop()
        return _interrupted(cluster, job, options)
    except JobGone:
        raise
    except HvdkitError:
        # What failed is that we look on; whoever reads only the error would launch a second one.
        say(_goes_on(job))
        raise
    code = exit_code_of(found) if found.finished else EXIT_ENVIRONMENT
    answer = _why(cluster, job) if found.phase != SUCCEEDED else None
    if options.as_json:
        print(json.dumps(outcome(cluster, job, found, code, answer)))
    elif code:
        how = "failed" if found.finished else f"has not started within {start_timeout:g} s"
        cause = f": {answer.cause.rstrip('.')}" if answer else ""
        say(f"{job.name} {how}{cause}; exit code {code}")
        if answer is not None:
            show(answer)
    if not found.finished:  # after start_timeout; what it waits for may still come, and somebody may want to look at it
        say(f"{job.name} still waits; `hvdkit delete {job.name}` ends that, a longer --start-timeout is more patient.")
    return code


def outcome(cluster: Cluster, job: Job, found: JobState, code: int, answer: Answer | None) -> dict:
    """How a job ended, for programs."""
    known = {**_place(cluster, job), **asdict(found), "exit_code": code}
    return known | ({"why": asdict(answer)} if answer else {})


def show(answer: Answer) -> None:
    """Evidence and way out, below the cause."""
    for line in answer.evidence:
        print(f"  {line}", file=sys.stderr)
    if answer.what_to_do:
        print(f"  -> {answer.what_to_do}", file=sys.stderr, flush=True)


def _place(cluster: Cluster, job: Job) -> dict[str, str]:
    return {
        "name": job.name,
        "backend": job.backend,
        "namespace": cluster.namespace,
        "context": cluster.context,
    }


def _why(cluster: Cluster, job: Job) -> Answer | None:
    try:
        return explain(facts_of(cluster, job.name))
    except HvdkitError:
        return None  # the exit code matters more than its reason


def _interrupted(cluster: Cluster, job: Job, options: LaunchOptions) -> int:
    choice = options.on_interrupt
    if choice == "ask":
        choice = _ask(job) if sys.stdin.isatty() and sys.stderr.isatty() else "keep"
    if choice == "delete":
        delete(cluster, job)
        say(f"{job.name} is being deleted.")
    else:
        say(_goes_on(job))
    return EXIT_INTERRUPTED


def _goes_on(job: Job) -> str:
    return f"{job.name} goes on; `hvdkit logs -f {job.name}` follows it, `hvdkit delete {job.name}` ends it."


def _ask(job: Job) -> str:
    print(f"\nhvdkit: keep {job.name} running, or delete it? [K/d] ", end="", file=sys.stderr, flush=True)
    try:
        return "delete" if sys.stdin.readline().strip().lower() in ("d", "delete") else "keep"
    except KeyboardInterrupt:  # a second Ctrl-C is no answer
        return "keep"
