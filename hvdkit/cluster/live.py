"""A job as it changes: one thread a watch, one queue, and the state after each change."""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from hvdkit.cluster.api import ApiError, Cluster
from hvdkit.cluster.job import Job, read_state
from hvdkit.cluster.kinds import Kind, Object
from hvdkit.cluster.ownership import own
from hvdkit.cluster.watch import Change, Deleted, Everything, Watch
from hvdkit.errors import HvdkitError
from hvdkit.jobs.state import JobState

# A watch that falls behind waits; memory holds the objects that there are and no history.
_LONGEST_QUEUE = 1000


class JobGone(HvdkitError):
    """Somebody deleted the job while we looked on."""


@dataclass(frozen=True)
class Moment:
    """Where the job stands, and what tells so."""

    state: JobState
    objects: list[Object]


class LiveJob:
    """Follows a job. `with LiveJob(cluster, job) as live: for moment in live.moments(): …`"""

    def __init__(
        self, cluster: Cluster, job: Job, on_trouble: Callable[[float, ApiError], None] = lambda seconds, error: None
    ) -> None:
        self.job = job
        self._queue: queue.Queue[tuple[Kind, Change] | Exception] = queue.Queue(_LONGEST_QUEUE)
        self._objects: dict[Kind, dict[str, Object]] = {}
        self._main = job.main  # as it was when we last saw it
        self._watches = [
            Watch(cluster, kind, labels=labels, fields=fields, on_trouble=on_trouble)
            for kind, labels, fields in job.sources
        ]

    def __enter__(self) -> "LiveJob":
        for watch in self._watches:
            threading.Thread(target=self._run, args=(watch,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        for watch in self._watches:
            watch.stop()

    def moments(self, every: float | None = None) -> Iterator[Moment]:
        """The job after each change, and every so many seconds if asked to. JobGone when it is deleted."""
        while len(self._objects) < len(self._watches):
            self._take(None)
        while True:
            yield self._moment()
            if self._take(every):
                # Changes come in bursts: what has arrived already belongs to this moment.
                end = time.monotonic() + 0.05
                while (left := end - time.monotonic()) > 0 and self._take(left):
                    pass

    def _moment(self) -> Moment:
        mains = self._objects[self.job.kind]
        others = [one for kind, there in self._objects.items() if kind != self.job.kind for one in there.values()]
        objects = [self._main, *own(self._main, others)]
        moment = Moment(read_state(self.job.backend, objects), objects)
        # A job that is removed as soon as it has ended (ttl) may be gone before we saw the end; its last words count.
        if self.job.uid not in mains and not moment.state.finished:
            said = "was deleted" if not mains else "was deleted, and another one has its name now"
            raise JobGone(f"the job '{self.job.name}' {said}.")
        return moment

    def _take(self, timeout: float | None) -> bool:
        try:
            item = self._queue.get(timeout=timeout)
        except queue.Empty:
            return False
        if isinstance(item, Exception):
            raise item
        kind, change = item
        known = self._objects.setdefault(kind, {})
        for one in change.objects if isinstance(change, Everything) else [change.object]:
            if one["metadata"]["uid"] == self.job.uid:
                self._main = one
        if isinstance(change, Everything):
            known.clear()
            known.update((one["metadata"]["uid"], one) for one in change.objects)
        elif isinstance(change, Deleted):
            known.pop(change.object["metadata"]["uid"], None)
        else:
            known[change.object["metadata"]["uid"]] = change.object
        return True

    def _run(self, watch: Watch) -> None:
        try:
            for change in watch.changes():
                self._queue.put((watch.kind, change))
        except Exception as error:  # the one who follows must know, whatever it is
            self._queue.put(error)
