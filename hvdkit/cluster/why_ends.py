"""Why a job ended, or waits: the rules of `why` about programs that failed and about the job as a whole. Pure."""

import re

from hvdkit.cluster.kinds import labels_of, name_of
from hvdkit.cluster.why_facts import (
    Answer,
    Facts,
    end_text,
    ends_of,
    event_lines,
    main_of,
    memory_limit,
    plain_message,
    said_in,
    short,
    status_conditions,
    tail_lines,
)
from hvdkit.cluster.why_pods import mount_of_gone_pods, scheduling_of_gone_pods
from hvdkit.errors import EXIT_RESTART_ME
from hvdkit.jobs.live import DEADLINE, find, is_launcher, pods_of
from hvdkit.jobs.metadata import QUEUE_LABEL
from hvdkit.jobs.state import FAILED, RUNNING, SUSPENDED

# Who must look at what hvdkit made, and what needs nobody for the same.
_OPERATORS = {
    "MPIJob": ("mpi-operator", "--backend indexed-job"),
    "PyTorchJob": ("training-operator", "--backend indexed-job --engine ddp"),
    "MonarchMesh": ("the Monarch operator", "--backend indexed-job --engine ddp"),
}


def out_of_memory(facts: Facts) -> Answer | None:
    """The kernel ended a process, because the pod's memory was used up."""
    ends = [end for end in ends_of(facts) if end.memory]
    if not ends:
        return None
    end = ends[0]
    rank, host = end.left.get("rank"), end.left.get("host")
    pod = host.partition(".")[0] if host and is_launcher(end.pod) else name_of(end.pod)
    who = f"rank {rank} in pod {pod}" if rank is not None else f"pod {pod}"
    limit = memory_limit(facts, pod)
    most = f" of {limit}" if limit else ""
    said = [f"pod {name_of(end.pod)}: {end_text(end)}", *tail_lines(end.left.get("tail"))]
    return Answer(
        trouble="out-of-memory",
        cause=f"{who} used up its memory{most}, and the kernel killed it.",
        evidence=said,
        what_to_do="give each worker more with --memory, or use a smaller --batch-size, fewer data loaders or --slots.",
    )


def deadline(facts: Facts) -> Answer | None:
    """The job took longer than it was allowed to."""
    if facts.state.reason != DEADLINE and DEADLINE not in "".join(status_conditions(facts)):
        return None
    stuck = mount_of_gone_pods(facts) or scheduling_of_gone_pods(facts)
    why = f" It was still waiting: {stuck.cause}" if stuck else ""
    return Answer(
        trouble="deadline",
        cause=f"the job was not done when its --deadline passed, and was ended.{why}",
        evidence=status_conditions(facts) + (stuck.evidence if stuck else []),
        what_to_do=stuck.what_to_do if stuck else "give it a longer --deadline, or go on from its checkpoint.",
    )


def rank_failed(facts: Facts) -> Answer | None:
    """A program that failed by itself: the first of all that did, not those that lost their partner by it."""
    failed = [end for end in ends_of(facts) if end.code not in (0, EXIT_RESTART_ME, 143)]
    if not failed:
        return None
    if launchers := [end for end in failed if is_launcher(end.pod)]:
        failed = launchers[-1:]  # of several attempts the last one counts
    end = next((one for one in failed if one.left.get("rank") is not None), failed[0])
    pod = name_of(end.pod)
    lines = end.left.get("tail") or facts.logs.get(pod) or plain_message(end)
    reason = end.left.get("reason")
    trouble = "rank" if end.left.get("rank") is not None else "program"
    todo = f"`hvdkit logs {facts.name}` has the whole log"
    todo += f" (--rank {end.left['rank']})." if trouble == "rank" else "."
    if reason and re.search(r"does not resolve|did not answer|does not answer|SSH", reason):
        trouble, todo = "workers-missing", "are the workers' pods running, and does the cluster's DNS answer?"
    if reason and re.search(r"number of hosts|not the world|ranks, but rank|Open MPI 5", reason):
        trouble, todo = "world", "the image's MPI does not start ranks where it is told to; use hvdkit's image."
    cause = f"{reason[:1].lower() + reason[1:]}" if reason else f"pod {pod} ended with exit code {end.code}"
    return Answer(
        trouble=trouble,
        cause=cause.rstrip(".") + ".",
        evidence=[f"pod {pod}: {end_text(end)}", *tail_lines(lines)],
        what_to_do=todo,
    )


def stopped_in_order(facts: Facts) -> Answer | None:
    """The ranks were asked to stop, and did."""
    ends = [end for end in ends_of(facts) if end.code in (EXIT_RESTART_ME, 143)]
    if not ends or not facts.state.finished:
        return None
    end = ends[0]
    reason = end.left.get("reason") or f"pod {name_of(end.pod)} was asked to stop"
    return Answer(
        trouble="stopped",
        cause=f"{reason}, more often than --backoff-limit allows.",
        evidence=[f"pod {name_of(one.pod)}: {end_text(one)}" for one in ends[:5]] + status_conditions(facts),
        what_to_do="launch it again with the same --output: it goes on from its checkpoint. Who stops the pods? See "
        "kubectl get events.",
    )


def suspended(facts: Facts) -> Answer | None:
    """The job waits to be resumed, by a person or a queue."""
    if facts.state.phase != SUSPENDED:
        return None
    queue = labels_of(main_of(facts)).get(QUEUE_LABEL)
    if queue:
        return Answer(
            trouble="queue",
            cause=f"the job waits in queue {queue}: {facts.state.message}",
            evidence=event_lines([one for one in facts.events if "queue" in said_in(one).lower()]),
            what_to_do=f"kubectl describe localqueue {queue} shows what is before it.",
        )
    return Answer(
        trouble="suspended",
        cause="the job is suspended.",
        what_to_do=f"`hvdkit resume {facts.name}` starts it.",
    )


def no_controller(facts: Facts) -> Answer | None:
    """Nobody has done anything about the job, or about the mesh whose pods its controller waits for."""
    mesh = find(facts.objects, "MonarchMesh")
    asked = mesh or main_of(facts)
    kind = asked.get("kind") or ""
    if facts.state.finished or kind not in _OPERATORS or (asked.get("status") or {}).get("conditions"):
        return None
    if any(mesh is None or not is_launcher(pod) for pod in pods_of(facts.objects)):
        return None
    operator, otherwise = _OPERATORS[kind]
    return Answer(
        trouble="operator",
        cause=f"nobody has looked at the {kind} yet: {operator} does not seem to run in this cluster.",
        evidence=[f"{kind} {name_of(asked)} has no condition, and no pod was made for it"],
        what_to_do=f"start {operator} (kubectl get pods -A shows whether it runs), or use {otherwise}.",
    )


def otherwise(facts: Facts) -> Answer:
    """What the state alone says."""
    found = facts.state
    warnings = event_lines([one for one in facts.events if one.get("type") == "Warning"])
    if found.phase == FAILED:
        said = found.message or found.reason or "it does not say why"
        return Answer(
            trouble="failed",
            cause=f"the job failed: {short(said)}.",
            evidence=status_conditions(facts) + warnings,
            what_to_do="its pods are gone; launch it again with --save-logs DIR, which keeps their logs.",
        )
    said = f" ({found.reason}: {short(found.message)})" if found.reason else ""
    return Answer(
        trouble="" if found.phase == RUNNING else "waiting",
        cause=f"the job has not failed: it is {found.phase}, {found.ready} of {found.workers} workers ready{said}.",
        evidence=warnings,
        what_to_do=f"`hvdkit status {facts.name} --watch` follows it.",
    )
