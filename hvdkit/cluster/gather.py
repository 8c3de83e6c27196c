"""Collects what `why` must know: objects, events, last lines, and whether the pods could ever fit."""

import re
from concurrent.futures import ThreadPoolExecutor

from hvdkit.cluster.api import ApiError, Cluster
from hvdkit.cluster.capacity import PodGroup, never_fits, pod_groups
from hvdkit.cluster.job import Job, NoSuchJob, find_job, gather, read_state
from hvdkit.cluster.kinds import EVENT, JOB_KINDS, MESH, NODE, Object, name_of
from hvdkit.cluster.logs import read_log, speaking_pods, started
from hvdkit.cluster.why_facts import Facts, about, scheduled_condition
from hvdkit.jobs.live import gone, pods_of
from hvdkit.jobs.monarch import mesh_name

LINES = 20
_MOST_LOGS = 3
_OF_MESH = (MESH.kind, "StatefulSet", "Pod")
_SECONDS = len("2026-01-01T00:00:00")  # of a time; some have fractions after it


def facts_of(cluster: Cluster, name: str) -> Facts:
    """All that the API still knows of a job; NoSuchJob where that is nothing."""
    try:
        job = find_job(cluster, name)
    except NoSuchJob:
        events = _of_the_last(events_about(cluster, name), name)
        if not events:
            raise
        return Facts(name=name, backend="", namespace=cluster.namespace, state=gone([]), objects=[], events=events)
    with ThreadPoolExecutor(2) as pool:
        asked = pool.submit(events_about, cluster, name, job)
        objects = gather(cluster, job)
        events = asked.result()
    pods = pods_of(objects)
    return Facts(
        name=name,
        backend=job.backend,
        namespace=cluster.namespace,
        state=read_state(job.backend, objects),
        objects=objects,
        events=events,
        logs=_tails(cluster, job, pods),
        never_fits=_never_fits(cluster, job, objects),
    )


def events_about(cluster: Cluster, name: str, job: Job | None = None) -> list[Object]:
    """The events of the job and of all pods it ever had, oldest first; without `job`, of all that had its name."""
    # Names as the controllers make them: another job may begin with the name of this one.
    own = re.compile(rf"{re.escape(name)}(-(launcher|worker|master)(-[a-z0-9]+)?)?")
    of_pod = re.compile(rf"{re.escape(name)}(-\d+)?-[a-z0-9]{{5}}")
    # A mesh has another name than its job, and its pods are numbered like those of any StatefulSet.
    of_mesh = re.compile(rf"{re.escape(mesh_name(name))}(-\d+)?")
    kinds_of_mesh = _OF_MESH if job is None or job.backend == "monarch" else ()
    found = [
        one
        for one in cluster.items(EVENT)
        if own.fullmatch(about(one))
        or (_kind_about(one) == "Pod" and of_pod.fullmatch(about(one)))
        or (_kind_about(one) in kinds_of_mesh and of_mesh.fullmatch(about(one)))
    ]
    return sorted((one for one in found if job is None or not _of_another(one, job)), key=_time)


def _of_another(event: Object, job: Job) -> bool:
    """Whether an event is of an earlier job of the same name."""
    created = job.main["metadata"].get("creationTimestamp") or ""
    if _time(event) and _time(event)[:_SECONDS] < created[:_SECONDS]:
        return True
    uid = (event.get("involvedObject") or {}).get("uid")
    return about(event) == job.name and _kind_about(event) == job.kind.kind and uid not in (None, "", job.uid)


def _of_the_last(events: list[Object], name: str) -> list[Object]:
    """Without those of jobs that had the name before the last one that did."""
    kinds = [kind.kind for kind in JOB_KINDS]
    jobs = [one for one in events if about(one) == name and _kind_about(one) in kinds]
    if not jobs:
        return events
    last = (jobs[-1].get("involvedObject") or {}).get("uid")
    others = [one for one in jobs if (one.get("involvedObject") or {}).get("uid") != last]
    since = min(_time(one)[:_SECONDS] for one in jobs if one not in others)
    return [one for one in events if one not in others and _time(one)[:_SECONDS] >= since]


def _time(event: Object) -> str:
    return event.get("lastTimestamp") or event.get("eventTime") or ""


def _kind_about(event: Object) -> str:
    return (event.get("involvedObject") or {}).get("kind") or ""


def _tails(cluster: Cluster, job: Job, pods: list[Object]) -> dict[str, list[str]]:
    """The last lines of pods that have run and are not well."""
    unwell = [pod for pod in speaking_pods(job, pods) if started(pod) and _ended_badly(pod)]
    found: dict[str, list[str]] = {}
    for pod in unwell[-_MOST_LOGS:]:
        try:
            lines = read_log(cluster, name_of(pod), lines=LINES)
            found[name_of(pod)] = [line.decode(errors="replace") for line in lines]
        except ApiError:
            continue  # its node is gone: the answer must do without
    return found


def _ended_badly(pod: Object) -> bool:
    for container in (pod.get("status") or {}).get("containerStatuses") or []:
        for moment in ("state", "lastState"):
            if ((container.get(moment) or {}).get("terminated") or {}).get("exitCode"):
                return True
    return False


def _never_fits(cluster: Cluster, job: Job, objects: list[Object]) -> str:
    """What the preflight would say today, where a pod waits for a node."""
    if not any((scheduled_condition(pod) or {}).get("status") == "False" for pod in pods_of(objects)):
        return ""
    try:
        nodes = cluster.items(NODE)
    except ApiError:
        return ""  # most users may not see nodes
    meshes = [one for one in objects if one.get("kind") == MESH.kind]
    groups: list[PodGroup] = pod_groups([job.main, *meshes])
    return never_fits(groups, nodes) or ""
