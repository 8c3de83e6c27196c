"""The pytorchjob backend: a PyTorchJob of kubeflow.org/v1, run by training-operator. Pure.

torchrun starts the ranks; what it must know the operator gives it as PET_* variables. A pod that fails starts again
in place, the others lose their world and start again too; `run.backoff_limit` counts such worlds.

Master and Workers, except where the namespace enforces `restricted`: the operator gives each Worker beside a Master
an init container without the settings that standard demands, and its pods would be refused. There, and when elastic,
all pods are Workers, and the first of them is the meeting point.
"""

from typing import Any

from hvdkit.jobs.live import (
    find,
    gone,
    is_ready,
    kubeflow_end,
    on_the_way,
    pods_of,
    restarts,
    true_condition,
    why_suspended,
)
from hvdkit.jobs.metadata import (
    WORKER,
    Object,
    add_queue,
    check_for_cluster,
    check_name,
    launcher_fields,
    metadata,
    refuse,
    suspended,
)
from hvdkit.jobs.network import network_policy, pod_monitor
from hvdkit.jobs.placement import scheduling_policy
from hvdkit.jobs.pods import container, environment, pod_template, settings
from hvdkit.jobs.spec import JobSpec
from hvdkit.jobs.state import FAILED, RESTARTING, RUNNING, STARTING, SUCCEEDED, SUSPENDED, JobState
from hvdkit.jobs.storage import nfs_objects
from hvdkit.jobs.tuning import Setting

CONTAINER = "pytorch"  # the operator looks for these two names
PORT = "pytorchjob-port"
_INDEX = "metadata.labels['training.kubeflow.org/replica-index']"


def render(spec: JobSpec) -> list[Object]:
    """The PyTorchJob, after what it mounts."""
    check(spec)
    meta = metadata(spec, "job")
    add_queue(spec, meta)
    workers_only = spec.elastic is not None or spec.security.enforced == "restricted"
    template = _template(spec, static_rendezvous=workers_only and spec.elastic is None)
    if workers_only:
        replicas = {"Worker": _replica(spec, spec.workers, template)}
    else:
        replicas = {"Master": _replica(spec, 1, template)}
        if spec.workers > 1:
            replicas["Worker"] = _replica(spec, spec.workers - 1, template)
    job: Object = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": meta,
        "spec": {
            "nprocPerNode": str(spec.slots),  # always said: the default starts a process for every CPU
            "runPolicy": _run_policy(spec),
            **({"elasticPolicy": _elastic_policy(spec)} if spec.elastic else {}),
            "pytorchReplicaSpecs": replicas,
        },
    }
    return [*nfs_objects(spec), *network_policy(spec), job, *pod_monitor(spec)]


def check(spec: JobSpec) -> None:
    """InputError for what this backend cannot do."""
    check_for_cluster(spec)
    most = spec.elastic.max_workers if spec.elastic else spec.workers
    check_name(spec, f"-worker-{most - 1}")
    refuse(
        spec,
        engine=spec.engine == "horovod",
        mpi_args=bool(spec.mpi_args),
        independent=spec.independent,
        generate_name=spec.generate_name,
        timeline=spec.timeline is not None,
        autotune=spec.autotune,
        **launcher_fields(spec),
    )


def state(objects: list[Object]) -> JobState:
    """What a live PyTorchJob and its pods mean."""
    job = find(objects, "PyTorchJob")
    if job is None:
        return gone(objects)
    details, status = job.get("spec") or {}, job.get("status") or {}
    replicas = details.get("pytorchReplicaSpecs") or {}
    counts = {role: (replica or {}).get("replicas") or 0 for role, replica in replicas.items()}
    pods = pods_of(objects)
    ready, workers = sum(map(is_ready, pods)), sum(counts.values())
    common: dict[str, Any] = {"ready": ready, "workers": workers, "started": status.get("startTime")}
    ended = kubeflow_end(status, pods, common)
    if ended and ended.phase == SUCCEEDED and counts.get("Worker") and not _ever_ran(status, "Worker"):
        # The operator asks the Master only, also when the workers' pods were refused.
        message = "the operator says Succeeded, but no worker has run; see the events of the job."
        return JobState(phase=FAILED, reason="WorkersNeverRan", message=message, ended=ended.ended, **common)
    if ended:
        return ended
    if (details.get("runPolicy") or {}).get("suspend"):
        return JobState(phase=SUSPENDED, reason="Suspended", message=why_suspended(job), **common)
    smallest = (details.get("elasticPolicy") or {}).get("minReplicas") or workers
    if 0 < smallest <= ready:
        return JobState(phase=RUNNING, **common)
    restarted = true_condition(status, "Restarting") is not None or any(map(restarts, pods))
    return on_the_way(pods, RESTARTING if restarted else STARTING, common)


def _ever_ran(status: Object, role: str) -> bool:
    counts = (status.get("replicaStatuses") or {}).get(role) or {}
    return any(counts.get(name) for name in ("active", "succeeded", "failed"))


def _template(spec: JobSpec, *, static_rendezvous: bool) -> Object:
    if static_rendezvous:
        reason = "the operator tells it to pods beside a Master only"
        meeting = {"PET_MASTER_ADDR": f"{spec.name}-worker-0", "PET_MASTER_PORT": str(spec.network.port)}
        made = settings(
            spec,
            *(Setting(name=name, value=value, reason=reason) for name, value in meeting.items()),
            controller=None,
        )
        env = environment(spec, made, PET_NODE_RANK=_INDEX)
    else:
        env = environment(spec, settings(spec, controller=None))
    main = container(
        spec,
        name=CONTAINER,
        component=WORKER,
        command=["python", "-m", "torch.distributed.run", "--no-python", "--", *spec.command],
        env=env,
        ports=[{"name": PORT, "containerPort": spec.network.port}],
    )
    return pod_template(spec, main, component=WORKER)


def _replica(spec: JobSpec, count: int, template: Object) -> Object:
    return {"replicas": count, "restartPolicy": _restart_policy(spec), "template": template}


def _restart_policy(spec: JobSpec) -> str:
    return spec.run.restart_policy or "OnFailure"


def _run_policy(spec: JobSpec) -> Object:
    limit = spec.run.restarts(spec.workers, _restart_policy(spec))  # the operator adds up those of all pods
    policy: Object = {"cleanPodPolicy": spec.run.clean_pods, "backoffLimit": limit}
    if spec.run.ttl is not None:
        policy["ttlSecondsAfterFinished"] = spec.run.ttl
    if spec.run.deadline is not None:
        policy["activeDeadlineSeconds"] = spec.run.deadline
    if suspended(spec):
        policy["suspend"] = True
    if spec.scheduling.gang:
        smallest = spec.elastic.min_workers if spec.elastic else spec.workers
        policy["schedulingPolicy"] = scheduling_policy(spec, smallest)
    return policy


def _elastic_policy(spec: JobSpec) -> Object:
    assert spec.elastic is not None
    return {
        "rdzvBackend": "c10d",
        "minReplicas": spec.elastic.min_workers,
        "maxReplicas": spec.elastic.max_workers,
        "maxRestarts": spec.run.backoff_limit,  # torchrun's own, of the ranks, when a pod comes or goes
    }
