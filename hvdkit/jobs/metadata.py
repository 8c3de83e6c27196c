"""Names, labels and annotations of a job's objects. Pure."""

from typing import Any

from hvdkit.errors import InputError
from hvdkit.jobs.rules import text
from hvdkit.jobs.spec import JobSpec

JOB_LABEL = "hvdkit.io/job"
BACKEND_LABEL = "hvdkit.io/backend"
COMPONENT_LABEL = "app.kubernetes.io/component"
MANAGED_BY = {"app.kubernetes.io/managed-by": "hvdkit"}
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"

LAUNCHER = "launcher"
WORKER = "worker"

Object = dict[str, Any]


def check_for_cluster(spec: JobSpec) -> None:
    """What every backend of a cluster needs beyond the spec's own rules."""
    if spec.image is None:
        raise InputError(f"image: backend {spec.backend} runs in containers; say which with --image.")
    for index, value in enumerate(spec.command):
        text(f"command[{index}]", value)
    for index, value in enumerate(spec.mpi_args):
        text(f"mpi_args[{index}]", value)
    for name, value in spec.env.items():
        text(f"env.{name}", value)
    text("timeline", spec.timeline or "")


def check_name(spec: JobSpec, suffix: str, *, limit: int = 63, what: str = "its last pod") -> None:
    """The names that are made from the job's must fit, too."""
    room = limit - len(suffix)
    if len(spec.name) > room:
        raise InputError(
            f"name: '{spec.name}' has {len(spec.name)} characters and backend {spec.backend} leaves {room} for it: "
            f"{what} is called <name>{suffix}."
        )


def refuse(spec: JobSpec, **fields: bool) -> None:
    """An error for the first of these fields that is set, because the backend has nothing to do it with."""
    for name, is_set in fields.items():
        if is_set:
            dotted = name.replace("__", ".")
            raise InputError(f"{dotted}: backend {spec.backend} cannot do that; leave it out or use another backend.")


def launcher_fields(spec: JobSpec) -> dict[str, bool]:
    """The fields of a launcher and which are set, for backends that have none to `refuse`."""
    return {
        "launcher_image": spec.launcher_image is not None,
        "launcher__as_worker": spec.launcher.as_worker,
        "launcher__resources": spec.launcher.resources is not None,
    }


def labels(spec: JobSpec, component: str) -> dict[str, str]:
    """The labels of an object: ours by which hvdkit finds it again, and the user's."""
    return {
        "app.kubernetes.io/name": "hvdkit",
        "app.kubernetes.io/instance": spec.name,
        COMPONENT_LABEL: component,
        **MANAGED_BY,
        JOB_LABEL: spec.name,
        BACKEND_LABEL: spec.backend,
        **spec.labels,
    }


def annotations(spec: JobSpec) -> dict[str, str]:
    """The user's annotations, and what the job was made from."""
    return {**spec.annotations, **{f"hvdkit.io/{key}": value for key, value in spec.provenance.items()}}


def metadata(spec: JobSpec, component: str, *, name: str | None = None) -> Object:
    """The metadata of an object of the job."""
    found: Object = {"name": name or spec.name}
    if spec.namespace:
        found["namespace"] = spec.namespace
    found["labels"] = labels(spec, component)
    if notes := annotations(spec):
        found["annotations"] = notes
    return found


def add_queue(spec: JobSpec, meta: Object) -> None:
    """Hand the job to Kueue, which starts it when its queue has room."""
    if kueue(spec):
        meta["labels"][QUEUE_LABEL] = spec.scheduling.queue


def kueue(spec: JobSpec) -> bool:
    """Whether Kueue admits the job; Volcano has queues of its own."""
    return spec.scheduling.queue is not None and spec.scheduling.gang != "volcano"


def suspended(spec: JobSpec) -> bool:
    """Whether the job is created asleep: by wish, or because Kueue is the one who wakes it."""
    return spec.run.suspend or kueue(spec)


def own_pods(spec: JobSpec, component: str | None = None) -> dict[str, str]:
    """What selects the pods of this job and no others."""
    chosen = {JOB_LABEL: spec.name}
    if component:
        chosen[COMPONENT_LABEL] = component
    return chosen
