"""The jobs of hvdkit on a cluster: find one by its name, list them, and read where one stands."""

import importlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from hvdkit.cluster.api import Cluster
from hvdkit.cluster.kinds import JOB, JOB_KINDS, MESH, POD, Kind, Object, kind_of, labels_of, name_of
from hvdkit.cluster.ownership import own
from hvdkit.errors import InputError
from hvdkit.jobs import MODULES
from hvdkit.jobs.metadata import BACKEND_LABEL, JOB_LABEL, MANAGED_BY
from hvdkit.jobs.state import JobState

OURS = ",".join(f"{key}={value}" for key, value in MANAGED_BY.items())


class NoSuchJob(InputError):
    """There is no object of this name at all."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job's own object, as it was when we looked."""

    main: Object

    @property
    def name(self) -> str:
        return name_of(self.main)

    @property
    def kind(self) -> Kind:
        return kind_of(self.main)

    @property
    def uid(self) -> str:
        return self.main["metadata"]["uid"]

    @property
    def backend(self) -> str:
        return labels_of(self.main)[BACKEND_LABEL]

    @property
    def pods(self) -> str:
        """What selects its pods; a name that the cluster has finished is not the one on the pods' label."""
        label = labels_of(self.main).get(JOB_LABEL)
        return f"{JOB_LABEL}={self.name}" if label == self.name else f"batch.kubernetes.io/job-name={self.name}"

    @property
    def sources(self) -> list[tuple[Kind, str | None, str | None]]:
        """What tells its state: kind, label selector and field selector of each list, the job's own object first.

        By name only; which of these objects belong to this job and not to one before it, `own` says.
        """
        found: list[tuple[Kind, str | None, str | None]] = [
            (self.kind, None, f"metadata.name={self.name}"),
            (POD, self.pods, None),
        ]
        if self.backend == "mpijob":
            # The operator's own Job for the launcher knows first how it ended.
            found.append((JOB, None, f"metadata.name={self.name}-launcher"))
        if self.backend == "monarch":
            found.append((MESH, f"{JOB_LABEL}={self.name}", None))
        return found


def read_state(backend: str, objects: list[Object]) -> JobState:
    """What the live objects of a job mean."""
    # Not `hvdkit.jobs.state`: that name is a function until somebody imports the module of the same name.
    return importlib.import_module(MODULES[backend]).state(objects)


def is_ours(one: Object) -> bool:
    """Whether hvdkit made the object, as a job that it knows."""
    labels = labels_of(one)
    return all(labels.get(key) == value for key, value in MANAGED_BY.items()) and labels.get(BACKEND_LABEL) in MODULES


def find_job(cluster: Cluster, name: str) -> Job:
    """The job of this name; NoSuchJob where there is none, InputError where it is not hvdkit's."""
    with ThreadPoolExecutor(len(JOB_KINDS)) as pool:
        answers = list(pool.map(lambda kind: cluster.get(kind, name), JOB_KINDS))
    found = [
        {"apiVersion": kind.api_version, "kind": kind.kind, **one}
        for kind, one in zip(JOB_KINDS, answers, strict=True)
        if one is not None
    ]
    ours = [one for one in found if is_ours(one)]
    if ours:
        return Job(main=ours[0])
    where = f"in namespace {cluster.namespace} of context {cluster.context}"
    if found:
        raise InputError(
            f"the {found[0]['kind']} '{name}' {where} was not made by hvdkit; use kubectl, or choose another name."
        )
    raise NoSuchJob(f"there is no job '{name}' {where}; 'hvdkit list' shows those that there are.")


def all_jobs(cluster: Cluster) -> list[tuple[Job, JobState]]:
    """Every job of hvdkit in the namespace with its state, oldest first; a fixed number of requests."""
    kinds = (*JOB_KINDS, POD)
    with ThreadPoolExecutor(len(kinds)) as pool:
        answers = dict(zip(kinds, pool.map(lambda kind: cluster.items(kind, labels=OURS), kinds), strict=True))
    jobs = [Job(main=one) for kind in JOB_KINDS for one in answers[kind] if is_ours(one)]
    jobs.sort(key=lambda job: (job.main["metadata"].get("creationTimestamp") or "", job.name))
    pods: dict[str, list[Object]] = {}
    for pod in answers[POD]:
        for key in (JOB_LABEL, "batch.kubernetes.io/job-name"):
            if key in labels_of(pod):
                pods.setdefault(f"{key}={labels_of(pod)[key]}", []).append(pod)
    return [(job, read_state(job.backend, [job.main, *own(job.main, pods.get(job.pods, []))])) for job in jobs]


def gather(cluster: Cluster, job: Job) -> list[Object]:
    """The job's object, its pods and what a controller made for it, as they are now."""
    with ThreadPoolExecutor(len(job.sources)) as pool:
        parts = pool.map(lambda source: cluster.items(source[0], labels=source[1], fields=source[2]), job.sources)
        mains, *others = parts
    main = mains[0] if mains else job.main
    return [*mains, *own(main, [one for part in others for one in part])]
