"""Leftovers of an earlier job of the same name say nothing about the new one; objects as the API gives them."""

import json
from typing import Any

import pytest
from scripted_api import Request, api

from hvdkit.cluster.job import Job, all_jobs, gather, read_state
from hvdkit.cluster.live import LiveJob
from hvdkit.cluster.ownership import own

BEFORE, NOW, LATER = "2026-01-01T00:00:00Z", "2026-01-01T00:10:00Z", "2026-01-01T00:10:01Z"
KINDS = {"mpijob": ("kubeflow.org/v2beta1", "MPIJob"), "pytorchjob": ("kubeflow.org/v1", "PyTorchJob")}


def thing(kind: str, name: str, uid: str, made: str, owner: dict | None = None, **more: Any) -> dict:
    meta: dict = {"name": name, "uid": uid, "creationTimestamp": made, "resourceVersion": "1"}
    if owner is not None:
        owners = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "controller": True}
        meta["ownerReferences"] = [{**owners, "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"]}]
    return {"apiVersion": "v1", "kind": kind, "metadata": meta, **more}


def job(backend: str, uid: str, made: str) -> dict:
    version, kind = KINDS.get(backend, ("batch/v1", "Job"))
    one = thing(kind, "train", uid, made) | {"apiVersion": version}
    labels = {"app.kubernetes.io/managed-by": "hvdkit", "hvdkit.io/job": "train", "hvdkit.io/backend": backend}
    one["metadata"]["labels"] = labels
    return one


def launcher_job(owner: dict | None, uid: str, made: str, *conditions: str) -> dict:
    status = {"conditions": [{"type": kind, "status": "True"} for kind in conditions]}
    return thing("Job", "train-launcher", uid, made, owner, status=status) | {"apiVersion": "batch/v1"}


def pod(name: str, owner: dict | None, made: str, phase: str = "Succeeded", component: str = "launcher") -> dict:
    one = thing("Pod", name, f"uid-of-{name}-{made}", made, owner, status={"phase": phase})
    ours = {"app.kubernetes.io/managed-by": "hvdkit", "hvdkit.io/job": "train"}
    one["metadata"]["labels"] = {**ours, "app.kubernetes.io/component": component}
    return one


OLD, NEW = job("mpijob", "old", BEFORE), job("mpijob", "new", NOW)
OLD_LAUNCHER = launcher_job(OLD, "old-launcher", BEFORE, "Complete")
LEFTOVERS = [OLD_LAUNCHER, pod("train-launcher-abcde", OLD_LAUNCHER, BEFORE)]


class TestMpijob:
    def test_by_name_alone_the_earlier_job_counted(self) -> None:
        assert read_state("mpijob", [NEW, *LEFTOVERS]).phase == "Succeeded"
        assert read_state("mpijob", [NEW, *own(NEW, LEFTOVERS)]).phase == "Pending"

    def test_what_was_made_within_one_second_is_told_apart_by_its_owners(self) -> None:
        old = job("mpijob", "old", NOW)
        launcher = launcher_job(old, "old-launcher", NOW, "Complete")
        left = [launcher, pod("train-launcher-abcde", launcher, NOW), pod("train-worker-0", old, NOW)]
        assert own(NEW, left) == []

    def test_a_pod_whose_job_is_gone_already_is_told_by_its_age(self) -> None:
        assert own(NEW, LEFTOVERS[1:]) == []
        mine = pod("train-launcher-fghij", launcher_job(NEW, "new-launcher", NOW), NOW)
        assert own(NEW, [*LEFTOVERS, mine]) == [mine]  # seen before its Job was

    def test_its_own_count_whatever_the_clocks_of_several_api_servers_say(self) -> None:
        launcher = launcher_job(NEW, "new-launcher", BEFORE, "Complete")
        mine = [launcher, pod("train-launcher-fghij", launcher, BEFORE), pod("train-worker-0", NEW, BEFORE)]
        assert own(NEW, [*LEFTOVERS, *mine]) == mine

    def test_a_job_that_only_has_the_name_of_a_launcher(self) -> None:
        assert own(NEW, [launcher_job(None, "of somebody", LATER, "Complete")]) == []


@pytest.mark.parametrize("backend", ["indexed-job", "job", "pytorchjob"])
def test_pods_of_the_earlier_job(backend: str) -> None:
    old, new = job(backend, "old", NOW), job(backend, "new", NOW)
    mine = pod("train-0-fghij", new, NOW, component="worker")
    assert own(new, [pod("train-0-abcde", old, NOW, component="worker"), mine]) == [mine]


class TestMonarch:
    """The mesh comes before the job and is handed over to it; its pods belong to a StatefulSet, which is not read."""

    old, new = job("monarch", "old", BEFORE), job("monarch", "new", LATER)
    set_of_pods = thing("StatefulSet", "train", "set", NOW)

    @pytest.mark.parametrize("handed_over", [True, False])
    def test_its_mesh_and_their_pods(self, handed_over: bool) -> None:
        mesh = thing("MonarchMesh", "train", "mesh", NOW, self.new if handed_over else None)
        mine = [mesh, pod("train-0", self.set_of_pods, NOW, "Running", "worker"), pod("train-x", self.new, LATER)]
        assert own(self.new, [pod("train-1", self.set_of_pods, BEFORE, "Running", "worker"), *mine]) == mine

    def test_the_earlier_mesh(self) -> None:
        left = [thing("MonarchMesh", "train", "mesh", BEFORE, self.old), pod("train-0", self.set_of_pods, BEFORE)]
        assert own(self.new, left) == []


class Leftovers:
    """A cluster where garbage collection is not done yet."""

    def __init__(self, *later: dict) -> None:
        self.later = later

    def __call__(self, request: Request) -> None:
        there = {"mpijobs": [NEW], "jobs": [], "pods": LEFTOVERS[1:]}
        if "metadata.name=train-launcher" in request.query.get("fieldSelector", ""):
            there["jobs"] = [OLD_LAUNCHER]
        kind = request.route.rpartition("/")[2]
        if "watch" in request.query:
            with request.stream() as send:
                for one in self.later:
                    if kind == f"{one['kind'].lower()}s":
                        send(json.dumps({"type": "MODIFIED", "object": one}).encode() + b"\n")
        else:
            request.items(*there.get(kind, []))


def test_status_list_and_why_do_not_count_them(tmp_path, monkeypatch) -> None:
    with api(Leftovers(), tmp_path, monkeypatch) as (cluster, _):
        assert gather(cluster, Job(main=NEW)) == [NEW]
        ((found, state),) = all_jobs(cluster)
    assert (found.uid, state.phase) == ("new", "Pending")


def test_a_launch_waits_for_the_end_of_its_own_job(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("hvdkit.cluster.watch.pause", lambda attempt, error=None: 0.01)
    launcher = launcher_job(NEW, "new-launcher", NOW, "Failed")
    script = Leftovers(launcher, pod("train-launcher-fghij", launcher, NOW, "Failed"))
    with api(script, tmp_path, monkeypatch) as (cluster, _), LiveJob(cluster, Job(main=NEW)) as live:
        phases = [next(moments := live.moments()).state.phase]
        phases.append(next(moment for moment in moments if moment.state.finished).state.phase)
    assert phases[0] != "Succeeded" and phases[1] == "Failed"
