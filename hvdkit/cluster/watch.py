"""Watches that miss nothing: each survives closed streams, a restarted or overloaded API server, and 410 Gone.

A watch is a list, and then changes from the list's version on. When the server has forgotten that version, it is a
list again: whoever follows gets `Everything` and forgets what is not in it. So the end of a job is seen even if it
happened while nobody answered.
"""

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from hvdkit.cluster.api import ApiError, Cluster, lines_of, pause, trimmed
from hvdkit.cluster.kinds import Kind, Object

SECONDS_OF_A_WATCH = 300  # then the server ends it, and it is asked for again from where it was
# An API server that has just started refuses for a moment what it allows: it has not read rights and CRDs yet.
SECONDS_TO_BELIEVE = 60.0
_SECONDS_OF_SILENCE = SECONDS_OF_A_WATCH + 30.0


@dataclass(frozen=True)
class Everything:
    """All objects that there are now."""

    objects: list[Object]


@dataclass(frozen=True)
class Changed:
    """One object is new or different."""

    object: Object


@dataclass(frozen=True)
class Deleted:
    """One object is gone."""

    object: Object


Change = Everything | Changed | Deleted


@dataclass
class Watch:
    """The objects of one kind that fit the selectors, and what becomes of them."""

    cluster: Cluster
    kind: Kind
    labels: str | None = None
    fields: str | None = None
    on_trouble: Callable[[float, ApiError], None] = lambda seconds, error: None
    """Called at each failed attempt with how long the server has been away."""

    stopped: threading.Event = field(default_factory=threading.Event)
    _response: Any = None

    def changes(self) -> Iterator[Change]:
        """For ever, or until `stop`. ApiError only for what does not pass by itself: no right, no such cluster."""
        version: str | None = None
        attempt, away_since, worked = 0, None, False
        while not self.stopped.is_set():
            began = time.monotonic()
            try:
                if version is None:
                    chosen = {"labels": self.labels, "fields": self.fields}
                    objects, version = self.cluster.items_with_version(self.kind, **chosen)
                    worked = True
                    yield Everything(objects)
                for change, newer in self._stream(version):
                    version, attempt, away_since = newer, 0, None
                    if change is not None:
                        yield change
                if time.monotonic() - began < 1:
                    self.stopped.wait(pause(attempt))  # something in between ends our connections at once
                    attempt += 1
            except ApiError as error:
                if error.status == 410:
                    version = None
                    continue
                away_since = away_since or time.monotonic()
                away = time.monotonic() - away_since
                if not error.passing and (not worked or away > SECONDS_TO_BELIEVE):
                    raise
                self.on_trouble(away, error)
                self.stopped.wait(pause(attempt, error))
                attempt += 1
            except self.cluster.cut_off:
                self.stopped.wait(pause(attempt))
                attempt += 1

    def stop(self) -> None:
        """End `changes`, also where it waits for the server."""
        self.stopped.set()
        response = self._response
        if response is not None:
            with contextlib.suppress(Exception):  # it may have ended meanwhile
                getattr(response, "shutdown", response.close)()

    def _stream(self, version: str) -> Iterator[tuple[Change | None, str]]:
        """The changes of one connection, each with the version after it; None where only the version moved on."""
        query = {
            "watch": "1",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": SECONDS_OF_A_WATCH,
            "labelSelector": self.labels,
            "fieldSelector": self.fields,
        }
        path = self.kind.path(self.cluster.namespace)
        response = self.cluster.open("GET", path, read_timeout=_SECONDS_OF_SILENCE, **query)
        with contextlib.closing(response):
            self._response = response
            try:
                for line in lines_of(response):
                    if self.stopped.is_set():
                        return
                    if line:
                        yield _read(json.loads(line))
            finally:
                self._response = None


def _read(event: Object) -> tuple[Change | None, str]:
    kind, one = event["type"], event["object"]
    if kind == "ERROR":
        status, said = one.get("code") or 0, one.get("message") or ""
        raise ApiError(f"the API server says: {said}.", status=status, reason=one.get("reason") or "")
    version = one["metadata"]["resourceVersion"]
    if kind == "BOOKMARK":
        return None, version
    one = trimmed(one)
    return (Deleted(one) if kind == "DELETED" else Changed(one)), version
