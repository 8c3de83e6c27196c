"""What live objects mean: jobs as rendered, with statuses in the form that Kubernetes and the operators write."""

import json
from typing import Any

import pytest
from golden_specs import spec
from hypothesis import given
from hypothesis import strategies as st

from hvdkit.jobs import CLUSTER_BACKENDS, render, state_of
from hvdkit.jobs.policy import Elastic, RunPolicy
from hvdkit.jobs.resources import Launcher
from hvdkit.jobs.scheduling import Scheduling
from hvdkit.jobs.state import PHASES, JobState

MAIN_KIND = {
    "mpijob": "MPIJob",
    "indexed-job": "Job",
    "job": "Job",
    "pytorchjob": "PyTorchJob",
    "monarch": "Job",
}
Object = dict[str, Any]


def job(backend: str, status: Object | None = None, **fields) -> Object:
    """The job's own object as rendered, with a status."""
    made = next(one for one in render(spec(backend, **fields)) if one["kind"] == MAIN_KIND[backend])
    return {**made, "status": {"startTime": "2026-01-01T00:00:00Z", **(status or {})}}


def condition(kind: str, status: str = "True", **more: str) -> Object:
    return {"type": kind, "status": status, "lastTransitionTime": "2026-01-01T01:00:00Z", **more}


def launcher_job(*conditions: Object) -> Object:
    return {"kind": "Job", "metadata": {"name": "train-launcher"}, "status": {"conditions": list(conditions)}}


def pod(
    component: str = "worker",
    phase: str = "Running",
    *,
    ready: bool | None = None,
    code: int | None = None,
    waiting: str | None = None,
    unscheduled: str | None = None,
    restarts: int = 0,
    created: str = "2026-01-01T00:00:01Z",
    ended: str = "2026-01-01T00:30:00Z",
    reason: str = "Error",
    message: str = "rank 1 raised",
    name: str = "train",
    index: int | None = None,
) -> Object:
    conditions = [condition("Ready", str(phase == "Running" if ready is None else ready))]
    if unscheduled:
        conditions.append(condition("PodScheduled", "False", reason="Unschedulable", message=unscheduled))
    container: Object = {"name": "main", "restartCount": restarts, "state": {}}
    if code is not None:
        container["state"] = {
            "terminated": {"exitCode": code, "reason": reason, "message": message, "finishedAt": ended}
        }
    if waiting:
        container["state"] = {"waiting": {"reason": waiting, "message": "Back-off pulling image"}}
    labels = {"app.kubernetes.io/component": component}
    status = {"phase": phase, "conditions": conditions, "containerStatuses": [container]}
    metadata: Object = {"name": name, "labels": labels, "creationTimestamp": created}
    if index is not None:
        metadata["annotations"] = {"batch.kubernetes.io/job-completion-index": str(index)}
    return {"kind": "Pod", "metadata": metadata, "spec": {}, "status": status}


def launcher(phase: str = "Running", **more) -> Object:
    return pod("launcher", phase, **more)


class TestMpiJob:
    def of(self, *objects: Object, status: Object | None = None, **fields) -> JobState:
        return state_of("mpijob", [job("mpijob", status, **fields), *objects])

    def test_nothing_made_yet(self) -> None:
        found = self.of()
        assert (found.phase, found.ready, found.workers) == ("Pending", 0, 2)

    def test_a_failed_launcher_is_told_in_words_not_in_json(self) -> None:
        left = json.dumps({"version": 1, "exit_code": 137, "reason": "rank 1 on w-1 vanished", "tail": []})
        found = self.of(launcher("Failed", code=137, message=left), run=RunPolicy(backoff_limit=3))
        assert (found.phase, found.message) == ("Restarting", "rank 1 on w-1 vanished")

    def test_workers_run_before_the_launcher(self) -> None:
        assert self.of(pod(), pod(phase="Pending")).phase == "Starting"

    def test_the_launcher_waits_for_a_worker(self) -> None:
        found = self.of(launcher(), pod(), pod(ready=False))
        assert (found.phase, found.ready) == ("Starting", 1)

    def test_running(self) -> None:
        found = self.of(launcher(), pod(), pod())
        assert (found.phase, found.ready, found.workers) == ("Running", 2, 2)
        assert found.started == "2026-01-01T00:00:00Z" and not found.finished

    def test_an_elastic_job_runs_with_fewer(self) -> None:
        elastic = Elastic(min_workers=1, max_workers=3)
        assert self.of(launcher(), pod(), pod(ready=False), elastic=elastic).phase == "Running"
        assert self.of(launcher(), pod(ready=False), elastic=elastic).phase == "Starting"

    def test_the_launcher_is_a_worker(self) -> None:
        found = self.of(launcher(), pod(), launcher=Launcher(as_worker=True))
        assert (found.phase, found.ready, found.workers) == ("Running", 2, 2)

    def test_a_pod_that_fits_nowhere_says_why(self) -> None:
        found = self.of(pod(), pod(phase="Pending", unscheduled="0/3 nodes: insufficient nvidia.com/gpu"))
        assert (found.phase, found.reason) == ("Pending", "Unschedulable")
        assert "nvidia.com/gpu" in found.message

    def test_an_image_that_does_not_come_says_so(self) -> None:
        found = self.of(pod(phase="Pending", waiting="ImagePullBackOff"), launcher())
        assert (found.phase, found.reason) == ("Starting", "ImagePullBackOff")

    def test_succeeded_though_the_last_condition_says_running(self) -> None:
        conditions = [condition("Created"), condition("Succeeded"), condition("Running")]
        found = self.of(status={"conditions": conditions, "completionTime": "2026-01-01T02:00:00Z"})
        assert (found.phase, found.exit_code, found.ended) == ("Succeeded", 0, "2026-01-01T02:00:00Z")

    def test_failed_though_the_operator_still_says_running(self) -> None:
        found = self.of(
            launcher("Failed", code=3), status={"conditions": [condition("Running")]}, run=RunPolicy(backoff_limit=0)
        )
        assert (found.phase, found.exit_code, found.message) == ("Failed", 3, "rank 1 raised")
        assert found.finished and found.ended == "2026-01-01T00:30:00Z"

    def test_the_launchers_job_knows_before_the_operator(self) -> None:
        failed = condition("Failed", reason="BackoffLimitExceeded", message="Job has reached the limit")
        found = self.of(launcher_job(failed), launcher("Failed", code=1), status={"conditions": [condition("Running")]})
        assert (found.phase, found.reason, found.exit_code) == ("Failed", "BackoffLimitExceeded", 1)
        assert self.of(launcher_job(condition("Complete"))).phase == "Succeeded"

    def test_the_code_of_pods_that_a_deadline_ended_is_not_the_jobs(self) -> None:
        """Else it would be 75, restart me, or not, depending on when one looks."""
        passed = condition("FailureTarget", reason="DeadlineExceeded", message="longer than specified deadline")
        for seen in (launcher(), launcher("Failed", code=75)):
            found = self.of(launcher_job(passed), seen)
            assert (found.phase, found.reason, found.exit_code) == ("Failed", "DeadlineExceeded", None)

    def test_a_condition_that_is_not_true_counts_for_nothing(self) -> None:
        status = {"conditions": [condition("Failed", "False")]}
        assert self.of(launcher(), pod(), pod(), status=status).phase == "Running"

    def test_a_failed_launcher_is_tried_again(self) -> None:
        first = launcher("Failed", code=75, created="2026-01-01T00:00:01Z")
        found = self.of(first, pod(), pod())
        assert (found.phase, found.exit_code) == ("Restarting", 75)
        second = launcher(created="2026-01-01T00:31:00Z")
        assert self.of(second, first, pod(), pod(ready=False)).phase == "Restarting"
        assert self.of(second, first, pod(), pod()).phase == "Running"

    def test_an_evicted_worker_is_not_the_end(self) -> None:
        """The operator says Failed, keeps the failed pod and makes no new one; the launcher goes on."""
        says = condition("Failed", reason="MPIJobEvicted", message="1/2 workers are evicted")
        evicted = {"conditions": [condition("Created"), says]}
        lost = pod("worker", "Failed", ready=False)
        found = self.of(launcher(), pod(), lost, status=evicted)
        assert (found.phase, found.reason, found.finished) == ("Restarting", "MPIJobEvicted", False)
        assert found.message.startswith("1/2 workers are evicted; delete its pod")
        assert self.of(launcher("Failed", code=75), pod(), lost, status=evicted).phase == "Restarting"
        assert self.of(launcher(), pod(), pod(), status=evicted).phase == "Running"  # somebody deleted the pod
        assert self.of(launcher(), pod(), lost, status=evicted | {"completionTime": "now"}).phase == "Failed"
        other = {"conditions": [condition("Failed", reason="MPIJobFailed")]}
        assert self.of(launcher(), pod(), lost, status=other).phase == "Failed"

    def test_suspended_by_a_queue(self) -> None:
        found = self.of(scheduling=Scheduling(queue="team-a"))
        assert found.phase == "Suspended" and "team-a" in found.message

    def test_the_object_is_gone(self) -> None:
        assert state_of("mpijob", [pod()]).reason == "NotFound"


class TestJobs:
    @pytest.mark.parametrize("backend", ["indexed-job", "job"])
    def test_pods_that_are_done_count_before_the_job_has_counted_them(self, backend: str) -> None:
        live = job(backend, {"active": 2}, workers=2)
        done = [pod(phase="Succeeded", code=0, name=f"train-{number}", index=number) for number in range(2)]
        ended = state_of(backend, [live, *done])
        assert (ended.phase, ended.exit_code, ended.ended) == ("Succeeded", 0, "2026-01-01T00:30:00Z")
        assert ended.ready == 2
        assert state_of(backend, [live, done[0], pod()]).phase == "Running"
        assert state_of(backend, [live, done[0], pod(ready=False)]).phase == "Starting"

    @pytest.mark.parametrize("backend", ["indexed-job", "job"])
    def test_life_of_a_job(self, backend: str) -> None:
        def of(status: Object, *pods: Object) -> str:
            return state_of(backend, [job(backend, status), *pods]).phase

        assert of({}) == "Pending"
        assert of({"active": 2}, pod(), pod(phase="Pending")) == "Starting"
        assert of({"active": 2, "ready": 2}, pod(), pod()) == "Running"
        assert of({"active": 1, "ready": 1, "succeeded": 1}, pod()) == "Running"
        assert of({"active": 1, "failed": 1}, pod("worker", "Failed", code=75), pod()) == "Restarting"
        assert of({"active": 2}, pod(ready=False, restarts=1), pod()) == "Restarting"
        assert of({"succeeded": 2, "conditions": [condition("SuccessCriteriaMet")]}) == "Succeeded"
        assert of({"succeeded": 2, "conditions": [condition("Complete")]}) == "Succeeded"

    def test_the_exit_code_is_that_of_the_pod_that_failed_by_itself(self) -> None:
        failed = condition("Failed", reason="PodFailurePolicy", message="Container worker failed with exit code 3")
        followers = [pod("worker", "Failed", code=75, ended="2026-01-01T00:10:00Z"), pod("worker", "Failed", code=143)]
        culprit = pod("worker", "Failed", code=3, ended="2026-01-01T00:20:00Z")
        later = pod("worker", "Failed", code=4, ended="2026-01-01T00:30:00Z")
        live = job("indexed-job", {"failed": 4, "conditions": [failed]})
        found = state_of("indexed-job", [live, *followers, later, culprit])
        assert (found.phase, found.exit_code, found.reason) == ("Failed", 3, "PodFailurePolicy")
        assert state_of("indexed-job", [live, *followers]).exit_code == 75

    def test_two_pods_of_one_index_are_not_two_places(self) -> None:
        live = job("indexed-job", {"active": 1}, workers=2)
        twice = [pod(phase="Succeeded", code=0, name=f"train-0-{word}", index=0) for word in ("abc", "xyz")]
        assert state_of("indexed-job", [live, *twice, pod(name="train-1", index=1)]).phase == "Running"

    def test_it_has_failed_as_soon_as_that_is_decided(self) -> None:
        live = job("indexed-job", {"active": 1, "conditions": [condition("FailureTarget", reason="PodFailurePolicy")]})
        assert state_of("indexed-job", [live, pod()]).phase == "Failed"


class TestPyTorchJob:
    def of(self, status: Object, *pods: Object, **fields) -> JobState:
        return state_of("pytorchjob", [job("pytorchjob", status, **fields), *pods])

    def test_life_of_a_job(self) -> None:
        assert self.of({}).phase == "Pending"
        assert self.of({}, pod(), pod(phase="Pending")).phase == "Starting"
        assert self.of({"conditions": [condition("Running")]}, pod(), pod()).phase == "Running"
        assert self.of({"conditions": [condition("Restarting")]}, pod(), pod(ready=False)).phase == "Restarting"
        failed = {"conditions": [condition("Failed", message="limit"), condition("Running", "False")]}
        assert self.of(failed, pod("worker", "Failed", code=1)).exit_code == 1

    def test_an_elastic_job_runs_with_fewer(self) -> None:
        elastic = Elastic(min_workers=1, max_workers=3)
        assert self.of({}, pod(), pod(phase="Pending"), elastic=elastic).phase == "Running"
        assert self.of({}, pod(phase="Pending"), elastic=elastic).phase != "Running"

    def test_success_counts_when_the_workers_have_run(self) -> None:
        done = [condition("Succeeded")]
        ran = {"Master": {"succeeded": 1}, "Worker": {"succeeded": 1}}
        assert self.of({"conditions": done, "replicaStatuses": ran}).phase == "Succeeded"
        alone = {"Master": {"succeeded": 1}}
        assert self.of({"conditions": done, "replicaStatuses": alone}, workers=1).phase == "Succeeded"

    def test_success_without_a_worker_is_none(self) -> None:
        status = {"conditions": [condition("Succeeded")], "replicaStatuses": {"Master": {"succeeded": 1}, "Worker": {}}}
        found = self.of(status)
        assert (found.phase, found.reason) == ("Failed", "WorkersNeverRan")


class TestMonarch:
    def of(self, status: Object, *objects: Object) -> JobState:
        mesh = next(one for one in render(spec("monarch")) if one["kind"] == "MonarchMesh")
        return state_of("monarch", [job("monarch", status), mesh, *objects])

    def test_life_of_a_job(self) -> None:
        assert self.of({}).phase == "Pending"
        assert self.of({}, launcher(), pod(), pod(ready=False)).phase == "Starting"
        found = self.of({}, launcher(), pod(), pod())
        assert (found.phase, found.ready, found.workers) == ("Running", 2, 2)
        failed = {"conditions": [condition("Failed", reason="BackoffLimitExceeded")]}
        assert self.of(failed, launcher("Failed", code=4)).exit_code == 4
        assert self.of({"conditions": [condition("Complete")]}).phase == "Succeeded"

    def test_a_job_that_ends_does_not_start_again(self) -> None:
        """The controller deletes the mesh and leaves; its Job says so a moment later."""
        leaving = pod(ready=False)
        leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:30:00Z"
        assert self.of({}, launcher(), leaving).phase == "Running"
        done, failed = self.of({}, launcher("Succeeded")), self.of({}, launcher("Failed", code=7), leaving)
        assert (done.phase, done.exit_code) == ("Succeeded", 0)
        assert (failed.phase, failed.exit_code) == ("Failed", 7)

    def test_the_end_without_the_mesh_which_the_controller_deleted(self) -> None:
        live = job("monarch", {"conditions": [condition("Complete")]})
        found = state_of("monarch", [live])
        assert (found.phase, found.ready, found.workers) == ("Succeeded", 0, 2)


texts = st.sampled_from(["True", "False", "Succeeded", "Failed", "Running", "Pending", "Ready", "Complete", "", "75"])
pods = st.builds(
    pod,
    st.sampled_from(["worker", "launcher"]),
    st.sampled_from(["Pending", "Running", "Succeeded", "Failed", "Unknown"]),
    ready=st.booleans(),
    code=st.none() | st.integers(0, 255),
    restarts=st.integers(0, 3),
)
bare_pods = st.sampled_from([{"kind": "Pod"}, {"kind": "Pod", "status": None, "metadata": None, "spec": None}])
conditions = st.lists(st.builds(condition, texts, st.sampled_from(["True", "False", "Unknown"])), max_size=4)


@pytest.mark.parametrize("backend", CLUSTER_BACKENDS)
@given(conditions=conditions, around=st.lists(pods | bare_pods, max_size=5), status=st.booleans(), order=st.randoms())
def test_any_objects_have_a_state_in_any_order(backend: str, conditions, around, status, order) -> None:
    live = job(backend, {"conditions": conditions}) if status else {"kind": MAIN_KIND[backend]}
    for second, one in enumerate(around):
        if one.get("metadata"):
            one["metadata"]["creationTimestamp"] = f"2026-01-01T00:00:0{second}Z"
    objects = [live, *around]
    found = state_of(backend, objects)
    assert found.phase in PHASES and found.ready >= 0
    assert found.finished == (found.phase in ("Succeeded", "Failed"))
    order.shuffle(objects)
    assert state_of(backend, objects).phase == found.phase
