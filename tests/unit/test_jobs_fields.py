"""No field is forgotten: on every backend each one changes the manifest, is refused, or is listed here as unused."""

from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest
from golden_specs import everything

from hvdkit.errors import InputError
from hvdkit.jobs import CLUSTER_BACKENDS, render
from hvdkit.jobs.policy import Elastic, EnvSource, RunPolicy
from hvdkit.jobs.resources import Resources
from hvdkit.jobs.scheduling import Scheduling
from hvdkit.jobs.spec import Host, JobSpec
from hvdkit.jobs.volumes import Volume

# Another good value for every field of the spec that `everything` makes.
OTHERWISE: dict[str, Any] = {
    "name": "other",
    "command": ("other",),
    "backend": "auto",
    "namespace": "team-b",
    "workers": 5,
    "slots": 1,
    "engine": "ddp",
    "controller": "gloo",
    "threads": 4,
    "elastic": Elastic(min_workers=1, max_workers=9),
    "independent": True,
    "generate_name": True,
    "image": "other",
    "launcher_image": "other",
    "pull_policy": "Never",
    "pull_secrets": (),
    "working_dir": None,
    "env": {},
    "env_from": {"TOKEN": EnvSource(field="metadata.uid")},
    "resources.cpus": "7",
    "resources.limit_cpus": False,
    "resources.memory": "32Gi",
    "resources.gpus": 4,
    "resources.gpu_resource": "nvidia.com/gpu",
    "resources.extended": {},
    "shm": "1Gi",
    "launcher.resources": Resources(cpus="2"),
    "launcher.as_worker": True,
    "volumes": (Volume(mount="/other", pvc="other"),),
    "nfs_mode": "inline",
    "scheduling.node_selector": {},
    "scheduling.affinity": (),
    "scheduling.tolerations": (),
    "scheduling.placement": "pack",
    "scheduling.topology_key": "topology.kubernetes.io/zone",
    "scheduling.priority_class": None,
    "scheduling.scheduler": "other",
    "scheduling.gang": None,
    "scheduling.gang_timeout": 7,
    "scheduling.queue": "other",
    "run.restart_policy": "OnFailure",
    "run.backoff_limit": 7,
    "run.deadline": None,
    "run.start_timeout": 7,
    "run.ttl": 7,
    "run.clean_pods": "None",
    "run.suspend": True,
    "run.grace": 7,
    "network.interface": "ib0",
    "network.host_network": False,
    "network.port": 23456,
    "network.policy": False,
    "network.service_mesh": True,
    "security.level": "baseline",
    "security.enforced": "privileged",
    "security.user": 0,
    "security.group": 7,
    "security.read_only_root": True,
    "security.capabilities": ("IPC_LOCK",),
    "service_account": None,
    "metrics.port": 9500,
    "metrics.pod_monitor": False,
    "labels": {},
    "annotations": {},
    "provenance": {},
    "mpi_args": ("--tag-output",),
    "hosts": tuple(Host(name=name) for name in "abcd"),
    "timeline": "/other.json",
    "autotune": True,
}

# What has no use: the level and what a namespace enforces are limits; the rest is another backend's business.
EVERYWHERE = {"security.enforced", "controller"}  # mpijob refuses gloo
UNUSED = {
    "mpijob": EVERYWHERE - {"controller"} | {"network.port", "network.policy"},
    "indexed-job": EVERYWHERE,
    "job": EVERYWHERE,
    "pytorchjob": EVERYWHERE | {"engine", "run.start_timeout"},  # ddp is all it has; followers wait so long
    "monarch": EVERYWHERE | {"network.port", "engine"},
}


def leaves(part: Any, where: str = "") -> list[str]:
    """The names of all fields, those of nested parts with dots."""
    found = []
    for field in fields(part):
        value, name = getattr(part, field.name), where + field.name
        nested = is_dataclass(value) and not (where and field.name == "resources")
        found += leaves(value, f"{name}.") if nested else [name]
    return found


def changed(made: JobSpec, name: str) -> JobSpec:
    part, dot, field = name.partition(".")
    value = replace(getattr(made, part), **{field: OTHERWISE[name]}) if dot else OTHERWISE[name]
    return replace(made, **{part: value})


def base(backend: str, name: str) -> JobSpec:
    """A spec in which the field can be changed without breaking another rule."""
    further: dict[str, Any] = {"mpi_args": ()}
    if name == "scheduling.gang":
        further["scheduling"] = Scheduling(gang="coscheduling")  # without a timeout
    if name in ("run.suspend", "independent"):
        further["scheduling"] = Scheduling()  # a queue suspends too, and a gang is not independent
    if name == "run.restart_policy":
        further["run"] = RunPolicy(restart_policy="Never")
    return everything(backend, **further)


def test_every_field_is_tried() -> None:
    assert set(OTHERWISE) == set(leaves(everything("mpijob")))


@pytest.mark.parametrize("backend", CLUSTER_BACKENDS)
def test_a_field_changes_the_manifest_or_is_refused_or_is_listed(backend: str) -> None:
    without_effect = set()
    for name in OTHERWISE:
        before = base(backend, name)
        try:
            if render(changed(before, name)) == render(before):
                without_effect.add(name)
        except InputError as error:
            # A stricter level makes other fields wrong.
            assert str(error).startswith(name) or name == "security.level", error
    assert without_effect == UNUSED[backend]
