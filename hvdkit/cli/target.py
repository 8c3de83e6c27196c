"""The job that a command is about: a run on this machine, or a job on a cluster, by the same name and flags."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from hvdkit.errors import EnvironmentProblem, InputError

if TYPE_CHECKING:
    from hvdkit.cluster.api import Cluster
    from hvdkit.cluster.job import Job
    from hvdkit.local.record import LocalRun


def place_flags(function: Callable) -> Callable:
    """Add --context and -n to a command."""
    namespace = click.option("--namespace", "-n", help="Namespace.  [default: that of hvdkit.yaml or the context]")
    context = click.option("--context", help="Context of the kubeconfig.  [default: the current one]")
    return context(namespace(function))


@dataclass(frozen=True, kw_only=True)
class OnCluster:
    """A job on a cluster."""

    cluster: "Cluster"
    job: "Job"


def find(name: str, context: str | None, namespace: str | None) -> "LocalRun | OnCluster":
    """The run or job of this name; a run on this machine comes first, unless a cluster is named."""
    if context is None and namespace is None:
        from hvdkit.local.record import find_run

        run = find_run(name)
        if run is not None:
            return run
    from hvdkit.cluster.connection import configured

    if not configured():
        raise InputError(
            f"there is no run '{name}' on this machine, and no cluster is configured; 'hvdkit list' shows all there is."
        )
    from hvdkit.cluster.job import find_job

    cluster = open_cluster(context, namespace)
    return OnCluster(cluster=cluster, job=find_job(cluster, name))


def on_cluster(name: str, context: str | None, namespace: str | None, verb: str) -> OnCluster:
    """The job of this name on a cluster; InputError where it is a run on this machine, which cannot do that."""
    found = find(name, context, namespace)
    if not isinstance(found, OnCluster):
        raise InputError(f"{verb}: not for backend {found.backend} on this machine; '{name}' is a run here.")
    return found


def open_cluster(context: str | None, namespace: str | None) -> "Cluster":
    """The cluster that the flags mean."""
    from hvdkit.cluster.api import Cluster

    return Cluster(context=context, namespace=namespace or configured_namespace())


def configured_namespace() -> str | None:
    """The namespace that launches use, from HVDKIT_NAMESPACE or hvdkit.yaml; None is the context's."""
    import os

    from hvdkit.config.load import load_settings
    from hvdkit.config.settings import find as find_setting

    setting = find_setting(load_settings([], os.environ), "namespace")
    return setting.value if setting else None


def newest(context: str | None, namespace: str | None) -> "LocalRun | OnCluster":
    """The run or job that was started last; not its name, which may be that of an older one elsewhere, too."""
    from hvdkit.cluster.connection import configured
    from hvdkit.local.record import all_runs

    known: list[tuple[str, LocalRun | OnCluster]] = []
    if context is None and namespace is None:
        known += [(run.started, run) for run in all_runs()]
    if configured():
        from hvdkit.cluster.job import all_jobs

        cluster = open_cluster(context, namespace)
        for job, _ in all_jobs(cluster):
            known.append((job.main["metadata"].get("creationTimestamp") or "", OnCluster(cluster=cluster, job=job)))
    if not known:
        raise EnvironmentProblem("there is no job; `hvdkit launch` starts one.")
    return max(known, key=lambda one: one[0])[1]
