"""Deletes jobs, with everything that was made for them, and waits until their pods have gone."""

import time

from hvdkit.cluster.api import ApiError, Cluster
from hvdkit.cluster.job import OURS, Job
from hvdkit.cluster.kinds import MADE, POD, SHARED, Kind, name_of
from hvdkit.errors import EnvironmentProblem, InputError
from hvdkit.jobs.metadata import JOB_LABEL

_PARTS = tuple(kind for kind in MADE if kind not in SHARED)


def delete(cluster: Cluster, job: Job) -> None:
    """Delete a job; the cluster then removes what belongs to it."""
    cluster.delete(job.kind, job.name, uid=job.uid)


def delete_remains(cluster: Cluster, name: str) -> int:
    """Delete what carries the label of a job whose own object is not there; returns how many objects.

    Such are left when hvdkit was killed in the middle of submitting.
    """
    count = 0
    for kind in _PARTS:
        for one in _found(cluster, kind, f"{OURS},{JOB_LABEL}={name}"):
            if not one["metadata"].get("ownerReferences"):
                count += cluster.delete(kind, name_of(one), uid=one["metadata"]["uid"])
    if not count:
        raise InputError(
            f"there is no job '{name}' in namespace {cluster.namespace} of context {cluster.context}, and nothing is "
            "left of one; 'hvdkit list' shows those that there are."
        )
    return count


def wait_until_gone(cluster: Cluster, job: Job, seconds: float) -> None:
    """Return when the job and its pods are gone, so that its name and its GPUs are free."""
    end = time.monotonic() + seconds
    delay = 0.2
    while True:
        there = cluster.get(job.kind, job.name, patience=30.0)
        pods = [] if there and there["metadata"]["uid"] == job.uid else _pods(cluster, job)
        if there is None and not pods:
            return
        if there is not None and there["metadata"]["uid"] != job.uid:
            return  # a new job of the same name
        if time.monotonic() > end:
            left = ", ".join(name_of(pod) for pod in pods[:3]) or f"the {job.kind.kind} itself"
            raise EnvironmentProblem(
                f"'{job.name}' is being deleted, but after {seconds:g} s there still is: {left}; a node may be lost "
                "or a finalizer left; kubectl describe shows it."
            )
        time.sleep(delay)
        delay = min(delay * 1.5, 2.0)


def _pods(cluster: Cluster, job: Job) -> list[dict]:
    return cluster.items(POD, labels=job.pods, patience=30.0)


def _found(cluster: Cluster, kind: Kind, labels: str) -> list[dict]:
    try:
        return cluster.items(kind, labels=labels)
    except ApiError as error:
        if error.status == 403:
            return []  # what we may not see we did not make
        raise
