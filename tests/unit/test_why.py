"""`hvdkit why` over object sets as the API gives them: one cause each, with evidence and a way out."""

import json
from typing import Any

import pytest
from golden_specs import spec
from hypothesis import given
from hypothesis import strategies as st

from hvdkit.cluster.job import read_state
from hvdkit.cluster.why import RULES, explain
from hvdkit.cluster.why_facts import Answer, Facts
from hvdkit.jobs import CLUSTER_BACKENDS, render

Object = dict[str, Any]
MAIN = {"mpijob": "MPIJob", "indexed-job": "Job", "job": "Job", "pytorchjob": "PyTorchJob", "monarch": "Job"}


def main(backend: str, *conditions: Object, **fields: Any) -> Object:
    made = next(one for one in render(spec(backend, **fields)) if one["kind"] == MAIN[backend])
    return {**made, "status": {"conditions": list(conditions)} if conditions else {}}


def condition(kind: str, status: str = "True", **more: str) -> Object:
    return {"type": kind, "status": status, "lastTransitionTime": "2026-01-01T01:00:00Z", **more}


def launcher_job(*conditions: Object) -> Object:
    return {"kind": "Job", "metadata": {"name": "train-launcher"}, "status": {"conditions": list(conditions)}}


def pod(name: str, phase: str = "Running", *, container: Object | None = None, **status: Any) -> Object:
    component = "launcher" if "launcher" in name else "worker"
    ready = condition("Ready", str(phase == "Running"))
    conditions = [ready, condition("PodScheduled"), *status.pop("conditions", [])]
    if status.get("unscheduled"):
        message = status.pop("unscheduled")
        conditions = [condition("PodScheduled", "False", reason="Unschedulable", message=message)]
    return {
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app.kubernetes.io/component": component}},
        "spec": {
            "nodeName": "node0",
            "containers": [{"image": "registry/train:1", "resources": {"limits": {"memory": "1Gi"}}}],
        },
        "status": {
            "phase": phase,
            "conditions": conditions,
            "containerStatuses": [container] if container else [],
            **status,
        },
    }


def ended(code: int, reason: str = "Error", *, message: Object | str = "", at: str = "2026-01-01T00:30:00Z") -> Object:
    text = message if isinstance(message, str) else json.dumps(message)
    return {"state": {"terminated": {"exitCode": code, "reason": reason, "message": text, "finishedAt": at}}}


def left(code: int, reason: str, *, rank: int | None = None, host: str | None = None, **more: Any) -> Object:
    facts = {"version": 1, "exit_code": code, "reason": reason, "rank": rank, "host": host, "out_of_memory": False}
    return {**facts, "tail": [], **more}


def waiting(reason: str, message: str = "") -> Object:
    return {"state": {"waiting": {"reason": reason, "message": message}}}


def event(name: str, reason: str, message: str, *, kind: str = "Pod", count: int = 1) -> Object:
    about = {"kind": kind, "name": name}
    return {"type": "Warning", "reason": reason, "message": message, "involvedObject": about, "count": count}


def why(backend: str, *objects: Object, events: list[Object] | None = None, **more: Any) -> Answer:
    found = list(objects)
    return explain(
        Facts(
            name="train",
            backend=backend,
            namespace="team",
            state=read_state(backend, found),
            objects=found,
            events=events or [],
            **more,
        )
    )


FAILED = condition("Failed", reason="BackoffLimitExceeded", message="Job has reached the specified backoff limit")


class TestPrograms:
    def test_a_rank_that_raised(self) -> None:
        message = left(1, "rank 1 on train-worker-1 raised an exception", rank=1, host="train-worker-1.train")
        message["tail"] = ["Traceback (most recent call last):", "ValueError: bad data"]
        launcher = pod("train-launcher-abcde", "Failed", container=ended(1, message=message))
        answer = why("mpijob", main("mpijob", FAILED), launcher)
        assert answer.trouble == "rank"
        assert answer.cause == "rank 1 on train-worker-1 raised an exception."
        assert "  ValueError: bad data" in answer.evidence
        assert "--rank 1" in answer.what_to_do

    def test_a_worker_out_of_memory_is_told_by_its_launcher(self) -> None:
        reason = "rank 3 on train-worker-1 was killed by SIGKILL"
        message = left(137, reason, rank=3, host="train-worker-1.train.team.svc", out_of_memory=True)
        launcher = pod("train-launcher-abcde", "Failed", container=ended(137, message=message))
        answer = why("mpijob", main("mpijob", FAILED), launcher, pod("train-worker-1"))
        assert answer.trouble == "out-of-memory"
        assert answer.cause == "rank 3 in pod train-worker-1 used up its memory of 1Gi, and the kernel killed it."
        assert "--memory" in answer.what_to_do

    def test_a_pod_out_of_memory_is_told_by_kubernetes(self) -> None:
        victim = pod("train-1-abcde", "Failed", container=ended(137, "OOMKilled"))
        partner = pod("train-0-abcde", "Failed", container=ended(75, message=left(75, "the pod train-1 has gone")))
        answer = why("indexed-job", main("indexed-job", FAILED), partner, victim)
        assert (answer.trouble, "train-1-abcde" in answer.cause) == ("out-of-memory", True)

    def test_the_last_attempt_counts(self) -> None:
        first = left(1, "rank 0 on a raised an exception", rank=0)
        second = left(7, "rank 1 on b ended with exit code 7", rank=1)
        launchers = [
            pod("train-launcher-aaaaa", "Failed", container=ended(1, message=first, at="2026-01-01T00:10:00Z")),
            pod("train-launcher-bbbbb", "Failed", container=ended(7, message=second, at="2026-01-01T00:20:00Z")),
        ]
        assert "exit code 7" in why("mpijob", main("mpijob", FAILED), *launchers).cause

    def test_of_the_pods_that_lost_their_partner_none_is_blamed(self) -> None:
        lost = [
            pod(f"train-{n}-abcde", "Failed", container=ended(75, message=left(75, "the pod train-2 has gone")))
            for n in (0, 1)
        ]
        culprit = pod(
            "train-2-abcde", "Failed", container=ended(4, message=left(4, "rank 2 on train-2 ended with 4", rank=2))
        )
        answer = why("indexed-job", main("indexed-job", FAILED), *lost, culprit)
        assert answer.cause == "rank 2 on train-2 ended with 4."

    def test_a_world_that_is_not_the_one_asked_for(self) -> None:
        reason = "the number of hosts should be 2, but the ranks see 1 (train-launcher)"
        launcher = pod("train-launcher-abcde", "Failed", container=ended(1, message=left(1, reason)))
        answer = why("mpijob", main("mpijob", FAILED), launcher)
        assert (answer.trouble, "MPI" in answer.what_to_do) == ("world", True)

    def test_names_that_never_resolved(self) -> None:
        reason = "after 600 s 1 of 2 workers is still missing: train-worker-1 (its name does not resolve)"
        launcher = pod("train-launcher-abcde", "Failed", container=ended(3, message=left(3, reason)))
        answer = why("mpijob", main("mpijob", FAILED), launcher)
        assert answer.trouble == "workers-missing" and "train-worker-1" in answer.cause

    def test_without_a_termination_message_the_log_speaks(self) -> None:
        launcher = pod("train-launcher-abcde", "Failed", container=ended(2, message="usage: train.py\nbad flag"))
        answer = why("mpijob", main("mpijob", FAILED), launcher)
        assert "exit code 2" in answer.cause and "  bad flag" in answer.evidence

    def test_stopped_too_often(self) -> None:
        pods = [pod(f"train-{n}-abcde", "Failed", container=ended(75)) for n in (0, 1)]
        answer = why("indexed-job", main("indexed-job", FAILED), *pods)
        assert answer.trouble == "stopped" and "checkpoint" in answer.what_to_do


class TestPods:
    def test_an_image_that_cannot_be_pulled(self) -> None:
        worker = pod("train-worker-0", "Pending", container=waiting("ImagePullBackOff", "Back-off pulling image"))
        launcher = pod("train-launcher-abcde", "Running")
        pulled = event("train-worker-0", "Failed", 'Failed to pull image "registry/train:1": not found', count=4)
        answer = why("mpijob", main("mpijob"), worker, launcher, events=[pulled])
        assert answer.trouble == "image" and "registry/train:1" in answer.cause
        assert any("not found (4 times)" in line for line in answer.evidence)

    def test_the_image_is_the_cause_and_the_launchers_patience_the_effect(self) -> None:
        worker = pod("train-worker-0", "Pending", container=waiting("ErrImagePull"))
        reason = "1 of 1 workers is still missing: train-worker-0 (its name does not resolve)"
        launcher = pod("train-launcher-abcde", "Failed", container=ended(3, message=left(3, reason)))
        assert why("mpijob", main("mpijob", FAILED), worker, launcher).trouble == "image"

    def test_a_request_that_no_node_has(self) -> None:
        message = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu. preemption: not helpful."
        answer = why(
            "mpijob",
            main("mpijob"),
            pod("train-worker-0", "Pending", unscheduled=message),
            never_fits="2 worker pods of 8 nvidia.com/gpu can never fit",
        )
        assert answer.trouble == "scheduling"
        assert answer.cause == "no node can take pod train-worker-0: there is not enough nvidia.com/gpu."
        assert "2 worker pods of 8 nvidia.com/gpu can never fit" in answer.evidence
        assert "--gpus" in answer.what_to_do

    def test_a_claim_that_is_not_bound(self) -> None:
        message = "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims."
        answer = why("indexed-job", main("indexed-job"), pod("train-0-abcde", "Pending", unscheduled=message))
        assert answer.trouble == "scheduling" and "claim" in answer.cause

    def test_an_nfs_server_that_does_not_answer(self) -> None:
        worker = pod("train-worker-0", "Pending", container=waiting("ContainerCreating"))
        failure = event(
            "train-worker-0",
            "FailedMount",
            'MountVolume.SetUp failed for volume "nfs-0" : mount failed: exit status 32\n'
            "Mounting arguments: -t nfs 10.0.0.5:/exports /var/lib/kubelet\nOutput: mount.nfs: Connection timed out",
            count=3,
        )
        answer = why("mpijob", main("mpijob"), worker, events=[failure])
        assert answer.trouble == "mount" and "nfs-0" in answer.cause
        assert "NFS server" in answer.what_to_do

    def test_a_mount_that_came_at_last_is_no_cause(self) -> None:
        worker = pod("train-worker-0", container={"state": {"running": {}}})
        failure = event("train-worker-0", "FailedMount", "timed out")
        message = left(1, "rank 0 on train-worker-0 raised an exception", rank=0)
        launcher = pod("train-launcher-abcde", "Failed", container=ended(1, message=message))
        assert why("mpijob", main("mpijob", FAILED), worker, launcher, events=[failure]).trouble == "rank"

    def test_a_secret_that_is_not_there(self) -> None:
        waits = waiting("CreateContainerConfigError", 'secret "token" not found')
        answer = why("indexed-job", main("indexed-job"), pod("train-0-abcde", "Pending", container=waits))
        assert answer.trouble == "container" and 'secret "token" not found' in answer.cause

    def test_a_program_that_is_not_in_the_image(self) -> None:
        message = 'exec: "python": executable file not found in $PATH'
        broken = pod("train-0-abcde", "Failed", container=ended(127, "StartError", message=message))
        answer = why("indexed-job", main("indexed-job", FAILED), broken)
        assert answer.trouble == "container" and "--image" in answer.what_to_do

    def test_a_quota_that_is_used_up(self) -> None:
        message = (
            'Error creating: pods "train-0-abcde" is forbidden: exceeded quota: team, requested: requests.cpu=4, '
            "used: requests.cpu=6, limited: requests.cpu=8"
        )
        answer = why("indexed-job", main("indexed-job"), events=[event("train", "FailedCreate", message, kind="Job")])
        assert answer.trouble == "quota"
        assert "requested requests.cpu=4, used requests.cpu=6, limited to requests.cpu=8" in answer.cause

    def test_pods_that_break_the_namespaces_standard(self) -> None:
        message = 'pods "train-0" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot != true'
        answer = why("indexed-job", main("indexed-job"), events=[event("train", "FailedCreate", message, kind="Job")])
        assert answer.trouble == "pod-security" and "runAsNonRoot" in answer.cause

    def test_an_eviction_is_the_cause_of_the_launchers_end(self) -> None:
        message = "The node was low on resource: memory."
        worker = pod("train-worker-0", "Failed", reason="Evicted", message=message)
        lost = left(137, "rank 0 on train-worker-0 vanished", rank=0)
        launcher = pod("train-launcher-abcde", "Failed", container=ended(137, message=lost))
        answer = why("mpijob", main("mpijob", FAILED), worker, launcher)
        assert answer.trouble == "evicted" and "train-worker-0" in answer.cause

    def test_a_probe_that_fails(self) -> None:
        worker = pod("train-worker-0", container={"state": {"running": {}}}, conditions=[])
        worker["status"]["conditions"] = [condition("Ready", "False"), condition("PodScheduled")]
        failing = event("train-worker-0", "Unhealthy", "Startup probe failed: connection refused", count=30)
        answer = why("mpijob", main("mpijob"), worker, pod("train-launcher-abcde"), events=[failing])
        assert answer.trouble == "probe" and "train-worker-0" in answer.cause


class TestJobs:
    def test_success_and_work_are_no_trouble(self) -> None:
        assert why("mpijob", main("mpijob", condition("Succeeded"))).trouble == ""
        running = why("mpijob", main("mpijob"), pod("train-launcher-a"), pod("train-worker-0"), pod("train-worker-1"))
        assert running.trouble == "" and "Running, 2 of 2 workers ready" in running.cause

    def test_what_happened_before_is_told_of_a_job_that_runs_again(self) -> None:
        message = left(137, "rank 0 was killed", rank=0, out_of_memory=True)
        first = pod("train-launcher-a", "Failed", container=ended(137, message=message))
        first["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
        now = pod("train-launcher-b")
        now["metadata"]["creationTimestamp"] = "2026-01-01T00:40:00Z"
        answer = why("mpijob", main("mpijob"), first, now, pod("train-worker-0"), pod("train-worker-1"))
        assert answer.trouble == "" and any(line.startswith("before: rank 0") for line in answer.evidence)

    def test_a_deadline(self) -> None:
        passed = condition("Failed", reason="DeadlineExceeded", message="Job was active longer than specified deadline")
        killed = pod("train-launcher-abcde", "Failed", container=ended(137))
        answer = why("mpijob", main("mpijob"), launcher_job(passed), killed)
        assert answer.trouble == "deadline" and "--deadline" in answer.what_to_do

    def test_a_deadline_that_passed_while_pods_waited(self) -> None:
        passed = condition("Failed", reason="DeadlineExceeded", message="too long")
        waited = event("train-0-abcde", "FailedScheduling", "0/1 nodes are available: 1 Insufficient cpu.")
        answer = why("indexed-job", main("indexed-job", passed), events=[waited])
        assert answer.trouble == "deadline" and "train-0-abcde" in answer.cause

    def test_a_mount_that_came_at_the_second_try_held_nothing_up(self) -> None:
        passed = condition("Failed", reason="DeadlineExceeded", message="too long")
        failed = event("train-0-abcde", "FailedMount", 'MountVolume.SetUp failed for volume "data"')
        ran = event("train-0-abcde", "Started", "Started container worker")
        held_up = why("indexed-job", main("indexed-job", passed), events=[failed])
        assert held_up.trouble == "deadline" and "the volume data" in held_up.cause
        assert "waiting" not in why("indexed-job", main("indexed-job", passed), events=[failed, ran]).cause

    def test_a_job_that_nobody_looks_at(self) -> None:
        answer = why("mpijob", main("mpijob"))
        assert answer.trouble == "operator" and "mpi-operator" in answer.cause

    def test_a_mesh_that_nobody_looks_at(self) -> None:
        """The controller runs and waits for pods that nobody makes."""
        mesh = next(one for one in render(spec("monarch")) if one["kind"] == "MonarchMesh")
        answer = why("monarch", main("monarch"), mesh, pod("train-launcher-abcde"))
        assert answer.trouble == "operator" and "the Monarch operator" in answer.cause
        seen = {**mesh, "status": {"conditions": [condition("Ready", "False", reason="Waiting")]}}
        assert why("monarch", main("monarch"), seen, pod("train-launcher-abcde")).trouble == "waiting"
        assert why("monarch", main("monarch"), mesh, pod("train-launcher-abcde"), pod("train-0")).trouble != "operator"

    def test_after_the_pods_are_gone_the_conditions_speak(self) -> None:
        answer = why("indexed-job", main("indexed-job", FAILED))
        assert answer.trouble == "failed" and "backoff limit" in answer.cause
        assert any("BackoffLimitExceeded" in line for line in answer.evidence)

    def test_suspended(self) -> None:
        asleep = main("indexed-job")
        asleep["spec"]["suspend"] = True
        answer = why("indexed-job", asleep)
        assert answer.trouble == "suspended" and "hvdkit resume train" in answer.what_to_do


messages = st.sampled_from(["", "not json", "[]", '{"exit_code": 1}', json.dumps(left(1, "rank 0 died", rank=0))])
containers = st.one_of(
    st.none(),
    st.builds(ended, st.integers(0, 255), st.sampled_from(["Error", "OOMKilled", "Completed"]), message=messages),
    st.builds(waiting, st.sampled_from(["ContainerCreating", "ImagePullBackOff", "CrashLoopBackOff"])),
)
pods = st.builds(
    pod,
    st.sampled_from(["train-launcher-abcde", "train-worker-0", "train-worker-1"]),
    st.sampled_from(["Pending", "Running", "Succeeded", "Failed", "Unknown"]),
    container=containers,
)
bare = st.sampled_from([{"kind": "Pod"}, {"kind": "Pod", "status": None, "metadata": None, "spec": None}])
reasons = st.sampled_from(["FailedMount", "FailedScheduling", "FailedCreate", "Unhealthy", "Failed", "Killing", None])
names = st.sampled_from(["train", "train-worker-0"])
events = st.builds(event, names, reasons, st.sampled_from(["forbidden", "", "x"]))


@pytest.mark.parametrize("backend", CLUSTER_BACKENDS)
@given(around=st.lists(pods | bare, max_size=4), said=st.lists(events | st.just({}), max_size=3), failed=st.booleans())
def test_every_set_of_objects_has_an_answer(backend: str, around, said, failed) -> None:
    answer = why(backend, main(backend, *([FAILED] if failed else [])), *around, events=said)
    assert answer.cause.endswith(".") and "\n" not in answer.cause


def test_every_rule_is_listed() -> None:
    from hvdkit.cluster import why_ends, why_pods

    public = {
        value
        for module in (why_ends, why_pods)
        for name, value in vars(module).items()
        if callable(value) and getattr(value, "__module__", "") == module.__name__ and not name.startswith("_")
    }
    assert public - {why_ends.otherwise} == set(RULES)
