"""The indexed-job backend: an Indexed Job and a headless Service, no operator and no SSH. Pure.

Pod 0 runs the rendezvous (Horovod's over Gloo, or torchrun's), a pod's place in the world is its completion index.

What happens when one index dies: the world is of no use without it, so all of it starts again or none of it.
- The pod was evicted, preempted or its node drained: not the job's fault. Its index starts again and is not counted.
- It left with 75, "stopped in good order, restart me", or 143, ended by SIGTERM: Kubernetes asked it to stop, or
  another pod of the world was lost, or did not come within `run.start_timeout`. Counted, and its index starts again.
  As every pod of a broken world leaves like this, the limit is `run.backoff_limit` worlds: so many times the number
  of workers in pods.
- It left with any other code: the program failed, and would again. The whole job fails at once and its pods end.
The job has succeeded when every index has.
"""

from typing import Any

from hvdkit.jobs.live import (
    RESTARTED_EXIT_CODES,
    find,
    gone,
    is_ready,
    job_end,
    on_the_way,
    phase_of,
    pod_end,
    pods_of,
    restarts,
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
from hvdkit.jobs.network import headless_service, network_policy, pod_monitor
from hvdkit.jobs.placement import join_gang, pod_group
from hvdkit.jobs.pods import container, environment, pod_template, settings
from hvdkit.jobs.spec import JobSpec
from hvdkit.jobs.state import RESTARTING, RUNNING, STARTING, SUCCEEDED, SUSPENDED, JobState
from hvdkit.jobs.storage import nfs_objects

CONTAINER = "worker"
_INDEX = "batch.kubernetes.io/job-completion-index"


def render(spec: JobSpec) -> list[Object]:
    """The Service and NetworkPolicy first, so that the pods find and are guarded from their first second on."""
    check(spec)
    template = world_template(spec, find="index", restart_policy="Never")
    template["spec"]["subdomain"] = spec.name  # with the Service of this name: <name>-<index>.<name> resolves
    own_fault = {"containerName": CONTAINER, "operator": "NotIn", "values": list(RESTARTED_EXIT_CODES)}
    rules = [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": "FailJob", "onExitCodes": own_fault},
    ]
    job = job_object(
        spec,
        template,
        completionMode="Indexed",
        podFailurePolicy={"rules": rules},
        # A new pod only when the old one has ended: two pods of one index would be two of one rank.
        podReplacementPolicy="Failed",
    )
    before = [*nfs_objects(spec), headless_service(spec), *network_policy(spec), *pod_group(spec, spec.workers)]
    return [*before, job, *pod_monitor(spec)]


def check(spec: JobSpec) -> None:
    """InputError for what this backend cannot do."""
    check_for_cluster(spec)
    check_name(spec, f"-{spec.workers - 1}")
    refuse(
        spec,
        elastic=spec.elastic is not None,
        mpi_args=bool(spec.mpi_args),
        independent=spec.independent,
        generate_name=spec.generate_name,
        run__restart_policy=spec.run.restart_policy == "OnFailure",
        run__clean_pods=spec.run.clean_pods != "Running",
        **launcher_fields(spec),
    )


def state(objects: list[Object]) -> JobState:
    """What a live Job and its pods mean."""
    job = find(objects, "Job")
    if job is None:
        return gone(objects)
    pods = pods_of(objects)
    details, status = job.get("spec") or {}, job.get("status") or {}
    succeeded = status.get("succeeded") or 0
    common: dict[str, Any] = {"workers": details.get("completions") or 1, "started": status.get("startTime")}
    if ended := job_end(job, pods, common | {"ready": succeeded}):
        return ended
    common["ready"] = max(sum(map(is_ready, pods)), status.get("ready") or 0)
    if details.get("suspend"):
        return JobState(phase=SUSPENDED, reason="Suspended", message=why_suspended(job), **common)
    done = {_index(pod): pod for pod in pods if phase_of(pod) == "Succeeded"}  # the Job's own count lags by a second
    if len(done) >= common["workers"]:
        ended = max(filter(None, map(pod_end, done.values())), default=None)
        return JobState(phase=SUCCEEDED, exit_code=0, ended=ended, **common | {"ready": len(done)})
    if common["ready"] + max(succeeded, len(done)) >= common["workers"]:
        return JobState(phase=RUNNING, **common)
    failed_before = bool(status.get("failed")) or any(map(restarts, pods))
    return on_the_way(pods, RESTARTING if failed_before else STARTING, common)


def _index(pod: Object) -> str:
    """A pod's place in an Indexed Job; in a Job without, each is a place of its own."""
    meta = pod.get("metadata") or {}
    return (meta.get("annotations") or {}).get(_INDEX) or meta.get("name") or ""


def world_template(spec: JobSpec, *, find: str, restart_policy: str) -> Object:
    """The pod template of a Job whose pods make one world by themselves; `find` is how a pod learns its place."""
    engine = spec.engine or "horovod"
    command = ["python", "-m", "hvdkit.runtime.pod_rank", "--workers", str(spec.workers), "--slots", str(spec.slots)]
    command += ["--service", spec.name, "--engine", engine, "--port", str(spec.network.port), "--find", find]
    command += ["--wait-seconds", str(spec.run.start_timeout)]
    made = settings(spec, controller="gloo" if engine == "horovod" else None)
    # With the node's network the pod's name is the node's, and says nothing of the address that the Service shows.
    env = environment(spec, made, POD_IP="status.podIP")
    ports = [{"name": "rendezvous", "containerPort": spec.network.port}]
    main = container(
        spec, name=CONTAINER, component=WORKER, command=[*command, "--", *spec.command], env=env, ports=ports
    )
    template = pod_template(spec, main, component=WORKER, restart_policy=restart_policy)
    join_gang(spec, template)
    return template


def job_object(spec: JobSpec, template: Object, **further: Any) -> Object:
    """A Job that runs all workers at once and has succeeded when each of them has; `further` fields win."""
    meta = metadata(spec, "job")
    add_queue(spec, meta)
    details: Object = {
        "parallelism": spec.workers,
        "completions": spec.workers,
        # Counted in pods, and a world that breaks costs each of its pods one try.
        "backoffLimit": spec.run.restarts(spec.workers, template["spec"]["restartPolicy"]),
    }
    if spec.run.deadline is not None:
        details["activeDeadlineSeconds"] = spec.run.deadline
    if spec.run.ttl is not None:
        details["ttlSecondsAfterFinished"] = spec.run.ttl
    if suspended(spec):
        details["suspend"] = True
    details |= {**further, "template": template}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": details}
