"""Which events are about a job: its own and its pods', not those of jobs with a similar or the same name."""

import pytest
from scripted_api import Request, api

from hvdkit.cluster.gather import events_about
from hvdkit.cluster.job import Job

JOB = Job(
    main={
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "train", "uid": "this", "creationTimestamp": "2026-01-01T09:30:00Z", "labels": {}},
    }
)
LATER = {"lastTimestamp": "2026-01-01T09:30:00Z"}


def event(name: str, kind: str, uid: str = "", **when: str) -> dict:
    return {"involvedObject": {"name": name, "kind": kind, "uid": uid}, "metadata": {}, **(when or LATER)}


@pytest.mark.parametrize(
    ("one", "with_job", "without"),
    [
        (event("train", "Job", "this"), True, True),
        (event("train-0-x7b4k", "Pod"), True, True),
        (event("train-x7b4k", "Pod"), True, True),
        (event("train-launcher", "Job", "other"), True, True),
        (event("train-worker-0", "Pod"), True, True),
        (event("train", "Service", "other"), True, True),
        (event("train", "Job", "this", eventTime="2026-01-01T09:30:00.000001Z"), True, True),
        (event("train-x7b4k", "Job", "other"), False, False),
        (event("train-x7b4k", "MPIJob", "other"), False, False),
        (event("train-more", "Job", "other"), False, False),
        (event("train", "Job", "other"), False, True),
        (event("train-0-x7b4k", "Pod", lastTimestamp="2026-01-01T09:29:59Z"), False, True),
        (event("train", "Job", "this", eventTime="2026-01-01T09:29:59.999999Z"), False, True),
    ],
)
def test_events_of_a_job(one: dict, with_job: bool, without: bool, tmp_path, monkeypatch) -> None:
    def answer(request: Request) -> None:
        request.items(one)

    with api(answer, tmp_path, monkeypatch) as (cluster, _):
        assert bool(events_about(cluster, "train", JOB)) == with_job
        assert bool(events_about(cluster, "train")) == without
