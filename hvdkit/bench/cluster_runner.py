"""Runs points as jobs on a cluster: the way of `hvdkit launch`, then the log is read and the job deleted."""

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path

from hvdkit.bench.cluster_jobs import job_name, settings_of
from hvdkit.bench.points import SweepSettings
from hvdkit.bench.runners import NoPointRuns, RunSpec, why
from hvdkit.cluster.api import Cluster
from hvdkit.cluster.delete import delete, wait_until_gone
from hvdkit.cluster.follow import Follower, exit_code_of, say
from hvdkit.cluster.gather import facts_of
from hvdkit.cluster.job import Job
from hvdkit.cluster.preflight import Ready, preflight
from hvdkit.cluster.submit import submit
from hvdkit.cluster.why import explain
from hvdkit.cluster.why_facts import Answer
from hvdkit.config.settings import Setting, make_spec, sources_named
from hvdkit.errors import HvdkitError
from hvdkit.jobs import render
from hvdkit.jobs.spec import JobSpec
from hvdkit.jobs.state import FAILED, PENDING, STARTING, JobState
from hvdkit.jobs.yaml_text import to_yaml

SECONDS_TO_GO = 180.0  # for the pods of a run that has ended: the next one must have their cores to itself
SECONDS_BETWEEN_LOOKS = 15.0  # at a job that does not start
# What keeps a pod from starting and does not pass by itself, in the words of `hvdkit why`.
HOPELESS = ("image", "container", "pod-security", "refused")


class ClusterRunner:
    """Runs points on a cluster, one job after the other, and leaves none behind."""

    def __init__(
        self, connect: Callable[[], Cluster], settings: list[Setting], *, prefix: str, check_capacity: bool = True
    ) -> None:
        self._connect = connect
        self._settings = settings
        self._prefix = prefix
        self._check_capacity = check_capacity

    @cached_property
    def _cluster(self) -> Cluster:
        return self._connect()

    def check(self, sweep: SweepSettings, timeout: float) -> None:
        points = [point for point in sweep.points() if point.workers == sweep.workers[-1]]
        specs = [RunSpec(point=point, settings=sweep, log=Path(), timeout=timeout) for point in points]
        for spec in specs:
            self.describe(spec)  # what is wrong with a job itself is said before anything about the cluster
        notes = dict.fromkeys(note for spec in specs for note in self._preflight(spec).notes)
        for note in notes:
            say(f"{note}.")

    def describe(self, spec: RunSpec) -> str:
        with self._job(spec) as job:
            return "---\n" + to_yaml(render(job))

    def run_point(self, spec: RunSpec) -> list[str]:
        ready = self._preflight(spec)
        with self._job(spec):
            job = submit(self._cluster, ready.spec, ready.objects)
        try:
            lines = self._to_end(job, spec)
        except BaseException as error:
            with contextlib.suppress(HvdkitError):  # the first error says more; its deadline ends the job anyway
                self._remove(job, wait=not isinstance(error, KeyboardInterrupt))
            raise
        self._remove(job)
        return lines

    def _preflight(self, spec: RunSpec) -> Ready:
        with self._job(spec) as job:
            return preflight(self._cluster, job, check_capacity=self._check_capacity)

    @contextlib.contextmanager
    def _job(self, spec: RunSpec) -> Iterator[JobSpec]:
        """The job of a run; errors about it name the flag or file that is wrong."""
        name = job_name(self._prefix, spec.settings, spec.point, spec.repeat)
        settings = settings_of(self._settings, spec.settings, spec.point, name=name, timeout=spec.timeout)
        with sources_named(settings):
            yield make_spec(settings, name=name)

    def _to_end(self, job: Job, spec: RunSpec) -> list[str]:
        """The lines of all pods, which also go to the run's log."""
        with tempfile.TemporaryDirectory(prefix="hvdkit-bench-") as folder:
            looks = Looks(self._cluster, job)
            follower = Follower(self._cluster, job, printer=None, save_logs=Path(folder), on_state=looks)
            try:
                state = follower.to_end(spec.timeout)
            finally:
                follower.stop()
                lines = _collect(Path(folder), spec.log)
        if not state.finished:
            answer = looks.answer()
            cause = f": {answer.cause.rstrip('.')}" if answer and answer.trouble else ""
            raise HvdkitError(f"it was not done after {spec.timeout:g} s (--timeout){cause}")
        if state.phase == FAILED:
            answer = looks.answer()
            cause = f"{answer.cause.rstrip('.')}; " if answer else ""
            raise HvdkitError(cause + why(exit_code_of(state), lines, spec))
        return lines

    def _remove(self, job: Job, *, wait: bool = True) -> None:
        delete(self._cluster, job)
        if wait:
            wait_until_gone(self._cluster, job, SECONDS_TO_GO)


class Looks:
    """Looks now and then why a job does not start: what cannot pass would cost the whole --timeout."""

    def __init__(self, cluster: Cluster, job: Job) -> None:
        self._cluster = cluster
        self._job = job
        self._next = time.monotonic() + SECONDS_BETWEEN_LOOKS
        self._found = ""

    def __call__(self, state: JobState) -> None:
        """NoPointRuns when two looks in a row find the same hopeless trouble."""
        if state.phase not in (PENDING, STARTING) or time.monotonic() < self._next:
            return
        answer = self.answer()
        self._next = time.monotonic() + SECONDS_BETWEEN_LOOKS
        trouble = answer.trouble if answer and answer.trouble in HOPELESS else ""
        if trouble and trouble == self._found:
            raise NoPointRuns(f"{answer.cause.rstrip('.')}: {answer.what_to_do}")
        self._found = trouble

    def answer(self) -> Answer | None:
        """What `hvdkit why` would say; None when nobody can be asked."""
        try:
            return explain(facts_of(self._cluster, self._job.name))
        except HvdkitError:
            return None


def _collect(folder: Path, log: Path) -> list[str]:
    """The logs of all pods, one after the other."""
    lines: list[str] = []
    for file in sorted(folder.iterdir()):
        lines += file.read_text(errors="replace").splitlines()
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("".join(f"{line}\n" for line in lines))
    return lines
