"""The table of backends: where a job can run. A new backend is a file here and a line in this table.

The file of a cluster's backend has `render(spec) -> list[dict]`, the objects to create in this order, and
`state(objects) -> JobState`, what the live objects mean. `local` renders processes instead.
"""

import importlib
from typing import TYPE_CHECKING, Any

from hvdkit.errors import InputError

if TYPE_CHECKING:
    from hvdkit.jobs.spec import JobSpec
    from hvdkit.jobs.state import JobState

LOCAL = "local"

# Backend to the module that renders it; imported only when it is used.
MODULES = {
    LOCAL: "hvdkit.jobs.local",
    "mpijob": "hvdkit.jobs.mpijob",
    "indexed-job": "hvdkit.jobs.indexed_job",
    "job": "hvdkit.jobs.job",
    "pytorchjob": "hvdkit.jobs.pytorchjob",
    "monarch": "hvdkit.jobs.monarch",
}
CLUSTER_BACKENDS = tuple(name for name in MODULES if name != LOCAL)


def render(spec: "JobSpec") -> list[dict[str, Any]]:
    """The objects of a job on a cluster, in the order in which they are created."""
    return _module(spec.backend).render(spec)


def state_of(backend: str, objects: list[dict[str, Any]]) -> "JobState":
    """What the live objects of a job mean: the job itself, its pods, and what a controller made for it."""
    return _module(backend).state(objects)


def _module(backend: str) -> Any:
    if backend not in CLUSTER_BACKENDS:
        raise InputError(f"backend: '{backend}' has no manifest; use one of {', '.join(CLUSTER_BACKENDS)}.")
    return importlib.import_module(MODULES[backend])
