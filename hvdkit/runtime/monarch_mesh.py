"""Starts one rank in each process of a Monarch mesh, as mpirun does on its hosts.

    python -m hvdkit.runtime.monarch_mesh --mesh NAME --hosts N --procs S [--local] -- command …

The ranks talk to the controller over their own channel; this process only lives as long as they do.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hvdkit.errors import InputError
from hvdkit.runtime import channel

SECONDS_BEFORE_ANOTHER_TRY = (1.0, 2.0, 5.0, 10.0)
_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def main(arguments: list[str]) -> int:
    """Start the ranks and wait for their end; how it went is told by the ranks themselves."""
    options, command = parse(arguments)
    from hvdkit.runtime.monarch_actor import RankStarter

    local_size = options.hosts * options.procs if options.local else options.procs
    processes = _hosts(options).spawn_procs(per_host={"gpus": local_size})
    starters = processes.spawn("hvdkit", RankStarter)
    env = for_ranks(os.environ)
    controller = env[channel.VARIABLE].split()[0].split(",")[0]
    first = starters.slice(**dict.fromkeys(starters.extent.labels, 0))
    master = first.meeting_place.call_one(controller).get()
    said = starters.run.call(command, env, local_size, master).get()
    print("".join(said.values()), end="", flush=True)
    processes.stop().get()
    return 0


def for_ranks(environ: Mapping[str, str]) -> dict[str, str]:
    """What ranks are told; everything else they have from their own pods, also on which node these are."""
    return {name: value for name, value in environ.items() if name.startswith("HVDKIT_") and name != "HVDKIT_NODE"}


def parse(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Flags of the controller and of this program, and the ranks' command after `--`."""
    parser = argparse.ArgumentParser(prog="hvdkit.runtime.monarch_controller", allow_abbrev=False)
    parser.add_argument("--mesh", required=True, help="name of the MonarchMesh")
    parser.add_argument("--hosts", type=int, required=True, help="pods of the mesh")
    parser.add_argument("--procs", type=int, required=True, help="ranks in a pod")
    parser.add_argument("--local", action="store_true", help="run on this machine, without a cluster")
    parser.add_argument("--wait-seconds", type=float, default=600, help="how long the pods may take to be ready")
    parser.add_argument("--queued", action="store_true", help="and without limit, because a queue holds them back")
    split = arguments.index("--") if "--" in arguments else len(arguments)
    options, command = parser.parse_args(arguments[:split]), arguments[split + 1 :]
    if not command:
        raise InputError("there is nothing to run; put the ranks' command after '--'.")
    return options, command


def namespace() -> str:
    """The namespace of this pod."""
    return os.environ.get("HVDKIT_NAMESPACE") or _NAMESPACE.read_text().strip()


def tried_again(attach: Callable[[], Any]) -> Any:
    """What `attach` returns: Monarch gives up at the first error of the API server, also at one that passes."""
    for pause in SECONDS_BEFORE_ANOTHER_TRY:
        try:
            return attach()
        except Exception as error:  # of Monarch, the kubernetes client or what is below it
            said = " ".join(str(error).split()) or type(error).__name__
            print(f"hvdkit: Monarch did not get to the pods and tries again: {said}", file=sys.stderr, flush=True)
            time.sleep(pause)
    return attach()


def _hosts(options: "argparse.Namespace") -> Any:
    """The mesh of hosts: this one, or the pods that the operator has made."""
    if options.local:
        from monarch.actor import this_host

        return this_host()
    from monarch.job.kubernetes import KubernetesJob

    def attach() -> Any:
        job = KubernetesJob(namespace=namespace(), timeout=60)  # the controller has seen all pods ready
        job.add_mesh(options.mesh, options.hosts)
        return getattr(job.state(cached_path=None), options.mesh)

    return tried_again(attach)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
