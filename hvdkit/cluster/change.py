"""Changes to a job that runs: suspend, resume, scale. Where the backend cannot, the error says so."""

import re

from hvdkit.cluster.api import Cluster
from hvdkit.cluster.job import Job, read_state
from hvdkit.cluster.kinds import Object, labels_of
from hvdkit.errors import InputError
from hvdkit.jobs.metadata import QUEUE_LABEL

_SUSPENDABLE = {"mpijob": "runPolicy", "pytorchjob": "runPolicy", "indexed-job": None, "job": None}
_REPLICAS = {"mpijob": "mpiReplicaSpecs", "pytorchjob": "pytorchReplicaSpecs"}


def set_suspended(cluster: Cluster, job: Job, suspended: bool) -> bool:
    """Suspend (its pods end, the job stays) or resume; False when it was so already."""
    verb = "suspend" if suspended else "resume"
    if job.backend not in _SUSPENDABLE:
        raise InputError(f"{verb}: not for backend {job.backend}, whose controller cannot start again; delete the job.")
    if queue := labels_of(job.main).get(QUEUE_LABEL):
        raise InputError(f"{verb}: the job '{job.name}' is in queue {queue}, and Kueue decides when it runs.")
    if read_state(job.backend, [job.main]).finished:
        raise InputError(f"{verb}: the job '{job.name}' has ended.")
    part = _SUSPENDABLE[job.backend]
    details = job.main.get("spec") or {}
    now = (details.get(part) or {} if part else details).get("suspend") or False
    if now == suspended:
        return False
    change: Object = {"suspend": suspended}
    cluster.patch(job.kind, job.name, {"spec": {part: change} if part else change})
    return True


def scale(cluster: Cluster, job: Job, workers: int) -> int:
    """Give an elastic job another number of workers; returns the number before."""
    if job.backend not in _REPLICAS:
        raise InputError(
            f"scale: not for backend {job.backend}, whose world has a fixed size; launch it anew with --workers, it "
            "goes on from its checkpoint."
        )
    low, high = _bounds(job)
    if low is None or high is None:
        raise InputError(
            f"scale: the job '{job.name}' is not elastic; launch it with --min-workers and --max-workers, or anew with "
            "--workers."
        )
    if not low <= workers <= high:
        raise InputError(f"--workers: {workers} is outside the {low} to {high} workers of the job '{job.name}'.")
    if read_state(job.backend, [job.main]).finished:
        raise InputError(f"scale: the job '{job.name}' has ended.")
    replicas = _REPLICAS[job.backend]
    before = job.main["spec"][replicas]["Worker"]["replicas"]
    if before != workers:
        cluster.patch(job.kind, job.name, {"spec": {replicas: {"Worker": {"replicas": workers}}}})
    return before


def _bounds(job: Job) -> tuple[int | None, int | None]:
    """The smallest and largest number of workers of an elastic job."""
    details = job.main.get("spec") or {}
    if job.backend == "pytorchjob":
        policy = details.get("elasticPolicy") or {}
        return policy.get("minReplicas"), policy.get("maxReplicas")
    template = ((details.get("mpiReplicaSpecs") or {}).get("Launcher") or {}).get("template") or {}
    words = " ".join(((template.get("spec") or {}).get("containers") or [{}])[0].get("command") or [])
    found = re.search(r" --elastic-min (\d+) --elastic-max (\d+)", words.partition(" -- ")[0])
    return (int(found[1]), int(found[2])) if found else (None, None)
