"""Which events are about a job: its own and its pods', not those of jobs with a similar or the same name."""

import pytest
from scripted_api import Request, api

from hvdkit.cluster.gather import events_about
from hvdkit.cluster.job import Job
from hvdkit.jobs.monarch import mesh_name


def job(name: str, backend: str) -> Job:
    metadata = {"name": name, "uid": "this", "creationTimestamp": "2026-01-01T09:30:00Z"}
    metadata["labels"] = {"hvdkit.io/backend": backend, "hvdkit.io/job": name}
    return Job(main={"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata})


JOB = job("train", "job")
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


@pytest.mark.parametrize("name", ["train", "train-it"])
@pytest.mark.parametrize(("kind", "suffix"), [("Pod", "-0"), ("StatefulSet", ""), ("MonarchMesh", "")])
def test_events_of_a_mesh_which_has_a_name_of_its_own(name: str, kind: str, suffix: str, tmp_path, monkeypatch) -> None:
    def answer(request: Request) -> None:
        request.items(event(mesh_name(name) + suffix, kind), event(f"{mesh_name(name)}-0", "Job", "other"))

    with api(answer, tmp_path, monkeypatch) as (cluster, _):
        assert len(events_about(cluster, name, job(name, "monarch"))) == 1
        assert len(events_about(cluster, name)) == 1
        # Somebody's StatefulSet that happens to be called like a job of another kind is none of it.
        assert bool(events_about(cluster, name, job(name, "indexed-job"))) == (not suffix and name == "train")
