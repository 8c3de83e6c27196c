"""The logs of a job's pods: read, followed to their end through every interruption, and filtered by rank."""

import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from hvdkit.cluster.api import ApiError, Cluster, lines_of, pause
from hvdkit.cluster.job import Job
from hvdkit.cluster.kinds import POD, Object, labels_of, name_of, uid_of
from hvdkit.cluster.watch import SECONDS_TO_BELIEVE
from hvdkit.errors import HvdkitError, InputError
from hvdkit.jobs.live import created, is_launcher, pods_of

_REPLICA_TYPE = "training.kubeflow.org/replica-type"
_INDEX_LABELS = ("training.kubeflow.org/replica-index", "batch.kubernetes.io/job-completion-index")
_INDEX_LABELS += ("apps.kubernetes.io/pod-index",)
_RANK = re.compile(rb"\[ *(\d+)\]")
_SECONDS = len("2026-01-01T00:00:00")  # of a line's time, the part without fractions

SECONDS_TO_BELIEVE_GONE = 10.0  # that a pod is, after a broken connection

# Backends whose launcher (or controller) carries the output of all ranks.
_LAUNCHED = ("mpijob", "monarch")


def worker_pods(job: Job, pods: list[Object]) -> dict[int, Object]:
    """The newest pod of each worker by its number; pods without one are counted in the order of their names."""
    workers = sorted((pod for pod in pods if not is_launcher(pod)), key=lambda pod: (created(pod), name_of(pod)))
    numbered = {index: pod for pod in workers if (index := _worker_index(job, pod)) is not None}
    return numbered or dict(enumerate(sorted(workers, key=name_of)))


def _worker_index(job: Job, pod: Object) -> int | None:
    labels = labels_of(pod)
    if labels.get(_REPLICA_TYPE) == "master":
        return 0
    # Beside a Master, a PyTorchJob counts its Workers from 0 again.
    replicas = (job.main.get("spec") or {}).get("pytorchReplicaSpecs") or {}
    number = next((labels[label] for label in _INDEX_LABELS if labels.get(label, "").isdecimal()), None)
    return None if number is None else int(number) + ("Master" in replicas)


def speaking_pods(job: Job, pods: list[Object]) -> list[Object]:
    """The pods in whose logs the ranks speak: the launchers, oldest attempt first, or the workers."""
    if job.backend in _LAUNCHED:
        return sorted((pod for pod in pods if is_launcher(pod)), key=created)
    return [pod for _, pod in sorted(worker_pods(job, pods).items())]


def pod_of_worker(job: Job, pods: list[Object], worker: int) -> Object:
    """The pod of a worker; InputError with what there is, when it is not there."""
    known = worker_pods(job, pods)
    if worker in known:
        return known[worker]
    there = f"there are {', '.join(map(str, sorted(known)))}" if known else "there are none now"
    raise InputError(f"the job '{job.name}' has no pod for worker {worker}; {there}.")


def slots_of(job: Job) -> int:
    """Ranks in a worker, as the job was made."""
    details = job.main.get("spec") or {}
    if job.backend == "mpijob":
        return details.get("slotsPerWorker") or 1
    if job.backend == "pytorchjob":
        text = str(details.get("nprocPerNode") or "1")
        return int(text) if text.isdecimal() else 1
    template = (details.get("template") or {}).get("spec") or {}
    words = (template.get("containers") or [{}])[0].get("command") or []
    flag = "--procs" if job.backend == "monarch" else "--slots"
    head = words[: words.index("--")] if "--" in words else words
    return int(head[head.index(flag) + 1]) if flag in head else 1


def pods_of_rank(job: Job, objects: list[Object], rank: int) -> list[Object]:
    """The pods in whose logs a rank speaks."""
    pods = pods_of(objects)
    if job.backend in _LAUNCHED:
        return speaking_pods(job, pods)
    return [pod_of_worker(job, pods, rank // slots_of(job))]


def of_rank(line: bytes, rank: int) -> bool:
    """Whether a line of the log is a rank's."""
    found = _RANK.match(line)
    return found is not None and int(found[1]) == rank


def started(pod: Object) -> bool:
    """Whether a pod's container has run, so that there is a log."""
    for container in (pod.get("status") or {}).get("containerStatuses") or []:
        moment = container.get("state") or {}
        if "running" in moment or "terminated" in moment or container.get("lastState"):
            return True
    return False


def read_log(
    cluster: Cluster, pod: str, *, lines: int | None = None, since: int | None = None, previous: bool = False
) -> Iterator[bytes]:
    """The log as it is now, line by line; nothing where the pod or its log is gone."""
    query = {"tailLines": lines, "sinceSeconds": since, "previous": "true" if previous else None}
    try:
        response = cluster.open("GET", POD.path(cluster.namespace, pod, "log"), **query)
    except ApiError as error:
        if error.status in (400, 404):  # not started yet, or gone
            return
        raise
    with contextlib.closing(response):
        try:
            yield from lines_of(response)
        except cluster.cut_off as error:
            raise cluster.unanswered(error) from None


class LogFollower:
    """Follows the log of one pod to its end, in a thread, and hands out each line once.

    Every line comes with its time, so that after a broken connection reading goes on where it was.
    """

    def __init__(
        self,
        cluster: Cluster,
        pod: str,
        on_line: Callable[[bytes], None],
        since: int | None = None,
        *,
        uid: str | None = None,
    ) -> None:
        self.cluster = cluster
        self.pod = pod
        self.uid = uid
        """Of the pod, where another one of its name may follow it."""

        self.on_line = on_line
        self.error: HvdkitError | None = None
        self._since = since
        self._last = b""  # the latest time of a line
        self._from_last = 0  # lines from the first one of that time on, as far as the API sends them again
        self._stopped = threading.Event()
        self._awake = threading.Event()  # ends a pause
        self._response: Any = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> "LogFollower":
        """Begin."""
        self._thread.start()
        return self

    def join(self, seconds: float) -> bool:
        """Wait for the end of the log; whether it came."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def hurry(self) -> None:
        """The job has ended: its pod is looked at now, and not after the pause that a running one gets."""
        self._awake.set()

    def stop(self) -> None:
        """Give up."""
        self._stopped.set()
        self._awake.set()
        if self._response is not None:
            with contextlib.suppress(Exception):
                getattr(self._response, "shutdown", self._response.close)()

    def _run(self) -> None:
        attempt, trouble_since = 0, None
        while not self._stopped.is_set():
            before = self._last
            try:
                if self._replaced():
                    return
                self._read(follow=True)
                trouble_since = None
                if self._ended():
                    if not self._replaced():
                        self._read(follow=False)  # the stream of a node that goes down ends early
                    return
            except ApiError as error:
                if not error.passing and error.status != 400 and self._believed(error, trouble_since):
                    self.error = error if error.status != 404 else None
                    return
                trouble_since = trouble_since or time.monotonic()
            except self.cluster.cut_off:
                trouble_since = time.monotonic()
            attempt = 0 if self._last != before else attempt + 1
            if self._awake.wait(pause(attempt)):
                self._awake.clear()
                attempt = 0

    def _believed(self, error: ApiError, trouble_since: float | None) -> bool:
        """Whether a refusal counts: an API server that has just come back refuses for a moment what it allows."""
        patience = SECONDS_TO_BELIEVE_GONE if error.status == 404 else SECONDS_TO_BELIEVE
        return trouble_since is None or time.monotonic() - trouble_since > patience

    def _read(self, *, follow: bool) -> None:
        query: dict[str, Any] = {"timestamps": "true", "follow": "true" if follow else None}
        if self._last:
            query["sinceTime"] = re.sub(r"\.\d+", "", self._last.decode())  # the API takes whole seconds
        elif self._since is not None:
            query["sinceSeconds"] = self._since
        path = POD.path(self.cluster.namespace, self.pod, "log")
        response = self.cluster.open("GET", path, read_timeout=None if follow else 30.0, **query)
        with contextlib.closing(response):
            self._response = response
            try:
                for when, text in self._new(lines_of(response)):
                    if when > self._last:
                        self._last, self._from_last = when, 0
                    if when[:_SECONDS] >= self._last[:_SECONDS]:  # else it is not sent again
                        self._from_last += 1
                    self.on_line(text)
            finally:
                self._response = None

    def _new(self, lines: Iterator[bytes]) -> Iterator[tuple[bytes, bytes]]:
        """The lines that no earlier connection brought, with their times.

        stdout and stderr are stamped apart, so that times do not always rise: its place tells what was read before.
        """
        last, again, reached = self._last, self._from_last, False
        for line in lines:
            when, _, text = line.partition(b" ")
            if not reached and when < last:
                continue
            if not reached and when > last:
                again = 0  # the lines of that time are not kept any more
            reached = True
            if again:
                again -= 1
            else:
                yield when, text

    def _replaced(self) -> bool:
        """Whether the name is another pod's by now, whose log is not this one."""
        pod = self.cluster.get(POD, self.pod) if self.uid else None
        return pod is not None and uid_of(pod) != self.uid

    def _ended(self) -> bool:
        pod = self.cluster.get(POD, self.pod)
        if pod is None:
            return True
        status = pod.get("status") or {}
        if status.get("phase") in ("Succeeded", "Failed"):
            return True
        policy = (pod.get("spec") or {}).get("restartPolicy")
        moments = [one.get("state") or {} for one in status.get("containerStatuses") or []]
        return policy == "Never" and any("terminated" in moment for moment in moments)
