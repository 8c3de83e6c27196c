"""The part of `hvdkit bench scaling` that runs its points on a cluster: the flags of jobs, and the runner."""

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from hvdkit.cli.job_flags import FLAGS, flag_settings, job_flags_without, load
from hvdkit.cli.launch_cluster import CLUSTER_FLAGS
from hvdkit.errors import InputError

if TYPE_CHECKING:
    from hvdkit.bench.runners import Runner
    from hvdkit.config.settings import Setting

# A sweep decides these itself, point by point.
_LEFT_OUT = {"--workers", "--slots", "--backend", "--engine", "--controller", "--name", "--env", "--threads"}
_LEFT_OUT |= {"--min-workers", "--max-workers", "--independent", "--generate-name", "--suspend", "--restart-policy"}
_LEFT_OUT |= {"--backoff-limit", "--deadline", "--ttl", "--clean-pods", "--timeline", "--autotune"}
_PARAMETERS = [flag.parameter for flag in FLAGS if flag.option not in _LEFT_OUT]
_OTHERS = {"config": "--config", "profile": "--profile", "context": "--context"}
_OTHERS |= {"no_capacity_check": "--no-capacity-check"}


def bench_job_flags(function: Callable) -> Callable:
    """Add the flags of the jobs that a sweep makes on a cluster."""
    for name in ("--no-capacity-check", "--context"):
        function = click.option(name, **CLUSTER_FLAGS[name])(function)
    function = job_flags_without(_LEFT_OUT)(function)
    return click.option("--name", help="Names of the jobs begin with this.  [default: bench-<5 characters>]")(function)


def take_job_flags(flags: dict[str, Any]) -> dict[str, Any]:
    """Those of the flags that are about jobs; they are taken out of `flags`."""
    return {name: flags.pop(name) for name in (*_PARAMETERS, *_OTHERS, "name")}


def settings_of_jobs(backend: str, flags: dict[str, Any]) -> list["Setting"]:
    """What all jobs of the sweep have in common, from flags, HVDKIT_* and hvdkit.yaml; nothing on this machine."""
    from hvdkit.bench.cluster_jobs import BACKENDS

    if backend == "local":
        given = [setting.source for setting in flag_settings(flags)]
        given += [flag for name, flag in _OTHERS.items() if flags[name]] + (["--name"] if flags["name"] else [])
        if given:
            raise InputError(
                f"{given[0]}: backend local on this machine has no use for it; leave it out, or choose --backend "
                f"{' or '.join(BACKENDS)}."
            )
        return []
    if backend not in BACKENDS:
        raise InputError(f"--backend: sweeps run on local, {' and '.join(BACKENDS)}, not on '{backend}'.")
    return load(flags | {"name": None})


def recorded(settings: list["Setting"]) -> tuple[str, ...]:
    """What of the settings belongs into results.json, in an order of its own."""
    from hvdkit.bench.cluster_jobs import measured
    from hvdkit.cli.config import plain

    return tuple(sorted(f"{one.name}={json.dumps(plain(one.value), sort_keys=True)}" for one in measured(settings)))


def create_runner(backend: str, settings: list["Setting"], flags: dict[str, Any]) -> "Runner":
    """The runner of a backend."""
    if backend == "local":
        from hvdkit.bench.runners import LocalRunner

        return LocalRunner()
    from hvdkit.bench.cluster_runner import ClusterRunner
    from hvdkit.cli.render import unique_name
    from hvdkit.cluster.api import Cluster
    from hvdkit.config.settings import find

    namespace = find(settings, "namespace")
    where = {"context": flags["context"], "namespace": namespace.value if namespace else None}
    prefix, strict = flags["name"] or unique_name("bench"), not flags["no_capacity_check"]
    return ClusterRunner(lambda: Cluster(**where), settings, prefix=prefix, check_capacity=strict)
