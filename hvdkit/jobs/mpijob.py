"""The mpijob backend: an MPIJob of kubeflow.org/v2beta1, run by mpi-operator. Pure.

The launcher waits until every worker's name resolves and its SSH server answers, then starts the ranks with mpirun
(elastic: horovodrun). When a rank or worker fails, the launcher fails, a new launcher pod is made, up to
`run.backoff_limit` times, and each of them keeps its log. A worker whose pod is gone (deleted, preempted, drained) is
made anew by the operator. One that was evicted for want of memory or disk is not: its failed pod keeps the name, and
the launcher waits for it in vain until somebody deletes that pod.
"""

import re
from typing import Any

from hvdkit.errors import InputError
from hvdkit.jobs.live import (
    created,
    find,
    gone,
    is_launcher,
    is_ready,
    job_end,
    kubeflow_end,
    on_the_way,
    phase_of,
    pod_end,
    pod_failure,
    pods_of,
    restarts,
    true_condition,
    why_suspended,
)
from hvdkit.jobs.metadata import (
    LAUNCHER,
    WORKER,
    Object,
    add_queue,
    check_for_cluster,
    check_name,
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

SSH_PORT = 2222  # below 1024 a port needs a capability that `restricted` takes away
EVICTED = "MPIJobEvicted"  # the operator's reason; it is not the job's end
SSH_FOLDER = "/etc/hvdkit/ssh"  # not in a home folder: we do not know where the image's user lives


def render(spec: JobSpec) -> list[Object]:
    """The MPIJob, after what it mounts."""
    check(spec)
    controller = "gloo" if spec.elastic else "mpi"
    key = Setting(name="HVDKIT_SSH_FOLDER", value=SSH_FOLDER, reason="where the operator mounts the job's SSH key")
    env = environment(spec, settings(spec, key, controller=controller))
    meta = metadata(spec, "job")
    add_queue(spec, meta)
    replicas: Object = {"Launcher": _launcher(spec, env)}
    if worker_pods(spec):
        replicas["Worker"] = _workers(spec, env)
    job: Object = {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": meta,
        "spec": {
            "slotsPerWorker": spec.slots,
            **({"runLauncherAsWorker": True} if spec.launcher.as_worker else {}),
            # The launcher waits for the workers itself, and says which one is missing; the operator could only
            # hold the launcher back, which never ends where a gang is started together.
            "launcherCreationPolicy": "AtStartup",
            "mpiImplementation": "OpenMPI",
            "sshAuthMountPath": SSH_FOLDER,
            "runPolicy": _run_policy(spec),
            "mpiReplicaSpecs": replicas,
        },
    }
    # Plain MPIJobs meet over SSH with a key of their own; the rendezvous of an elastic one has no password.
    guard = network_policy(spec) if spec.elastic else []
    return [*nfs_objects(spec), *guard, job, *pod_monitor(spec)]


def check(spec: JobSpec) -> None:
    """InputError for what this backend cannot do."""
    check_for_cluster(spec)
    most = spec.elastic.max_workers if spec.elastic else spec.workers
    check_name(spec, f"-worker-{most - 1}")
    if spec.security.user == 0:
        raise InputError(
            "security.user: as root (0) the workers' SSH server needs capabilities that all containers drop; "
            "use another user, such as 1000."
        )
    refuse(
        spec,
        engine=spec.engine == "ddp",
        independent=spec.independent,
        generate_name=spec.generate_name,
        controller=spec.controller == "gloo" and spec.elastic is None,
        mpi_args=bool(spec.mpi_args) and spec.elastic is not None,
    )


def worker_pods(spec: JobSpec) -> int:
    """Pods beside the launcher."""
    return spec.workers - 1 if spec.launcher.as_worker else spec.workers


def state(objects: list[Object]) -> JobState:
    """What a live MPIJob, its launcher's Job and its pods mean. The launcher knows first how it ended."""
    job = find(objects, "MPIJob")
    if job is None:
        return gone(objects)
    details, status = job.get("spec") or {}, job.get("status") or {}
    policy = details.get("runPolicy") or {}
    pods = pods_of(objects)
    launchers = sorted(filter(is_launcher, pods), key=created)
    workers = [pod for pod in pods if not is_launcher(pod)]
    counted = ((details.get("mpiReplicaSpecs") or {}).get("Worker") or {}).get("replicas") or 0
    ready = sum(map(is_ready, workers))
    if details.get("runLauncherAsWorker"):
        counted, ready = counted + 1, ready + any(map(is_ready, launchers))
    common: dict[str, Any] = {"ready": ready, "workers": counted, "started": status.get("startTime")}
    launcher_job = find(objects, "Job")
    if launcher_job is not None and (ended := job_end(launcher_job, launchers[-1:], common)):
        return ended
    evicted = _evicted(status) if launchers else None
    if evicted is None and (ended := kubeflow_end(status, launchers[-1:], common)):
        return ended
    if policy.get("suspend"):
        return JobState(phase=SUSPENDED, reason="Suspended", message=why_suspended(job), **common)
    if not launchers:
        return on_the_way(workers, STARTING, common)
    last = launchers[-1]
    failures = [pod for pod in launchers if phase_of(pod) == "Failed"]
    if phase_of(last) == "Succeeded":
        return JobState(phase=SUCCEEDED, exit_code=0, ended=pod_end(last), **common)
    if phase_of(last) == "Failed" and len(failures) > (policy.get("backoffLimit") or 0):
        # The operator takes its time to say so.
        return JobState(phase=FAILED, ended=pod_end(last), **pod_failure(last), **common)
    if phase_of(last) == "Failed":
        return JobState(phase=RESTARTING, **pod_failure(last), **common)
    if phase_of(last) == "Running" and ready >= _smallest_world(details, counted):
        return JobState(phase=RUNNING, **common)
    if evicted is not None:
        said = evicted.get("message") or "a worker was evicted"
        message = f"{said}; delete its pod, and the operator makes a new one."
        return JobState(phase=RESTARTING, reason=EVICTED, message=message, **common)
    return on_the_way([*workers, last], RESTARTING if failures or restarts(last) else STARTING, common)


def _evicted(status: Object) -> Object | None:
    """The condition "Failed" that only says that a worker was evicted: the launcher goes on and may succeed."""
    failed = true_condition(status, "Failed")
    still_runs = failed is not None and failed.get("reason") == EVICTED and not status.get("completionTime")
    return failed if still_runs else None


def _launcher_restarts(spec: JobSpec) -> str:
    # Never keeps each attempt's pod and log; OnFailure would restart in place and lose the log.
    return spec.run.restart_policy or "Never"


def _launcher(spec: JobSpec, env: list[Object]) -> Object:
    command = ["python", "-m", "hvdkit.runtime.mpijob_launcher"]
    command += ["--slots", str(spec.slots), "--workers", str(worker_pods(spec))]
    command += ["--wait-seconds", str(spec.run.start_timeout)]
    command += [f"--mpi-arg={word}" for word in spec.mpi_args]
    if spec.elastic:
        command += ["--elastic-min", str(spec.elastic.min_workers), "--elastic-max", str(spec.elastic.max_workers)]
    if spec.launcher.as_worker:
        command.append("--launcher-as-worker")
    command += ["--", *spec.command]
    main = container(spec, name="launcher", component=LAUNCHER, command=command, env=env)
    return {
        "replicas": 1,
        "restartPolicy": _launcher_restarts(spec),
        "template": pod_template(spec, main, component=LAUNCHER),
    }


def _workers(spec: JobSpec, env: list[Object]) -> Object:
    main = container(
        spec,
        name="worker",
        component=WORKER,
        command=["python", "-m", "hvdkit.runtime.mpijob_worker"],
        env=env,
        ports=[{"name": "ssh", "containerPort": SSH_PORT}],
    )
    answers = {"tcpSocket": {"port": SSH_PORT}}
    # A name is in DNS once its pod is ready: look every second until it is, then seldom, for each look costs a fork.
    main["startupProbe"] = {**answers, "periodSeconds": 1, "failureThreshold": spec.run.start_timeout}
    main["readinessProbe"] = {**answers, "periodSeconds": 30, "timeoutSeconds": 10}
    return {
        "replicas": worker_pods(spec),
        # A worker killed for memory comes back in place; with Never it would stay failed, and every new launcher
        # would wait for it in vain.
        "restartPolicy": "OnFailure",
        "template": pod_template(spec, main, component=WORKER),
    }


def _run_policy(spec: JobSpec) -> Object:
    limit = spec.run.restarts(1, _launcher_restarts(spec))
    policy: Object = {"cleanPodPolicy": spec.run.clean_pods, "backoffLimit": limit}
    if spec.run.ttl is not None:
        policy["ttlSecondsAfterFinished"] = spec.run.ttl
    if spec.run.deadline is not None:
        policy["activeDeadlineSeconds"] = spec.run.deadline
    if suspended(spec):
        policy["suspend"] = True
    if spec.scheduling.gang:
        smallest = spec.elastic.min_workers if spec.elastic else spec.workers
        policy["schedulingPolicy"] = scheduling_policy(spec, smallest + (0 if spec.launcher.as_worker else 1))
    return policy


def _smallest_world(details: Object, workers: int) -> int:
    """How many workers must be ready for ranks to run: all, or as many as an elastic launcher is content with."""
    template = ((details.get("mpiReplicaSpecs") or {}).get("Launcher") or {}).get("template") or {}
    for one in (template.get("spec") or {}).get("containers") or []:
        words = " ".join(one.get("command") or []).partition(" -- ")[0]
        if match := re.search(r" --elastic-min ([0-9]+)", words):
            return int(match[1])
    return workers
