"""Which pod is which worker, in whose log a rank speaks, and what may be changed about a job; no API."""

from typing import Any

import pytest
from golden_specs import spec

from hvdkit.cluster.change import scale, set_suspended
from hvdkit.cluster.follow import Printer, exit_code_of, state_line
from hvdkit.cluster.job import Job
from hvdkit.cluster.kinds import MAIN
from hvdkit.cluster.logs import of_rank, pod_of_worker, slots_of, speaking_pods, worker_pods
from hvdkit.errors import InputError
from hvdkit.jobs import CLUSTER_BACKENDS, render
from hvdkit.jobs.policy import Elastic
from hvdkit.jobs.scheduling import Scheduling
from hvdkit.jobs.state import JobState


def job(backend: str, **fields: Any) -> Job:
    made = next(one for one in render(spec(backend, **fields)) if one["kind"] == MAIN[backend].kind)
    return Job(main={**made, "metadata": {**made["metadata"], "uid": "1"}})


def pod(name: str, created: str = "2026-01-01T00:00:00Z", **labels: str) -> dict:
    prefixes = {"replica_index": "training.kubeflow.org/replica-index", "role": "training.kubeflow.org/job-role"}
    prefixes["replica_type"] = "training.kubeflow.org/replica-type"
    prefixes["job"] = "batch.kubernetes.io/job-completion-index"
    named = {prefixes[key]: value for key, value in labels.items()}
    return {"kind": "Pod", "metadata": {"name": name, "labels": named, "creationTimestamp": created}}


def names(pods: dict[int, dict]) -> dict[int, str]:
    return {number: one["metadata"]["name"] for number, one in pods.items()}


class Patches:
    """A cluster that only notes what it is asked to change."""

    def __init__(self) -> None:
        self.sent: list[dict] = []

    def patch(self, kind: Any, name: str, change: dict) -> None:
        self.sent.append(change)


@pytest.mark.parametrize("backend", CLUSTER_BACKENDS)
def test_slots_are_read_from_the_object(backend: str) -> None:
    assert slots_of(job(backend, slots=3)) == 3


class TestWorkers:
    def test_mpijob(self) -> None:
        pods = [
            pod("train-launcher-a", role="launcher"),
            pod("train-worker-1", replica_index="1", role="worker"),
            pod("train-worker-0", replica_index="0", role="worker"),
            pod("train-launcher-b", "2026-01-01T00:10:00Z", role="launcher"),
        ]
        found = job("mpijob")
        assert names(worker_pods(found, pods)) == {0: "train-worker-0", 1: "train-worker-1"}
        speaking = [one["metadata"]["name"] for one in speaking_pods(found, pods)]
        assert speaking == ["train-launcher-a", "train-launcher-b"]
        with pytest.raises(InputError, match="has no pod for worker 2; there are 0, 1"):
            pod_of_worker(found, pods, 2)

    def test_indexed_job_after_an_index_started_again(self) -> None:
        pods = [
            pod("train-1-new", "2026-01-01T00:10:00Z", job="1"),
            pod("train-0-old", job="0"),
            pod("train-1-old", job="1"),
        ]
        assert names(worker_pods(job("indexed-job"), pods)) == {0: "train-0-old", 1: "train-1-new"}

    def test_pytorchjob_counts_its_master_first(self) -> None:
        pods = [
            pod("train-worker-0", replica_index="0", replica_type="worker"),
            pod("train-master-0", replica_index="0", replica_type="master", role="master"),
        ]
        assert names(worker_pods(job("pytorchjob"), pods)) == {0: "train-master-0", 1: "train-worker-0"}

    def test_pods_without_a_number_are_counted_by_name(self) -> None:
        assert names(worker_pods(job("job"), [pod("train-b"), pod("train-a")])) == {0: "train-a", 1: "train-b"}


def test_a_ranks_lines() -> None:
    assert of_rank(b"[ 3] loss 1", 3) and of_rank(b"[3]", 3)
    assert not of_rank(b"[13] loss", 3) and not of_rank(b"hvdkit: [3]", 3)


def test_lines_of_workers_are_told_apart_where_no_rank_does(capfdbinary) -> None:
    printer = Printer()
    printer.show(b"[0] from a rank", b"worker 1: ")
    printer.show(b"from a script", b"worker 1: ")
    assert capfdbinary.readouterr().out == b"[0] from a rank\nworker 1: from a script\n"


@pytest.mark.parametrize("no_colour", ["", "1"])
def test_ranks_are_in_colour_on_a_terminal_unless_somebody_wants_none(no_colour: str, capfdbinary, monkeypatch) -> None:
    monkeypatch.setenv("NO_COLOR", no_colour)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    Printer().show(b"[1] loss")
    assert capfdbinary.readouterr().out == (b"[1] loss\n" if no_colour else b"\x1b[32m[1]\x1b[0m loss\n")


@pytest.mark.parametrize(
    ("found", "code"),
    [
        (JobState(phase="Succeeded", exit_code=0), 0),
        (JobState(phase="Failed", exit_code=7), 7),
        (JobState(phase="Failed", exit_code=75), 75),
        (JobState(phase="Failed"), 1),
    ],
)
def test_the_exit_code_of_a_job(found: JobState, code: int) -> None:
    assert exit_code_of(found) == code


def test_the_state_in_a_line() -> None:
    found = JobState(phase="Pending", ready=0, workers=2, reason="Unschedulable", message="0/1 nodes:\n no GPU")
    assert state_line(found) == "Pending, 0 of 2 workers ready: Unschedulable: 0/1 nodes: no GPU"


class TestChanges:
    @pytest.mark.parametrize("backend", ["mpijob", "pytorchjob"])
    def test_elastic_jobs_are_scaled_within_their_bounds(self, backend: str) -> None:
        cluster, elastic = Patches(), job(backend, elastic=Elastic(min_workers=1, max_workers=4), workers=2)
        assert scale(cluster, elastic, 3) == 2
        replicas = {"mpijob": "mpiReplicaSpecs", "pytorchjob": "pytorchReplicaSpecs"}[backend]
        assert cluster.sent == [{"spec": {replicas: {"Worker": {"replicas": 3}}}}]
        with pytest.raises(InputError, match="--workers: 5 is outside the 1 to 4 workers"):
            scale(cluster, elastic, 5)

    @pytest.mark.parametrize("backend", CLUSTER_BACKENDS)
    def test_others_are_not(self, backend: str) -> None:
        with pytest.raises(InputError, match=r"scale: (not for backend|the job .* is not elastic)"):
            scale(Patches(), job(backend), 3)

    @pytest.mark.parametrize("backend", ["mpijob", "pytorchjob", "indexed-job", "job"])
    def test_suspend(self, backend: str) -> None:
        cluster = Patches()
        assert set_suspended(cluster, job(backend), True) and not set_suspended(cluster, job(backend), False)
        kubeflow = backend in ("mpijob", "pytorchjob")
        assert cluster.sent == [{"spec": {"runPolicy": {"suspend": True}} if kubeflow else {"suspend": True}}]

    def test_a_queue_decides_itself(self) -> None:
        with pytest.raises(InputError, match="Kueue decides"):
            set_suspended(Patches(), job("mpijob", scheduling=Scheduling(queue="team")), False)

    def test_monarch_cannot(self) -> None:
        with pytest.raises(InputError, match="not for backend monarch"):
            set_suspended(Patches(), job("monarch"), True)

    def test_what_has_ended_stays_so(self) -> None:
        ended = job("job")
        ended.main["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
        with pytest.raises(InputError, match="has ended"):
            set_suspended(Patches(), ended, True)
