"""Why pods of a job do not start, or do not stay: the rules of `why` about what happens before a program runs. Pure."""

import re

from hvdkit.cluster.kinds import Object, name_of
from hvdkit.cluster.why_facts import (
    Answer,
    Facts,
    about,
    ends_of,
    event_lines,
    events_of,
    has_run,
    reason_of,
    said_in,
    scheduled_condition,
    short,
    status_conditions,
    tail_lines,
    waiting_containers,
)
from hvdkit.errors import EXIT_RESTART_ME
from hvdkit.jobs.live import is_ready, phase_of, pods_of
from hvdkit.jobs.state import FAILED, PENDING

_IMAGE = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError")
_CONFIG = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError", "StartError")


def image(facts: Facts) -> Answer | None:
    """An image that does not come."""
    for pod, waiting in waiting_containers(facts):
        if waiting["reason"] in _IMAGE:
            images = [one["image"] for one in (pod.get("spec") or {}).get("containers") or [] if one.get("image")]
            said = [f"pod {name_of(pod)} waits: {waiting['reason']}: {waiting.get('message') or ''}".rstrip(": ")]
            pulls = events_of(facts, pod, "Failed", containing="pull")
            return Answer(
                trouble="image",
                cause=f"the image {', '.join(images)} cannot be pulled.",
                evidence=said + event_lines(pulls),
                what_to_do="check the name and tag of --image; a private registry needs --pull-secret, and an image "
                "that lies on the nodes only needs --pull-policy IfNotPresent or Never.",
            )
    return None


def configuration(facts: Facts) -> Answer | None:
    """A container that cannot be made: a secret that is not there, a command that is not in the image."""
    for pod, waiting in waiting_containers(facts):
        if waiting["reason"] in _CONFIG:
            message = waiting.get("message") or ""
            return _cannot_start(pod, f"{waiting['reason']}: {message}", message, facts)
    for end in ends_of(facts):
        if end.terminated.get("reason") in ("ContainerCannotRun", "StartError"):
            message = end.terminated.get("message") or ""
            return _cannot_start(end.pod, f"{end.terminated['reason']}: {message}", message, facts)
    return None


def _cannot_start(pod: Object, said: str, message: str, facts: Facts) -> Answer:
    todo = "make the secret or config map that it names, or mend --env and env_from."
    if "executable file not found" in message or "no such file" in message:
        todo = "the image has no such program: hvdkit's pods need python with hvdkit in the image; check --image."
    return Answer(
        trouble="container",
        cause=f"the container of pod {name_of(pod)} cannot be started: {short(message or said)}.",
        evidence=[f"pod {name_of(pod)}: {said}", *event_lines(events_of(facts, pod, "Failed"))],
        what_to_do=todo,
    )


def mount(facts: Facts) -> Answer | None:
    """A volume that does not come, such as that of an NFS server that does not answer."""
    for pod in pods_of(facts.objects):
        if has_run(pod) or scheduled_condition(pod) is None:
            continue
        failures = events_of(facts, pod, "FailedMount", "FailedAttachVolume", "VolumeFailedDelete")
        if failures:
            return _mount_answer(name_of(pod), failures)
    return None


def _mount_answer(pod: str, failures: list[Object]) -> Answer:
    message = failures[-1].get("message") or ""
    found = re.search(r'volume "?([^"\s]+)"?', message)
    volume = f"the volume {found[1]}" if found else "a volume"
    todo = "kubectl describe pod shows the whole message; check the claim, its PV and the driver."
    if re.search(r"\bnfs\b|mount\.nfs", message):
        todo = (
            "is the NFS server up and does it export that folder to the nodes? Try `showmount -e SERVER` or a mount by "
            "hand on a node; the nodes (not the image) need nfs-common."
        )
    elif "not found" in message:
        todo = "the claim, secret or config map is not in this namespace; check --pvc and volumes in hvdkit.yaml."
    return Answer(
        trouble="mount",
        cause=f"{volume} of pod {pod} cannot be mounted.",
        evidence=event_lines(failures),
        what_to_do=todo,
    )


def refused(facts: Facts) -> Answer | None:
    """Pods that the API server did not let in: quota, Pod Security, a webhook."""
    if facts.state.ready >= facts.state.workers > 0 and facts.state.phase != FAILED:
        return None
    failures = [one for one in facts.events if reason_of(one) in ("FailedCreate", "MPIJobFailed", "FailedCreatePod")]
    refusals = [one for one in failures if re.search(r"forbidden|denied|exceeded|violates|error creat", said_in(one))]
    if not refusals:
        return None
    message = said_in(refusals[-1])
    evidence = event_lines(refusals) + status_conditions(facts)
    if quota := re.search(r"exceeded quota: ([^,]+), requested: (.*?), used: (.*?), limited: (.*)", message):
        return Answer(
            trouble="quota",
            cause=f"the quota {quota[1]} of namespace {facts.namespace} has no room: requested {quota[2]}, used "
            f"{quota[3]}, limited to {quota[4]}.",
            evidence=evidence,
            what_to_do="ask for less, `hvdkit delete` a job that is not needed, or have the quota raised.",
        )
    if "failed quota" in message:
        return Answer(
            trouble="quota",
            cause=f"a quota of namespace {facts.namespace} asks every pod for amounts: {short(message)}.",
            evidence=evidence,
            what_to_do="say --cpus and --memory; for limits.cpu set resources.limit_cpus in hvdkit.yaml.",
        )
    if "violates PodSecurity" in message:
        broken = message.partition("violates PodSecurity")[2].strip()
        return Answer(
            trouble="pod-security",
            cause=f"namespace {facts.namespace} enforces a Pod Security Standard that the pods break: {short(broken)}.",
            evidence=evidence,
            what_to_do="use --security restricted (NFS then comes through --nfs-mode pv), or another namespace.",
        )
    return Answer(
        trouble="refused",
        cause=f"the API server refused to make pods: {short(message)}.",
        evidence=evidence,
        what_to_do="the operator or the job controller may lack a right, or a webhook objects; the message says which.",
    )


def scheduling(facts: Facts) -> Answer | None:
    """A pod that no node takes."""
    for pod in pods_of(facts.objects):
        scheduled = scheduled_condition(pod)
        if scheduled is None or scheduled.get("status") != "False":
            continue
        message = scheduled.get("message") or ""
        lacking = sorted(set(re.findall(r"Insufficient ([^\s,.]+(?:\.[^\s,.]+)*(?:/[^\s,.]+)?)", message)))
        what = f": there is not enough {', '.join(lacking)}" if lacking else ""
        todo = "ask for less, or wait until others end; kubectl describe nodes shows what each node has."
        if any("/" in name for name in lacking):
            todo = "ask for fewer --gpus a worker, wait until others end, or add nodes that have them."
        elif "unbound" in message or "persistentvolumeclaim" in message:
            what, todo = ": its claim is not bound to a volume", "check the claim with kubectl get pvc; --pvc names it."
        elif "taint" in message or "selector" in message:
            todo = "compare --node-selector and tolerations with the nodes' labels and taints (kubectl describe nodes)."
        return Answer(
            trouble="scheduling",
            cause=f"no node can take pod {name_of(pod)}{what}.",
            evidence=[f"pod {name_of(pod)}: {message}", *([facts.never_fits] if facts.never_fits else [])],
            what_to_do=todo,
        )
    return None


def taken_away(facts: Facts) -> Answer | None:
    """Pods that Kubernetes ended: evicted, preempted, or on a node that is lost."""
    if facts.state.phase not in (FAILED, PENDING) and facts.state.ready >= facts.state.workers:
        return None
    ended_by_itself = [end for end in ends_of(facts) if end.left.get("rank") is not None and end.code < 128]
    if any(end.code != EXIT_RESTART_ME for end in ended_by_itself):
        return None  # whatever had happened before
    for pod in pods_of(facts.objects):
        status = pod.get("status") or {}
        disrupted = next((one for one in status.get("conditions") or [] if one.get("type") == "DisruptionTarget"), None)
        lost = status.get("reason") == "NodeLost" or (disrupted or {}).get("reason") == "DeletionByTaintManager"
        if status.get("reason") == "Evicted" or disrupted or lost:
            said = status.get("message") or (disrupted or {}).get("message") or status.get("reason") or ""
            node = (pod.get("spec") or {}).get("nodeName") or "its node"
            how = {"PreemptionByScheduler": "preempted by a pod of higher priority"}.get(
                (disrupted or {}).get("reason") or "", f"lost with its node {node}" if lost else f"evicted from {node}"
            )
            todo = "the job starts again from its checkpoint by itself, up to --backoff-limit times."
            if "ephemeral-storage" in said or "ephemeral local storage" in said:
                todo = "it wrote more to the node's disk than allowed; write to a mounted volume instead of /tmp."
            elif "memory" in said:
                todo = "the node ran out of memory; say --memory, so that pods are placed where there is enough."
            return Answer(
                trouble="evicted",
                cause=f"pod {name_of(pod)} was {how}.",
                evidence=[f"pod {name_of(pod)}: {short(said, 400)}", *event_lines(events_of(facts, pod, "Evicted"))],
                what_to_do=todo,
            )
    return None


def probes(facts: Facts) -> Answer | None:
    """A pod that runs but does not become ready."""
    if facts.state.finished:
        return None
    for pod in pods_of(facts.objects):
        failing = events_of(facts, pod, "Unhealthy")
        if failing and phase_of(pod) == "Running" and not is_ready(pod):
            return Answer(
                trouble="probe",
                cause=f"pod {name_of(pod)} runs, but does not become ready: its probe fails.",
                evidence=[*event_lines(failing), *tail_lines(facts.logs.get(name_of(pod)))],
                what_to_do=f"`hvdkit logs {facts.name} --worker N` shows why its server does not answer.",
            )
    return None


def mount_of_gone_pods(facts: Facts) -> Answer | None:
    """Mounts that failed in pods which are gone: only their events tell."""
    there = {name_of(pod) for pod in pods_of(facts.objects)}
    ran = {about(one) for one in facts.events if reason_of(one) == "Started"}  # a later try succeeded
    failures = [one for one in facts.events if reason_of(one) in ("FailedMount", "FailedAttachVolume")]
    gone = [one for one in failures if about(one) not in there | ran]
    return _mount_answer(about(gone[-1]), gone) if gone else None


def scheduling_of_gone_pods(facts: Facts) -> Answer | None:
    """Pods that no node took and that are gone: only their events tell."""
    there = {name_of(pod) for pod in pods_of(facts.objects)}
    ran = {about(one) for one in facts.events if reason_of(one) == "Scheduled"}
    failures = [one for one in facts.events if reason_of(one) == "FailedScheduling"]
    gone = [one for one in failures if about(one) not in there | ran]
    if not gone:
        return None
    return Answer(
        trouble="scheduling",
        cause=f"no node could take pod {about(gone[-1])}.",
        evidence=event_lines(gone),
        what_to_do="ask for less, or wait until others end; kubectl describe nodes shows what each node has.",
    )
