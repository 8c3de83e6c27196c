"""The part of `hvdkit launch` that sends a job to a cluster: its flags, the choice of `auto`, and the launch."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from hvdkit.config.settings import Setting, find, sources_named
from hvdkit.errors import InputError

CLUSTER_FLAGS = {
    "--context": {"help": "Context of the kubeconfig.  [default: the current one]"},
    "--detach": {"is_flag": True, "help": "On a cluster: return when the job is submitted; its name is printed."},
    "--on-interrupt": {
        "type": click.Choice(["ask", "keep", "delete"]),
        "help": "On a cluster: what Ctrl-C does with the job.  [default: ask; without a terminal: keep]",
    },
    "--save-logs": {
        "type": click.Path(path_type=Path),
        "metavar": "DIR",
        "help": "On a cluster: keep the logs of all pods here.",
    },
    "--no-capacity-check": {"is_flag": True, "help": "On a cluster: also submit what fits on no node that is there."},
}


def cluster_flags(function: Callable) -> Callable:
    """Add the flags that only a launch on a cluster has."""
    for name, details in reversed(CLUSTER_FLAGS.items()):
        function = click.option(name, **details)(function)
    return function


def refuse_on_this_machine(flags: dict[str, Any], backend: str) -> None:
    """InputError for a flag that a run on this machine has no use for."""
    for name in CLUSTER_FLAGS:
        if flags[name.removeprefix("--").replace("-", "_")]:
            raise InputError(f"{name}: backend {backend} on this machine has no use for it; leave it out.")


def launch_on_cluster(settings: list[Setting], reason: str, flags: dict[str, Any], *, as_json: bool) -> int:
    """Send the job to the cluster and see it through; `reason` is the backend, and why this one."""
    from hvdkit.cli.render import spec_of
    from hvdkit.cluster.api import Cluster
    from hvdkit.cluster.launch import LaunchOptions, launch_on_cluster
    from hvdkit.cluster.preflight import choose_backend
    from hvdkit.jobs import render

    namespace, asked = find(settings, "namespace"), find(settings, "backend")
    auto = asked is None or asked.value == "auto"
    # What is wrong with the job itself is said before anything about the cluster.
    spec = spec_of(settings)
    with sources_named(settings):
        if not auto:
            render(spec)
    cluster = Cluster(context=flags["context"], namespace=namespace.value if namespace else None)
    if auto:
        backend, why = choose_backend(cluster)
        spec, reason = replace(spec, backend=backend), f"{backend} ({why})"
    options = LaunchOptions(
        detach=flags["detach"],
        on_interrupt=flags["on_interrupt"] or "ask",
        save_logs=flags["save_logs"],
        as_json=as_json,
        check_capacity=not flags["no_capacity_check"],
    )
    with sources_named(settings):
        return launch_on_cluster(cluster, spec, options, reason)
