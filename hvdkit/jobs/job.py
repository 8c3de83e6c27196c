"""The job backend: a plain Job, without index and operator; for `kubectl create` and clusters that allow no more. Pure.

The pods make one world all the same: a headless Service on our own label lists their addresses, and a pod's rank is
its place among them in order. With `independent` they know nothing of each other, and each runs the command alone.

A container that fails starts again in its pod, which keeps its address (OnFailure). The others lose their world and
start again too, so the limit is `run.backoff_limit` worlds. Two runs of one name at once would find each other's
pods: they count more addresses than workers, and fail with that reason.
"""

from hvdkit.jobs.indexed_job import CONTAINER, job_object, state, world_template
from hvdkit.jobs.metadata import WORKER, Object, check_for_cluster, check_name, launcher_fields, refuse
from hvdkit.jobs.network import headless_service, network_policy, pod_monitor
from hvdkit.jobs.placement import pod_group
from hvdkit.jobs.pods import container, environment, pod_template, settings
from hvdkit.jobs.spec import JobSpec
from hvdkit.jobs.storage import nfs_objects

__all__ = ["render", "state"]  # a Job with and without index ends alike

_GENERATED = 5  # characters that the API server adds to a generateName
_WORLD_ONLY = ("HVDKIT_WORLD_SIZE", "HVDKIT_HOSTS")


def render(spec: JobSpec) -> list[Object]:
    """The Job, after what its pods need to meet."""
    check(spec)
    restart_policy = spec.run.restart_policy or "OnFailure"
    if spec.independent:
        job = job_object(spec, _lone_template(spec, restart_policy))
        before = nfs_objects(spec)
    else:
        job = job_object(spec, world_template(spec, find="addresses", restart_policy=restart_policy))
        before = [*nfs_objects(spec), headless_service(spec), *network_policy(spec), *pod_group(spec, spec.workers)]
    if spec.generate_name:
        job["metadata"] = {"generateName": f"{job['metadata'].pop('name')}-", **job["metadata"]}
    return [*before, job, *pod_monitor(spec)]


def check(spec: JobSpec) -> None:
    """InputError for what this backend cannot do."""
    check_for_cluster(spec)
    if spec.generate_name:
        check_name(spec, "-" + "x" * _GENERATED, what="with generate_name the job")
    refuse(
        spec,
        elastic=spec.elastic is not None,
        mpi_args=bool(spec.mpi_args),
        engine=spec.independent and spec.engine is not None,
        scheduling__gang=spec.independent and spec.scheduling.gang is not None,
        run__clean_pods=spec.run.clean_pods != "Running",
        **launcher_fields(spec),
    )


def _lone_template(spec: JobSpec, restart_policy: str) -> Object:
    made = [setting for setting in settings(spec, controller=None) if setting.name not in _WORLD_ONLY]
    main = container(
        spec, name=CONTAINER, component=WORKER, command=list(spec.command), env=environment(spec, made)
    )
    return pod_template(spec, main, component=WORKER, restart_policy=restart_policy)
