"""Before a job is submitted: does the cluster know its kind, may we, and can its pods ever run there?

Each check reads; none changes anything. What we may not read (nodes, say) is not known, and no reason to refuse.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from hvdkit.cluster.api import ApiError, Cluster
from hvdkit.cluster.capacity import never_fits, over_quota, pod_groups, unnamed_amount
from hvdkit.cluster.job import Job
from hvdkit.cluster.kinds import (
    ACCESS_REVIEW,
    BUILT_IN,
    MAIN,
    MPIJOB,
    NAMESPACE,
    NODE,
    QUOTA,
    SHARED,
    VOLUME,
    Kind,
    Object,
    kind_of,
)
from hvdkit.errors import EnvironmentProblem
from hvdkit.jobs import MODULES, render
from hvdkit.jobs.security import LEVELS
from hvdkit.jobs.spec import JobSpec
from hvdkit.jobs.storage import nfs_through_pv

ENFORCE_LABEL = "pod-security.kubernetes.io/enforce"
_OPERATORS = {
    "MPIJob": "install mpi-operator 0.8 in the cluster, or use --backend indexed-job, which needs no operator",
    "PyTorchJob": "install training-operator 1.9 in the cluster, or use --backend indexed-job --engine ddp",
    "MonarchMesh": "install the Monarch operator in the cluster, or use --backend indexed-job --engine ddp",
    "PodMonitor": "install the Prometheus operator, or leave --pod-monitor out",
    "PodGroup": "install the scheduler that --gang names, or leave --gang out",
}


@dataclass(frozen=True)
class Ready:
    """A job that may be submitted."""

    spec: JobSpec
    """As asked for, and with what the namespace enforces."""

    objects: list[Object]
    """What is sent, in this order."""

    notes: list[str]
    """What the user should know before."""


def choose_backend(cluster: Cluster) -> tuple[str, str]:
    """The backend of `auto` on this cluster, and why."""
    where = f"context {cluster.context}"
    if serves(cluster, MPIJOB):
        return "mpijob", f"{where} serves MPIJob"
    return "indexed-job", f"{where} serves no MPIJob of {MPIJOB.api_version}"


def preflight(cluster: Cluster, spec: JobSpec, *, check_capacity: bool = True) -> Ready:
    """All checks; an error is one sentence with the way out. Returns what to send."""
    assert spec.backend in MODULES
    notes: list[str] = []
    spec = _for_namespace(cluster, spec, notes)
    objects = render(spec)
    kinds = list(dict.fromkeys(map(kind_of, objects)))
    with ThreadPoolExecutor(16) as pool:
        served = pool.map(lambda kind: kind.group in BUILT_IN or serves(cluster, kind), kinds)
        rights = _rights(spec, objects)
        allowed = pool.map(lambda right: may(cluster, *right), rights)
        quotas = pool.submit(_readable, cluster, QUOTA)
        nodes = pool.submit(_readable, cluster, NODE)
        for kind, there in zip(kinds, served, strict=True):
            if not there:
                raise EnvironmentProblem(
                    f"the cluster of context '{cluster.context}' does not serve {kind.kind} of {kind.api_version}; "
                    f"{_OPERATORS.get(kind.kind, 'install its operator')}."
                )
        for (kind, verb), ok in zip(rights, allowed, strict=True):
            if not ok:
                raise _no_right(cluster, kind, verb)
        _check_room(cluster, spec, objects, quotas.result(), nodes.result(), notes, strict=check_capacity)
    return Ready(spec, objects, notes)


def _rights(spec: JobSpec, objects: list[Object]) -> list[tuple[Kind, str]]:
    """What a launch asks the cluster for: to make its objects, hand them over to the job, and look on."""
    kinds = list(dict.fromkeys(map(kind_of, objects)))
    main = next(made for made in objects if kind_of(made) is MAIN[spec.backend])
    handed = [kind for kind in kinds if kind is not MAIN[spec.backend] and kind not in SHARED]
    watched = [kind for kind, _, _ in Job(main=main).sources]
    return [
        *((kind, "create") for kind in kinds),
        *((kind, "patch") for kind in handed),
        *((kind, verb) for kind in watched for verb in ("list", "watch")),
    ]


def serves(cluster: Cluster, kind: Kind) -> bool:
    """Whether the API serves this kind at this version."""
    root = f"/apis/{kind.api_version}" if kind.group else f"/api/{kind.api_version}"
    try:
        answer = cluster.request("GET", root)
    except ApiError as error:
        if error.status == 404:
            return False
        raise
    return any(one.get("kind") == kind.kind for one in answer.get("resources") or [])


def may(cluster: Cluster, kind: Kind, verb: str, part: str = "") -> bool:
    """Whether we have the right, as the cluster itself sees it."""
    resource = {"group": kind.group, "resource": kind.plural, "verb": verb, "subresource": part}
    if kind.namespaced:
        resource["namespace"] = cluster.namespace
    review = {
        "apiVersion": ACCESS_REVIEW.api_version,
        "kind": ACCESS_REVIEW.kind,
        "spec": {"resourceAttributes": resource},
    }
    answer = cluster.request("POST", ACCESS_REVIEW.path(None), body=review, patience=5.0)
    return bool(answer["status"].get("allowed"))


def _no_right(cluster: Cluster, kind: Kind, verb: str) -> EnvironmentProblem:
    if kind is VOLUME:
        return EnvironmentProblem(
            f"--nfs: you may not {verb} persistentvolumes in context '{cluster.context}', and namespace "
            f"'{cluster.namespace}' takes no NFS without one; have the administrator make a PV and a claim, and use "
            "--pvc CLAIM:/mount."
        )
    return EnvironmentProblem(
        f"you may not {verb} {kind.plural} in namespace '{cluster.namespace}' of context '{cluster.context}'; ask for "
        "the Role in manifests/rbac.yaml, or use another namespace, -n."
    )


def _for_namespace(cluster: Cluster, spec: JobSpec, notes: list[str]) -> JobSpec:
    """The spec with the Pod Security level that the namespace enforces; an error when the namespace is not there."""
    try:
        found = cluster.get(NAMESPACE, cluster.namespace)
    except ApiError as error:
        if error.status != 403:
            raise
        return spec  # unknown; the pods keep `restricted` by default anyway
    if found is None:
        raise EnvironmentProblem(
            f"there is no namespace '{cluster.namespace}' in context '{cluster.context}'; make it with "
            f"`kubectl create namespace {cluster.namespace}`, or choose another with -n."
        )
    level = (found["metadata"].get("labels") or {}).get(ENFORCE_LABEL)
    if level in LEVELS and spec.security.enforced is None:
        before = nfs_through_pv(spec)
        spec = replace(spec, security=replace(spec.security, enforced=level))
        if nfs_through_pv(spec) and not before and any(volume.nfs for volume in spec.volumes):
            notes.append(f"namespace {cluster.namespace} enforces {level}: NFS is mounted through a PV and a claim")
    if nfs_through_pv(spec) and spec.namespace is None:
        # A PV has no namespace, and the name of ours must tell for which one it is.
        spec = replace(spec, namespace=cluster.namespace)
    return spec


def _readable(cluster: Cluster, kind: Kind) -> list[Object] | None:
    """The objects of a kind; None where we may not see them."""
    try:
        return cluster.items(kind, patience=5.0)
    except ApiError as error:
        if error.status == 403:
            return None
        raise


def _check_room(
    cluster: Cluster,
    spec: JobSpec,
    objects: list[Object],
    quotas: list[Object] | None,
    nodes: list[Object] | None,
    notes: list[str],
    *,
    strict: bool,
) -> None:
    groups = pod_groups(objects)
    waits = spec.run.suspend or spec.scheduling.queue is not None  # somebody else decides when there is room
    problem = over_quota(groups, quotas) if quotas else None
    if problem and not waits:
        raise EnvironmentProblem(f"{problem}; ask for less, or `hvdkit delete` a job (namespace {cluster.namespace}).")
    if note := unnamed_amount(groups, quotas or []):
        notes.append(note)
    problem = never_fits(groups, nodes) if nodes else None
    if problem and strict and not waits:
        raise EnvironmentProblem(f"{problem}. (Where nodes are added on demand, say --no-capacity-check.)")
    if problem:
        notes.append(problem)
