"""Watches against an API server that restarts, forgets, throttles and cuts connections."""

import json
import tracemalloc
from typing import Any

import pytest
from scripted_api import Request, api

from hvdkit.cluster import watch as watch_module
from hvdkit.cluster.api import ApiError
from hvdkit.cluster.job import Job
from hvdkit.cluster.kinds import POD
from hvdkit.cluster.live import JobGone, LiveJob
from hvdkit.cluster.watch import Changed, Deleted, Everything, Watch


@pytest.fixture(autouse=True)
def impatient(monkeypatch) -> None:
    monkeypatch.setattr(watch_module, "pause", lambda attempt, error=None: 0.01)


def thing(name: str, version: int, **more: Any) -> dict:
    return {"metadata": {"name": name, "uid": name, "resourceVersion": str(version)}, **more}


def line(kind: str, one: dict) -> bytes:
    return json.dumps({"type": kind, "object": one}).encode() + b"\n"


def take(watch: Watch, count: int) -> list:
    found = []
    for change in watch.changes():
        found.append(change)
        if len(found) == count:
            watch.stop()
            return found
    raise AssertionError(f"the watch ended after {found}")


def names(change: Everything) -> list[str]:
    return [one["metadata"]["name"] for one in change.objects]


class Script:
    """Answers requests for lists and watches, each by the next function of its own."""

    def __init__(self, *, lists: list, watches: list) -> None:
        self.lists, self.watches = lists, watches

    def __call__(self, request: Request) -> None:
        steps = self.watches if "watch" in request.query else self.lists
        steps.pop(0)(request) if len(steps) > 1 else steps[0](request)


def sends(*lines: bytes, cut: bool = False):
    def answer(request: Request) -> None:
        with request.stream() as send:
            for one in lines:
                send(one)
            if cut:
                request.cut()
                return

    return answer


def test_a_watch_goes_on_where_a_closed_stream_ended(tmp_path, monkeypatch) -> None:
    script = Script(
        lists=[lambda request: request.items(thing("a", 1), version="1")],
        watches=[
            sends(line("ADDED", thing("b", 2)), line("BOOKMARK", thing("", 7))),
            sends(line("DELETED", thing("a", 8)), cut=True),
            sends(line("MODIFIED", thing("b", 9))),
        ],
    )
    with api(script, tmp_path, monkeypatch) as (cluster, server):
        first, second, third, fourth = take(Watch(cluster, POD), 4)
        versions = [asked.query["resourceVersion"] for asked in server.asked if "watch" in asked.query]
    assert names(first) == ["a"] and isinstance(second, Changed) and isinstance(third, Deleted)
    assert fourth.object["metadata"]["resourceVersion"] == "9"
    assert versions[:3] == ["1", "7", "8"]  # none is asked for twice


@pytest.mark.parametrize("inside", [True, False], ids=["as an event", "as an answer"])
def test_a_forgotten_version_is_a_list_again(inside: bool, tmp_path, monkeypatch) -> None:
    gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
    refuse = sends(line("ERROR", gone)) if inside else lambda request: request.status(410, "Expired", "too old")
    script = Script(
        lists=[lambda asked: asked.items(thing("a", 1)), lambda asked: asked.items(thing("b", 50), version="50")],
        watches=[refuse, sends(line("MODIFIED", thing("b", 51)))],
    )
    with api(script, tmp_path, monkeypatch) as (cluster, _):
        first, second, third = take(Watch(cluster, POD), 3)
    assert (names(first), names(second)) == (["a"], ["b"])
    assert third.object["metadata"]["resourceVersion"] == "51"


@pytest.mark.parametrize("status", [429, 500, 503, 504])
def test_an_overloaded_server_is_asked_again(status: int, tmp_path, monkeypatch) -> None:
    away: list[float] = []
    script = Script(
        lists=[lambda request: request.status(status, "TooManyRequests", "busy", Retry_After="0"), lambda r: r.items()],
        watches=[
            lambda request: request.status(status, "TooManyRequests", "busy"),
            Request.cut,
            sends(line("ADDED", thing("a", 3))),
        ],
    )
    with api(script, tmp_path, monkeypatch) as (cluster, _):
        watch = Watch(cluster, POD, on_trouble=lambda seconds, error: away.append(seconds))
        first, second = take(watch, 2)
    assert first.objects == [] and second.object["metadata"]["name"] == "a"
    assert away


def test_a_missing_right_is_no_reason_to_wait(tmp_path, monkeypatch) -> None:
    message = 'pods is forbidden: User "me" cannot list resource "pods" in API group "" in the namespace "default"'
    with api(lambda request: request.status(403, "Forbidden", message), tmp_path, monkeypatch) as (cluster, _):
        with pytest.raises(ApiError, match=r'cannot list resource "pods".*manifests/rbac.yaml') as raised:
            next(Watch(cluster, POD).changes())
    assert raised.value.exit_code == 3


def test_a_server_that_has_just_started_is_believed_only_after_a_while(tmp_path, monkeypatch) -> None:
    script = Script(
        lists=[lambda request: request.items()],
        watches=[
            Request.cut,
            lambda request: request.status(403, "Forbidden", "RBAC: not read yet"),
            lambda request: request.status(404, "NotFound", "the server could not find the requested resource"),
            sends(line("ADDED", thing("a", 3))),
        ],
    )
    with api(script, tmp_path, monkeypatch) as (cluster, _):
        assert isinstance(take(Watch(cluster, POD), 2)[1], Changed)
        monkeypatch.setattr(watch_module, "SECONDS_TO_BELIEVE", 0.0)
        script.watches[:] = [lambda request: request.status(403, "Forbidden", "no")]
        with pytest.raises(ApiError):
            take(Watch(cluster, POD), 2)


def test_long_lists_come_in_pages(tmp_path, monkeypatch) -> None:
    def answer(request: Request) -> None:
        page = int(request.query.get("continue", "0"))
        request.items(thing(f"pod-{page}", 1), more=str(page + 1) if page < 3 else None)

    with api(answer, tmp_path, monkeypatch) as (cluster, _):
        assert [one["metadata"]["name"] for one in cluster.items(POD)] == ["pod-0", "pod-1", "pod-2", "pod-3"]


def mpijob(version: int, *conditions: str) -> dict:
    labels = {"app.kubernetes.io/managed-by": "hvdkit", "hvdkit.io/job": "train", "hvdkit.io/backend": "mpijob"}
    status = {"conditions": [{"type": kind, "status": "True"} for kind in conditions]}
    one = thing("train", version, apiVersion="kubeflow.org/v2beta1", kind="MPIJob", status=status)
    one["metadata"] |= {"labels": labels}
    return one


class TestLiveJob:
    def test_the_end_that_nobody_saw_is_in_the_next_list(self, tmp_path, monkeypatch) -> None:
        """The watch breaks, the job ends, the server has forgotten the version: the end is seen all the same."""
        seen = {"lists": 0}

        def answer(request: Request) -> None:
            if "mpijobs" not in request.route:
                if "watch" in request.query:
                    with request.stream():
                        pass
                else:
                    request.items()
            elif "watch" in request.query:
                request.status(410, "Expired", "too old")
            else:
                seen["lists"] += 1
                ended = ("Succeeded",) if seen["lists"] > 2 else ()
                request.items(mpijob(seen["lists"], *ended))

        with api(answer, tmp_path, monkeypatch) as (cluster, _), LiveJob(cluster, Job(main=mpijob(1))) as live:
            phases = []
            for moment in live.moments():
                phases.append(moment.state.phase)
                if moment.state.finished:
                    break
        assert phases[-1] == "Succeeded"

    def test_a_deleted_job_is_said(self, tmp_path, monkeypatch) -> None:
        def answer(request: Request) -> None:
            if "watch" not in request.query:
                request.items(*([mpijob(1)] if "mpijobs" in request.route else []))
            else:
                with request.stream() as send:
                    if "mpijobs" in request.route:
                        send(line("DELETED", mpijob(2)))

        with api(answer, tmp_path, monkeypatch) as (cluster, _), LiveJob(cluster, Job(main=mpijob(1))) as live:
            with pytest.raises(JobGone, match="'train' was deleted"):
                for _ in live.moments():
                    pass

    def test_the_end_of_a_job_that_is_removed_at_once_is_seen(self, tmp_path, monkeypatch) -> None:
        def answer(request: Request) -> None:
            if "watch" not in request.query:
                request.items(*([mpijob(1)] if "mpijobs" in request.route else []))
            else:
                with request.stream() as send:
                    if "mpijobs" in request.route:
                        send(line("MODIFIED", mpijob(2, "Succeeded")) + line("DELETED", mpijob(3, "Succeeded")))

        with api(answer, tmp_path, monkeypatch) as (cluster, _), LiveJob(cluster, Job(main=mpijob(1))) as live:
            assert next(moment for moment in live.moments() if moment.state.finished).state.phase == "Succeeded"

    def test_memory_does_not_grow_with_the_length_of_the_run(self, tmp_path, monkeypatch) -> None:
        padding = "x" * 10_000
        rounds = {"mpijobs": 0}

        def answer(request: Request) -> None:
            if "mpijobs" not in request.route or "watch" not in request.query:
                if "watch" in request.query:
                    with request.stream():
                        pass
                else:
                    request.items(*([mpijob(1)] if "mpijobs" in request.route else []))
                return
            with request.stream() as send:
                for _ in range(500):
                    rounds["mpijobs"] += 1
                    one = mpijob(rounds["mpijobs"], "Running" if rounds["mpijobs"] < 2_000 else "Succeeded")
                    one["metadata"]["annotations"] = {"padding": padding}
                    send(line("MODIFIED", one))

        with api(answer, tmp_path, monkeypatch) as (cluster, _), LiveJob(cluster, Job(main=mpijob(1))) as live:
            tracemalloc.start()
            for moment in live.moments():
                if moment.state.finished:
                    break
            current, _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()
        assert rounds["mpijobs"] >= 2_000  # 20 MB have passed by
        assert current < 8_000_000
