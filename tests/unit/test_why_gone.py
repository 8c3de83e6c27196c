"""`hvdkit why` of a job whose object is gone: what its last events say, and honest words where they say nothing."""

from typing import Any

import pytest
from scripted_api import Request, api

from hvdkit.cluster.gather import facts_of
from hvdkit.cluster.job import NoSuchJob
from hvdkit.cluster.why import explain
from hvdkit.cluster.why_facts import Answer
from hvdkit.errors import InputError

QUIET = ("Normal", "SuccessfulCreate", "Created pod: train-0-abcde", "Job")
UNMOUNTED = ("Warning", "FailedMount", 'MountVolume.SetUp failed for volume "nfs-0" : exit status 32', "Pod")


def event(kind: str, reason: str, message: str, about: str, *, minute: int, uid: str = "only") -> dict:
    name = {"Pod": "train-0-abcde", "launcher": "train-launcher"}.get(about, "train")
    involved = {"kind": {"launcher": "Job"}.get(about, about), "name": name, "uid": uid}
    when = f"2026-01-01T00:{minute:02}:00Z"
    return {"type": kind, "reason": reason, "message": message, "involvedObject": involved, "lastTimestamp": when}


def why(tmp_path: Any, monkeypatch: Any, *events: dict, found: dict | None = None) -> Answer:
    def answer(request: Request) -> None:
        if request.route.endswith("/events"):
            request.items(*events)
        elif found is not None and request.route.endswith("/jobs/train"):
            request.json(200, found)
        else:
            request.status(404, "NotFound", "not found")

    with api(answer, tmp_path, monkeypatch) as (cluster, _):
        return explain(facts_of(cluster, "train"))


def in_order(*told: tuple[str, str, str, str]) -> list[dict]:
    return [event(*one, minute=minute) for minute, one in enumerate(told)]


@pytest.mark.parametrize(
    "end",
    [
        ("Normal", "Completed", "Job completed", "Job"),
        ("Normal", "Completed", "Job completed", "launcher"),
        ("Normal", "MPIJobSucceeded", "MPIJob team/train successfully completed.", "MPIJob"),
        ("Normal", "PyTorchJobSucceeded", "PyTorchJob train is successfully completed.", "PyTorchJob"),
    ],
)
def test_succeeded(end: tuple, tmp_path, monkeypatch) -> None:
    """Also where something was in its way before."""
    answer = why(tmp_path, monkeypatch, *in_order(QUIET, UNMOUNTED, end))
    assert answer.cause == "nothing is wrong: the job 'train' succeeded, and was removed since."
    assert answer.trouble == "" and end[1] in answer.evidence[0]


@pytest.mark.parametrize(
    "end",
    [
        ("Warning", "BackoffLimitExceeded", "Job has reached the specified backoff limit", "Job"),
        ("Warning", "BackoffLimitExceeded/", "Job has reached the specified backoff limit: ", "MPIJob"),
        ("Warning", "DeadlineExceeded", "Job was active longer than specified deadline", "launcher"),
        ("Warning", "PyTorchJobFailed", "PyTorchJob train is failed because 1 Worker replica(s) failed.", "PyTorchJob"),
    ],
)
def test_failed(end: tuple, tmp_path, monkeypatch) -> None:
    answer = why(tmp_path, monkeypatch, *in_order(QUIET, end))
    assert answer.trouble == "failed" and "--save-logs" in answer.what_to_do
    assert answer.cause.startswith("the job failed, and was removed since: ") and end[2][:12] in answer.cause
    stuck = why(tmp_path, monkeypatch, *in_order(QUIET, UNMOUNTED, end))
    assert stuck.trouble == "mount" and stuck.cause.startswith("the job failed, and was removed since: the volume")
    assert any(end[1] in line for line in stuck.evidence)


@pytest.mark.parametrize(
    "last", [QUIET, ("Warning", "MPIJobFailed", "worker pod created failed: etcd is slow", "MPIJob")]
)
def test_events_that_do_not_say_how_it_ended(last: tuple, tmp_path, monkeypatch) -> None:
    answer = why(tmp_path, monkeypatch, *in_order(QUIET, last))
    assert answer.trouble == "gone" and last[1] in answer.evidence[-1]
    assert answer.cause == "the job is gone, and what is left of it does not say how it ended."
    stuck = why(tmp_path, monkeypatch, *in_order(QUIET, UNMOUNTED, last))
    assert stuck.cause.startswith("the job is gone, ") and "before that, the volume nfs-0 of pod" in stuck.cause


def test_of_several_jobs_of_the_name_the_last_one_counts(tmp_path, monkeypatch) -> None:
    first = [event(*UNMOUNTED, minute=0), event("Normal", "Completed", "Job completed", "Job", minute=1, uid="first")]
    second = [event(*QUIET, minute=2, uid="second")]
    assert why(tmp_path, monkeypatch, *first, *second).trouble == "gone"
    assert "succeeded" in why(tmp_path, monkeypatch, *first).cause


def test_what_is_there_and_not_ours_is_not_gone(tmp_path, monkeypatch) -> None:
    foreign = {"metadata": {"name": "train", "uid": "only"}}
    with pytest.raises(InputError, match="was not made by hvdkit"):
        why(tmp_path, monkeypatch, *in_order(QUIET), found=foreign)
    with pytest.raises(NoSuchJob, match="there is no job 'train'"):
        why(tmp_path, monkeypatch)
