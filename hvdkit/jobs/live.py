"""Reads the live objects of a job. Pure.

Objects are dictionaries as the API gives them, in any order: the job itself, its pods, and what a controller made,
each with its `kind` (the API leaves it out of the items of a list). A job's own conditions lag and can lie: any true
condition that says "ended" counts, wherever it stands in the list, and where none does, the pods are asked.
"""

import json
import signal
from typing import Any

from hvdkit.errors import EXIT_RESTART_ME
from hvdkit.jobs.metadata import COMPONENT_LABEL, LAUNCHER, QUEUE_LABEL, Object
from hvdkit.jobs.state import FAILED, PENDING, STARTING, SUCCEEDED, JobState

# A pod that left with one of these was asked to stop, or lost its world: the cause lies elsewhere.
RESTARTED_EXIT_CODES = (EXIT_RESTART_ME, 128 + signal.SIGTERM)

DEADLINE = "DeadlineExceeded"  # the reason of a Job that was ended because its time was up
GONE = "NotFound"  # the reason of the state of a job whose own object is not there

_KUBEFLOW_ROLE = "training.kubeflow.org/job-role"
_NOT_YET = ("ContainerCreating", "PodInitializing")  # waiting as it should be


def find(objects: list[Object], kind: str) -> Object | None:
    """The first object of a kind."""
    return next((one for one in objects if one.get("kind") == kind), None)


def pods_of(objects: list[Object]) -> list[Object]:
    """The pods among the objects."""
    return [one for one in objects if one.get("kind") == "Pod"]


def is_launcher(pod: Object) -> bool:
    """Whether a pod starts or steers the ranks instead of being a worker."""
    labels = (pod.get("metadata") or {}).get("labels") or {}
    return LAUNCHER in (labels.get(COMPONENT_LABEL), labels.get(_KUBEFLOW_ROLE))


def phase_of(pod: Object) -> str:
    """A pod's phase."""
    return (pod.get("status") or {}).get("phase") or "Pending"


def is_ready(pod: Object) -> bool:
    """Whether a pod is ready."""
    return any(one.get("type") == "Ready" and one.get("status") == "True" for one in _conditions(pod))


def is_leaving(pod: Object) -> bool:
    """Whether a pod was asked to end."""
    return bool((pod.get("metadata") or {}).get("deletionTimestamp"))


def created(pod: Object) -> str:
    """When a pod was made; texts of this form sort by time."""
    return (pod.get("metadata") or {}).get("creationTimestamp") or ""


def restarts(pod: Object) -> int:
    """How often containers of a pod were started again."""
    return sum(one.get("restartCount") or 0 for one in _containers(pod))


def true_condition(status: Object, kind: str) -> Object | None:
    """The condition of this type, if it is true."""
    conditions = status.get("conditions") or []
    return next((one for one in conditions if one.get("type") == kind and one.get("status") == "True"), None)


def pod_end(pod: Object) -> str | None:
    """When the last container of a pod ended."""
    ends = [((one.get("state") or {}).get("terminated") or {}).get("finishedAt") for one in _containers(pod)]
    return max((end for end in ends if end), default=None)


def job_end(job: Object, pods: list[Object], common: dict[str, Any]) -> JobState | None:
    """The end of a batch Job, where its conditions say that it has one."""
    status = job.get("status") or {}
    if done := true_condition(status, "Complete") or true_condition(status, "SuccessCriteriaMet"):
        ended = status.get("completionTime") or done.get("lastTransitionTime")
        return JobState(phase=SUCCEEDED, exit_code=0, ended=ended, **common)
    if failed := true_condition(status, "Failed") or true_condition(status, "FailureTarget"):
        return JobState(phase=FAILED, ended=failed.get("lastTransitionTime"), **_failure(failed, pods), **common)
    return None


def kubeflow_end(status: Object, pods: list[Object], common: dict[str, Any]) -> JobState | None:
    """The end of one of Kubeflow's jobs, where its conditions say that it has one."""
    if done := true_condition(status, "Succeeded"):
        ended = status.get("completionTime") or done.get("lastTransitionTime")
        return JobState(phase=SUCCEEDED, exit_code=0, ended=ended, **common)
    if failed := true_condition(status, "Failed"):
        ended = status.get("completionTime") or failed.get("lastTransitionTime")
        return JobState(phase=FAILED, ended=ended, **_failure(failed, pods), **common)
    return None


def pod_failure(pod: Object) -> dict[str, Any]:
    """Why a pod failed."""
    status, ended = pod.get("status") or {}, _terminated(pod) or {}
    reason = ended.get("reason") or status.get("reason") or ""
    message = ended.get("message") or status.get("message") or ""
    said = left_in(message).get("reason") or message
    return {"reason": reason, "message": said, "exit_code": ended.get("exitCode")}


def left_in(message: str) -> Object:
    """The facts in a termination message of ours; where the pod could not write one, it is the end of its log."""
    try:
        found = json.loads(message)
    except ValueError:
        return {}
    return found if isinstance(found, dict) and "exit_code" in found else {}


def on_the_way(pods: list[Object], phase: str, common: dict[str, Any]) -> JobState:
    """Not all there yet: the first pod with a reason says why."""
    if not pods:
        return JobState(phase=PENDING if phase == STARTING else phase, **common)
    for pod in pods:
        scheduled = next((one for one in _conditions(pod) if one.get("type") == "PodScheduled"), {})
        if scheduled.get("status") == "False":
            reason, message = scheduled.get("reason") or "", scheduled.get("message") or ""
            return JobState(phase=PENDING, reason=reason, message=message, **common)
    for pod in pods:
        for container in _containers(pod):
            waiting = (container.get("state") or {}).get("waiting") or {}
            if waiting.get("reason") and waiting["reason"] not in _NOT_YET:
                message = waiting.get("message") or ""
                return JobState(phase=phase, reason=waiting["reason"], message=message, **common)
    return JobState(phase=phase, **common)


def gone(objects: list[Object]) -> JobState:
    """The state of a job whose own object is not there."""
    reason = "the job's own object is gone" if objects else "nothing is known of the job"
    return JobState(phase=PENDING, reason=GONE, message=f"{reason}.")


def why_suspended(job: Object) -> str:
    """What a suspended job waits for."""
    queue = ((job.get("metadata") or {}).get("labels") or {}).get(QUEUE_LABEL)
    return f"Kueue starts it when queue {queue} has room." if queue else "it waits to be resumed."


def _failure(condition: Object, pods: list[Object]) -> dict[str, Any]:
    """Why a job failed: its condition, and the exit code of the first pod that failed by itself."""
    if condition.get("reason") == DEADLINE:
        pods = []  # asked to stop from outside, with 75 or killed: none of their codes is the job's
    ends = sorted(filter(None, map(_terminated, pods)), key=lambda ended: ended.get("finishedAt") or "")
    codes = [ended["exitCode"] for ended in ends]
    code = next((one for one in codes if one not in RESTARTED_EXIT_CODES), codes[0] if codes else None)
    return {"reason": condition.get("reason") or "", "message": condition.get("message") or "", "exit_code": code}


def _terminated(pod: Object) -> Object | None:
    """How a container of the pod failed: now, or before it was started again."""
    for container in _containers(pod):
        for moment in ("state", "lastState"):
            ended = (container.get(moment) or {}).get("terminated") or {}
            if ended.get("exitCode"):
                return ended
    return None


def _conditions(pod: Object) -> list[Object]:
    return (pod.get("status") or {}).get("conditions") or []


def _containers(pod: Object) -> list[Object]:
    status = pod.get("status") or {}
    return [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
