"""The controller of a Monarch job: DDP ranks in the processes of a mesh, on a MonarchMesh's pods or on this machine.

    python -m hvdkit.runtime.monarch_controller --mesh NAME --hosts N --procs S [--local] -- command …
"""

import argparse
import math
import os
import socket
import sys
from dataclasses import replace

from hvdkit.jobs.local import LocalPlan
from hvdkit.jobs.spec import Host, JobSpec
from hvdkit.local.machine import read_machine
from hvdkit.local.monarch import check_installed, mesh_plan
from hvdkit.runtime.monarch_mesh import parse
from hvdkit.runtime.pod_names import addresses_of, stop_when_asked
from hvdkit.runtime.pod_supervisor import PodSupervisor, run
from hvdkit.runtime.pod_termination import explained

_FOR_RANKS = ("HVDKIT_WORLD_SIZE", "HVDKIT_HOSTS", "OMP_NUM_THREADS")


def main(arguments: list[str]) -> int:
    """Run the ranks on the mesh; returns the first failing rank's exit code."""
    options, command = parse(arguments)
    stop_when_asked()
    if options.local:
        check_installed()
        return run_ranks(options, command)
    from hvdkit.runtime import monarch_pods

    try:
        check_installed()
        seconds = math.inf if options.queued else options.wait_seconds
        monarch_pods.wait_for_pods(options.mesh, options.hosts, seconds)
        return run_ranks(options, command)
    finally:
        monarch_pods.delete_mesh(options.mesh)


def run_ranks(options: argparse.Namespace, command: list[str]) -> int:
    """Start the mesh process, and be its ranks' supervisor."""
    supervisor = PodSupervisor(plan_for(options, command), starter="Monarch", start_timeout=options.wait_seconds)
    return run(supervisor)


def plan_for(options: argparse.Namespace, command: list[str]) -> LocalPlan:
    """One process that starts all ranks, with the variables of a local launch but Horovod's."""
    hosts = [] if options.local else [f"{options.mesh}-{number}" for number in range(options.hosts)]
    spec = JobSpec(
        name=os.environ.get("HVDKIT_JOB", options.mesh),
        command=tuple(command),
        workers=options.hosts,
        slots=options.procs,
        hosts=tuple(Host(name=name, slots=options.procs) for name in hosts),
        env={name: os.environ[name] for name in _FOR_RANKS if name in os.environ},
    )
    words = ["--mesh", options.mesh, "--hosts", str(options.hosts), "--procs", str(options.procs)]
    plan = mesh_plan(spec, read_machine(), [*words, *(["--local"] if options.local else [])])
    # The ranks come from other pods, to this one's address.
    own = () if options.local else (os.environ.get("POD_IP") or addresses_of(socket.gethostname())[0],)
    return replace(plan, hosts=own)


if __name__ == "__main__":
    sys.exit(explained(lambda: main(sys.argv[1:])))
