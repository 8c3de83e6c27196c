"""The pods of a job: environment, container and pod template, the same for every backend. Pure.

A container's `command` is what it runs, word for word: there is no shell, and what Kubernetes itself would expand,
`$(NAME)`, is escaped. It replaces the image's entrypoint, because an entrypoint that we do not know may do anything.
"""

import re

from hvdkit.jobs.metadata import LAUNCHER, WORKER, Object, annotations, labels
from hvdkit.jobs.placement import pod_fields
from hvdkit.jobs.resources import Resources
from hvdkit.jobs.spec import JobSpec
from hvdkit.jobs.storage import volumes
from hvdkit.jobs.tuning import Setting, autotune_setting, horovod_settings, is_autotuned, threads_per_rank

SECONDS_TO_CLEAN_UP = 5  # of the pod's grace period, after the ranks' share of it

_EXPANDED = re.compile(r"\$(?=[$(])")
_NO_SERVICE_MESH = {"sidecar.istio.io/inject": "false", "linkerd.io/inject": "disabled"}


def escape(text: str) -> str:
    """The text from which Kubernetes makes this one: it reads `$(NAME)` as a variable and `$$` as one dollar."""
    return _EXPANDED.sub("$$", text)


def settings(spec: JobSpec, *further: Setting, controller: str | None) -> list[Setting]:
    """The environment of the ranks, each with its reason; what the user set comes last and wins.

    `controller` is Horovod's, None where Horovod does not run; `further` is what only this backend has.
    """
    world, hosts = spec.world_size, spec.host_count
    if spec.elastic:
        low, high = spec.elastic.min_workers, spec.elastic.max_workers
        world_text, hosts_text = f"{low * spec.slots}-{high * spec.slots}", f"{low}-{high}"
    else:
        world_text, hosts_text = str(world), str(hosts)
    made = [
        Setting(name="HVDKIT_JOB", value=spec.name, reason="the name of this job"),
        Setting(name="HVDKIT_BACKEND", value=spec.backend, reason="where it runs"),
        Setting(name="HVDKIT_WORLD_SIZE", value=world_text, reason="a world of another size fails the job"),
        Setting(name="HVDKIT_HOSTS", value=hosts_text, reason="so does a world on another number of pods"),
        Setting(
            name="HVDKIT_GRACE_SECONDS",
            value=str(max(1, spec.run.grace - SECONDS_TO_CLEAN_UP)),
            reason="how long ranks asked to stop may take, a little less than the pod",
        ),
        Setting(name="PYTHONUNBUFFERED", value="1", reason="lines appear when they are printed"),
        Setting(name="PYTHONFAULTHANDLER", value="1", reason="a crash in native code shows the Python stack"),
        *_threads(spec),
        *_horovod(spec, controller),
        *_interface(spec, controller),
        *further,
    ]
    if spec.security.read_only_root:
        made.append(Setting(name="XDG_CACHE_HOME", value="/tmp/.cache", reason="the home folder is read-only"))
        made.append(Setting(name="TRITON_HOME", value="/tmp", reason="the home folder is read-only"))
    if spec.metrics.port is not None:
        made.append(Setting(name="HVDKIT_METRICS_PORT", value=str(spec.metrics.port), reason="metrics.port"))
    if spec.timeline:
        made.append(Setting(name="HOROVOD_TIMELINE", value=spec.timeline, reason="--timeline"))
    if spec.autotune:
        made.append(autotune_setting())
    chosen = {setting.name: setting for setting in made if setting.name not in spec.env_from}
    for name, value in spec.env.items():
        chosen[name] = Setting(name=name, value=value, reason="--env")
    return list(chosen.values())


def environment(spec: JobSpec, given: list[Setting], **pod_fields: str) -> list[Object]:
    """The `env` of a container; `pod_fields` are variables that hold a field of the pod."""
    found: list[Object] = [{"name": setting.name, "value": escape(setting.value)} for setting in given]
    taken = {setting.name for setting in given} | set(spec.env_from)
    for name, path in {"HVDKIT_NODE": "spec.nodeName", **pod_fields}.items():
        if name not in taken:
            found.append({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}})
    for name, source in spec.env_from.items():
        if source.field is not None:
            origin: Object = {"fieldRef": {"fieldPath": source.field}}
        else:
            kind, owner = ("secretKeyRef", source.secret) if source.secret else ("configMapKeyRef", source.config_map)
            optional = {"optional": True} if source.optional else {}
            origin = {kind: {"name": owner, "key": source.key, **optional}}
        found.append({"name": name, "valueFrom": origin})
    return found


def container(
    spec: JobSpec,
    *,
    name: str,
    component: str,
    command: list[str],
    env: list[Object],
    ports: list[Object] | None = None,
) -> Object:
    """The container of a pod, without probes."""
    image = spec.launcher_image if component == LAUNCHER and spec.launcher_image else spec.image
    found: Object = {"name": name, "image": image}
    if spec.pull_policy:
        found["imagePullPolicy"] = spec.pull_policy
    found["command"] = [escape(word) for word in command]
    if spec.working_dir:
        found["workingDir"] = spec.working_dir
    open_ports = [*(ports or []), *(metrics_ports(spec) if _has_ranks(spec, component) else [])]
    if open_ports:
        found["ports"] = open_ports
    if env:
        found["env"] = env
    if amounts := resources_of(spec, component).amounts():
        found["resources"] = amounts
    found["securityContext"] = _container_security(spec)
    # The launcher writes why it failed; where it could not, the end of the log says so.
    found["terminationMessagePolicy"] = "FallbackToLogsOnError"
    _, mounts = volumes(spec, shm=_has_ranks(spec, component))
    if mounts:
        found["volumeMounts"] = mounts
    return found


def pod_template(spec: JobSpec, main: Object, *, component: str, restart_policy: str | None = None) -> Object:
    """The pod template around a container; Kubeflow's operators take the restart policy elsewhere."""
    has_ranks = _has_ranks(spec, component)
    details: Object = {}
    if restart_policy:
        details["restartPolicy"] = restart_policy
    if spec.service_account:
        details["serviceAccountName"] = spec.service_account
    else:
        details["automountServiceAccountToken"] = False  # training does not talk to the API
    details["enableServiceLinks"] = False  # else every Service of the namespace adds variables
    details["terminationGracePeriodSeconds"] = spec.run.grace
    if spec.network.host_network:
        details |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    if spec.pull_secrets:
        details["imagePullSecrets"] = [{"name": name} for name in spec.pull_secrets]
    details |= pod_fields(spec, component)
    details["securityContext"] = _pod_security(spec)
    details["containers"] = [main]
    mounted, _ = volumes(spec, shm=has_ranks)
    if mounted:
        details["volumes"] = mounted
    meta: Object = {"labels": labels(spec, component)}
    notes = annotations(spec)
    if not spec.network.service_mesh:
        # Istio looks at the label first, older versions at the annotation.
        meta["labels"]["sidecar.istio.io/inject"] = "false"
        notes = {**_NO_SERVICE_MESH, **notes}
    if notes:
        meta["annotations"] = notes
    return {"metadata": meta, "spec": details}


def resources_of(spec: JobSpec, component: str) -> Resources:
    """What a pod asks for: a worker's share where ranks run."""
    if _has_ranks(spec, component):
        return spec.resources
    return spec.launcher.share(spec.elastic.max_workers if spec.elastic else spec.workers)


def metrics_ports(spec: JobSpec) -> list[Object]:
    """One port a rank, the first at `metrics.port`."""
    if spec.metrics.port is None:
        return []
    first = spec.metrics.port
    return [{"name": f"metrics-{slot}", "containerPort": first + slot} for slot in range(spec.slots)]


def _has_ranks(spec: JobSpec, component: str) -> bool:
    return component == WORKER or (component == LAUNCHER and spec.launcher.as_worker)


def _threads(spec: JobSpec) -> list[Setting]:
    if spec.threads:
        return [Setting(name="OMP_NUM_THREADS", value=str(spec.threads), reason="--threads")]
    cores = spec.resources.whole_cpus
    if cores is None:
        return []  # the pod itself sees what it has
    reason = f"{cores} cores / {spec.slots} ranks"
    return [Setting(name="OMP_NUM_THREADS", value=str(threads_per_rank(cores, spec.slots)), reason=reason)]


def _horovod(spec: JobSpec, controller: str | None) -> list[Setting]:
    if controller is None:
        return []
    one_pod = spec.workers == 1 and spec.elastic is None
    autotune = is_autotuned(spec.env, asked=spec.autotune)
    return horovod_settings(
        controller=controller, gpus=spec.resources.gpus > 0, one_machine=one_pod, autotune=autotune
    )


def _interface(spec: JobSpec, controller: str | None) -> list[Setting]:
    if spec.network.interface is None:
        return []
    every, first = spec.network.interface, spec.network.interface.partition(",")[0]
    names = {"NCCL_SOCKET_IFNAME": every, "GLOO_SOCKET_IFNAME": every}
    if controller == "mpi":
        names |= {"OMPI_MCA_btl_tcp_if_include": every, "OMPI_MCA_oob_tcp_if_include": every}
    if controller == "gloo":
        names["HOROVOD_GLOO_IFACE"] = first  # takes one only
    return [Setting(name=name, value=value, reason="network.interface") for name, value in names.items()]


def _pod_security(spec: JobSpec) -> Object:
    security = spec.security
    found: Object = {"runAsNonRoot": True} if security.user else {}
    found |= {"runAsUser": security.user, "runAsGroup": security.group, "fsGroup": security.group}
    # A volume whose top folder already has the right group is not walked file by file at each start.
    found["fsGroupChangePolicy"] = "OnRootMismatch"
    found["seccompProfile"] = {"type": "RuntimeDefault"}
    return found


def _container_security(spec: JobSpec) -> Object:
    security = spec.security
    capabilities: Object = {"drop": ["ALL"]}
    if security.capabilities:
        capabilities["add"] = list(security.capabilities)
    found: Object = {"allowPrivilegeEscalation": False, "capabilities": capabilities}
    if security.read_only_root:
        found["readOnlyRootFilesystem"] = True
    return found
