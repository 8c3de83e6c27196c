"""The monarch backend: a MonarchMesh of monarch.pytorch.org/v1alpha1 and a Job with its controller. Pure.

The operator makes the mesh's worker pods; the controller attaches to them, runs the ranks on the mesh, and deletes
the mesh when it ends, so that no GPU stays held. A controller that failed is therefore not started again: the job has
failed. One that was killed, for lack of memory or with its node, deletes nothing: the mesh stays until
`hvdkit delete`.

The mesh's name is the job's without its dashes, because Monarch takes letters and digits only.
"""

import zlib
from typing import Any

from hvdkit.errors import InputError
from hvdkit.jobs.indexed_job import job_object
from hvdkit.jobs.live import created, find, gone, is_launcher, is_ready, job_end, on_the_way, phase_of, pods_of
from hvdkit.jobs.metadata import (
    LAUNCHER,
    QUEUE_LABEL,
    WORKER,
    Object,
    add_queue,
    check_for_cluster,
    metadata,
    refuse,
)
from hvdkit.jobs.network import network_policy, pod_monitor
from hvdkit.jobs.placement import join_gang, pod_group
from hvdkit.jobs.pods import container, environment, pod_template, settings
from hvdkit.jobs.policy import BACKOFF_LIMIT
from hvdkit.jobs.spec import JobSpec
from hvdkit.jobs.state import RUNNING, STARTING, JobState
from hvdkit.jobs.storage import nfs_objects
from hvdkit.jobs.tuning import Setting

PORT = 26600
GROUP = "monarch.pytorch.org"
_LONGEST_MESH = 52  # its StatefulSet labels pods with its own name and a hash of ten characters


def render(spec: JobSpec) -> list[Object]:
    """Rights and guard first, then the mesh, then the controller that waits for it."""
    check(spec)
    before = [*nfs_objects(spec), *_rights(spec), *network_policy(spec), *pod_group(spec, spec.workers)]
    return [*before, _mesh(spec), _controller(spec), *pod_monitor(spec)]


def check(spec: JobSpec) -> None:
    """InputError for what this backend cannot do."""
    check_for_cluster(spec)
    mesh = mesh_name(spec.name)
    if len(mesh) > _LONGEST_MESH:
        raise InputError(
            f"name: '{spec.name}' gives the mesh {mesh} with {len(mesh)} characters and backend monarch leaves "
            f"{_LONGEST_MESH} for it."
        )
    refuse(
        spec,
        engine=spec.engine == "horovod",
        elastic=spec.elastic is not None,
        mpi_args=bool(spec.mpi_args),
        independent=spec.independent,
        generate_name=spec.generate_name,
        launcher__as_worker=spec.launcher.as_worker,
        run__suspend=spec.run.suspend,
        run__restart_policy=spec.run.restart_policy == "OnFailure",
        run__backoff_limit=spec.run.backoff_limit not in (0, BACKOFF_LIMIT),
        run__clean_pods=spec.run.clean_pods != "Running",
        timeline=spec.timeline is not None,
        autotune=spec.autotune,
    )


def mesh_name(job: str) -> str:
    """The mesh of a job: Monarch's names have no dashes; what tells `a-b` from `ab` then is a checksum."""
    letters = job.replace("-", "")
    return letters if letters == job else f"{letters}{zlib.crc32(job.encode()):08x}"


def state(objects: list[Object]) -> JobState:
    """What a live controller Job, its mesh and the pods of both mean."""
    job = find(objects, "Job")
    if job is None:
        return gone(objects)
    pods = pods_of(objects)
    controllers = sorted(filter(is_launcher, pods), key=created)
    workers = [pod for pod in pods if not is_launcher(pod)]
    counted = _hosts(job) or len(workers)  # as the controller was told: the mesh is gone in the end
    started = (job.get("status") or {}).get("startTime")
    common: dict[str, Any] = {"ready": sum(map(is_ready, workers)), "workers": counted, "started": started}
    if ended := job_end(job, controllers[-1:], common):
        return ended
    if controllers and phase_of(controllers[-1]) == "Running" and common["ready"] >= counted > 0:
        return JobState(phase=RUNNING, **common)
    return on_the_way([*workers, *controllers], STARTING, common)


def _mesh(spec: JobSpec) -> Object:
    port = Setting(name="MONARCH_PORT", value=str(PORT), reason="where Monarch's KubernetesJob looks for workers")
    env = environment(spec, settings(spec, port, controller=None), POD_IP="status.podIP")
    main = container(
        spec,
        name="worker",
        component=WORKER,
        command=["python", "-m", "hvdkit.runtime.monarch_worker"],
        env=env,
        ports=[{"name": "monarch", "containerPort": PORT}],
    )
    # Ready means that Monarch can attach; its program takes seconds to start.
    answers = {"tcpSocket": {"port": PORT}}
    main["startupProbe"] = {**answers, "periodSeconds": 1, "failureThreshold": spec.run.start_timeout}
    template = pod_template(spec, main, component=WORKER)
    del template["metadata"]["labels"]["app.kubernetes.io/name"]  # the operator's, by which Monarch finds the pods
    join_gang(spec, template)
    meta = metadata(spec, "mesh", name=mesh_name(spec.name))
    add_queue(spec, meta)  # the operator hands it on to the StatefulSet, which Kueue knows
    return {
        "apiVersion": f"{GROUP}/v1alpha1",
        "kind": "MonarchMesh",
        "metadata": meta,
        "spec": {"replicas": spec.workers, "port": PORT, "podTemplate": template},
    }


def _controller(spec: JobSpec) -> Object:
    command = ["python", "-m", "hvdkit.runtime.monarch_controller", "--mesh", mesh_name(spec.name)]
    command += ["--hosts", str(spec.workers), "--procs", str(spec.slots)]
    command += ["--wait-seconds", str(spec.run.start_timeout)]
    if spec.scheduling.queue or spec.scheduling.gang:
        command.append("--queued")  # the mesh may wait long for its turn, and its controller with it
    command += ["--", *spec.command]
    made = settings(spec, controller=None)
    env = environment(spec, made, POD_IP="status.podIP", HVDKIT_NAMESPACE="metadata.namespace")
    main = container(spec, name="controller", component=LAUNCHER, command=command, env=env)
    template = pod_template(spec, main, component=LAUNCHER, restart_policy="Never")
    template["spec"].pop("automountServiceAccountToken", None)  # it does talk to the API
    template["spec"]["serviceAccountName"] = account(spec)
    job = job_object(spec, template, parallelism=1, completions=1, backoffLimit=0)
    # The queue admits the mesh; its controller, which waits for it, is not kept asleep.
    job["metadata"]["labels"].pop(QUEUE_LABEL, None)
    job["spec"].pop("suspend", None)
    return job


def _hosts(job: Object) -> int:
    """How many pods the mesh of a live job has or had."""
    pod = ((job.get("spec") or {}).get("template") or {}).get("spec") or {}
    words = (pod.get("containers") or [{}])[0].get("command") or []
    return int(words[words.index("--hosts") + 1]) if "--hosts" in words else 0


def account(spec: JobSpec) -> str:
    """The controller's ServiceAccount: the user's, or one of its own."""
    return spec.service_account or spec.name


def _rights(spec: JobSpec) -> list[Object]:
    """What the controller may do: see the pods, and delete its own mesh."""
    api = "rbac.authorization.k8s.io"
    role: Object = {
        "apiVersion": f"{api}/v1",
        "kind": "Role",
        "metadata": metadata(spec, "rights"),
        "rules": [
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]},
            {
                "apiGroups": [GROUP],
                "resources": ["monarchmeshes"],
                "resourceNames": [mesh_name(spec.name)],
                "verbs": ["get", "delete"],
            },
        ],
    }
    subject: Object = {"kind": "ServiceAccount", "name": account(spec)}
    if spec.namespace:
        subject["namespace"] = spec.namespace
    binding: Object = {
        "apiVersion": f"{api}/v1",
        "kind": "RoleBinding",
        "metadata": metadata(spec, "rights"),
        "roleRef": {"apiGroup": api, "kind": "Role", "name": spec.name},
        "subjects": [subject],
    }
    made = [role, binding]
    if spec.service_account is None:
        made.insert(0, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata(spec, "rights")})
    return made
