"""`hvdkit logs`: what the ranks of a job said."""

import re
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from hvdkit.cli.target import OnCluster, find, place_flags
from hvdkit.errors import InputError

if TYPE_CHECKING:
    from hvdkit.cluster.follow import Printer
    from hvdkit.cluster.live import Moment
    from hvdkit.jobs.metadata import Object
    from hvdkit.jobs.state import JobState
    from hvdkit.local.record import LocalRun

EXAMPLES = """\b
Examples:
  hvdkit logs train-x7b4k               all ranks, as far as they got
  hvdkit logs train-x7b4k -f            and what follows, to the end
  hvdkit logs train-x7b4k --rank 3      one rank
  hvdkit logs train-x7b4k --worker 0    the pod of a worker
  hvdkit logs train-x7b4k --all         every pod, each line with its name
  hvdkit logs train-x7b4k --since 10m   the last ten minutes
"""
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@click.command(epilog=EXAMPLES)
@click.argument("job")
@click.option("--follow", "-f", is_flag=True, help="Go on until the job has ended.")
@click.option("--rank", type=click.IntRange(min=0), help="Only this rank.")
@click.option("--worker", type=click.IntRange(min=0), help="The log of this worker's pod.")
@click.option("--all", "everything", is_flag=True, help="Every pod, launchers and workers.")
@click.option("--since", metavar="10m", help="Only what is newer: 30s, 10m, 2h.")
@place_flags
def command(
    job: str,
    follow: bool,
    rank: int | None,
    worker: int | None,
    everything: bool,
    since: str | None,
    context: str | None,
    namespace: str | None,
) -> int:
    """Show what the ranks of a JOB said: on a cluster, or of a run on this machine."""
    if sum((rank is not None, worker is not None, everything)) > 1:
        raise InputError("--rank, --worker and --all exclude each other; give one of them.")
    seconds = read_since(since)
    found = find(job, context, namespace)
    if isinstance(found, OnCluster):
        of_cluster(found, Wanted(rank=rank, worker=worker, everything=everything, since=seconds), follow=follow)
    else:
        if worker is not None or since is not None:
            raise InputError("--worker and --since are for jobs on a cluster; a run on this machine has --rank.")
        of_run(found, follow=follow, rank=rank)
    return 0


def read_since(text: str | None) -> int | None:
    """`10m` to seconds."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d+)([smhd])", text)
    if match is None or not int(match[1]):
        raise InputError(f"--since: '{text}' is not a time such as 30s, 10m, 2h or 1d.")
    return int(match[1]) * _UNITS[match[2]]


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Whose lines are meant: a rank's, a worker's, every pod's, or without any of them all ranks'."""

    rank: int | None
    worker: int | None
    everything: bool
    since: int | None


def of_cluster(found: OnCluster, wanted: Wanted, *, follow: bool) -> None:
    """The logs of pods."""
    from hvdkit.cluster.follow import Printer
    from hvdkit.cluster.job import gather, read_state
    from hvdkit.cluster.logs import of_rank, read_log, started

    if wanted.rank is not None and found.job.backend == "pytorchjob":
        raise InputError("--rank: not for backend pytorchjob, whose lines do not say their rank; use --worker N.")
    printer = Printer(lambda line: wanted.rank is None or of_rank(line, wanted.rank))
    objects = gather(found.cluster, found.job)
    if follow and not read_state(found.job.backend, objects).finished:
        follow_to_end(found, wanted, printer)
        return
    pods = choose(found, objects, wanted)
    names = [pod["metadata"]["name"] for pod in pods if started(pod)]
    if not names:
        say_why_nothing(found, pods)
    for name in names:
        for line in read_log(found.cluster, name, since=wanted.since):
            printer.show(line, f"{name}: ".encode() if len(names) > 1 else b"")


def follow_to_end(found: OnCluster, wanted: Wanted, printer: "Printer") -> None:
    """The logs of the pods that are meant, also of those that come later, until the job has ended."""
    from hvdkit.cluster.follow import Follower
    from hvdkit.cluster.logs import slots_of
    from hvdkit.jobs.live import is_launcher

    def shown(moment: "Moment") -> list[tuple["Object", bytes]]:
        several = wanted.everything or (wanted.worker is None and moment.state.workers > 1)
        try:
            pods = choose(found, moment.objects, wanted)
        except InputError:
            worker = wanted.worker if wanted.worker is not None else (wanted.rank or 0) // slots_of(found.job)
            if worker >= moment.state.workers:
                raise
            return []  # it has no pod yet
        unmarked = [pod for pod in pods if not several or (is_launcher(pod) and not wanted.everything)]
        return [(pod, b"" if pod in unmarked else f"{pod['metadata']['name']}: ".encode()) for pod in pods]

    def stop_at_error(_: "JobState") -> None:
        error = next((log.error for log in follower.logs if log.error is not None), None)
        if error is not None:
            follower.stop()
            raise error

    follower = Follower(
        found.cluster, found.job, printer=printer, on_state=stop_at_error, shown=shown, since=wanted.since
    )
    follower.to_end(every=1.0)
    if not follower.logs:
        say_why_nothing(found, [])


def choose(found: OnCluster, objects: list["Object"], wanted: Wanted) -> list["Object"]:
    """The pods whose logs are meant; of several launchers the newest."""
    from hvdkit.cluster.logs import pod_of_worker, pods_of_rank, speaking_pods
    from hvdkit.jobs.live import created, is_launcher, pods_of

    pods = pods_of(objects)
    if wanted.everything:
        return sorted(pods, key=created)
    if wanted.worker is not None:
        return [pod_of_worker(found.job, pods, wanted.worker)]
    if wanted.rank is not None:
        chosen = pods_of_rank(found.job, objects, wanted.rank)
    else:
        chosen = speaking_pods(found.job, pods)
    return chosen[-1:] if chosen and is_launcher(chosen[-1]) else chosen


def say_why_nothing(found: OnCluster, pods: list["Object"]) -> None:
    """A log that is empty for a reason."""
    name = found.job.name
    if not pods:
        click.echo(f"hvdkit: '{name}' has no pods (any more); `hvdkit why {name}` says what is known.", err=True)
    else:
        click.echo(f"hvdkit: no pod of '{name}' has started yet; `hvdkit why {name}` says what it waits for.", err=True)


def of_run(run: "LocalRun", *, follow: bool, rank: int | None) -> None:
    """The logs of a run on this machine: a file a rank."""
    files = sorted(run.place.glob("logs/rank-*.log"), key=lambda path: int(path.stem.partition("-")[2]))
    if rank is not None:
        files = [path for path in files if path.stem == f"rank-{rank}"]
    if not files:
        which = f"rank {rank} of " if rank is not None else ""
        raise InputError(f"there is no log of {which}the run '{run.name}'; if it ran with --log-dir, it is there.")
    width = len(str(run.workers * run.slots - 1))
    streams = {path: path.open("rb") for path in files}
    while True:
        alive = run.alive
        for path, stream in streams.items():
            number = int(path.stem.partition("-")[2])
            for line in stream:
                sys.stdout.buffer.write(b"[%*d] " % (width, number) + line.rstrip(b"\n") + b"\n")
        sys.stdout.buffer.flush()
        if not follow or not alive:
            return
        time.sleep(0.3)
