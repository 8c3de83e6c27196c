"""The main program of a pod that trains without an operator and without SSH: finds the others, runs its ranks.

    python -m hvdkit.runtime.pod_rank --workers N --slots S --service NAME --engine horovod -- command …

The ranks of all pods are one world. When one pod fails, goes or is asked to stop, the others follow: a world does
not survive the loss of a rank, and the Job starts all its pods anew.
"""

import argparse
import contextlib
import os
import socket
import sys
import time

from hvdkit.errors import EXIT_RESTART_ME, InputError
from hvdkit.jobs import local
from hvdkit.jobs.local import LocalPlan, Process
from hvdkit.jobs.spec import Host, JobSpec
from hvdkit.local.machine import read_machine
from hvdkit.local.starting import start_rendezvous
from hvdkit.runtime.interfaces import interface_of
from hvdkit.runtime.pod_names import NotThereInTime, stop_when_asked
from hvdkit.runtime.pod_places import Place, by_addresses, by_index
from hvdkit.runtime.pod_roster import FirstPod, OtherPod, PlacesChanged, Roster
from hvdkit.runtime.pod_supervisor import PodSupervisor, run
from hvdkit.runtime.pod_termination import explained

PORT = 29500
_FOR_RANKS = ("HOROVOD_", "HVDKIT_WORLD_SIZE", "HVDKIT_HOSTS", "OMP_NUM_THREADS", "MALLOC_")


def main(arguments: list[str]) -> int:
    """Run this pod's ranks; returns the exit code of the world's first failing rank."""
    options, command = parse(arguments)
    stop_when_asked()
    try:
        place, roster = meet(options)
    except NotThereInTime as error:
        error.exit_code = EXIT_RESTART_ME  # the others may still come; any other code would fail the Job for good
        raise
    make_plan = horovod_plan if options.engine == "horovod" else torchrun_plan
    plan = make_plan(options, command, place, roster)
    starter = "a rank's wrapper" if options.engine == "horovod" else "torchrun"
    total = options.workers * options.slots
    return run(PodSupervisor(plan, starter=starter, total=total, roster=roster, start_timeout=options.wait_seconds))


def parse(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Our own flags, and the ranks' command after `--`."""
    parser = argparse.ArgumentParser(prog="hvdkit.runtime.pod_rank", allow_abbrev=False)
    parser.add_argument("--workers", type=int, required=True, help="pods")
    parser.add_argument("--slots", type=int, required=True, help="ranks in a pod")
    parser.add_argument("--service", required=True, help="headless Service of the job's pods")
    parser.add_argument("--engine", choices=("horovod", "ddp"), default="horovod")
    parser.add_argument("--port", type=int, default=PORT, help="where the first pod calls the roll")
    parser.add_argument("--find", choices=("index", "addresses"), default="index", help="how a pod finds its place")
    parser.add_argument("--wait-seconds", type=float, default=600, help="how long the other pods may take")
    split = arguments.index("--") if "--" in arguments else len(arguments)
    options, command = parser.parse_args(arguments[:split]), arguments[split + 1 :]
    if not command:
        raise InputError("there is nothing to run; put the ranks' command after '--'.")
    return options, command


def meet(options: argparse.Namespace) -> tuple[Place, Roster]:
    """Find this pod's place and wait until all pods of the world are connected."""
    deadline = time.monotonic() + options.wait_seconds
    while True:
        left = max(0.0, deadline - time.monotonic())
        if options.find == "index":
            place = by_index(options.workers, options.service)
        else:
            place = by_addresses(options.workers, options.service, left)
        world = {"pods": list(place.names), "slots": options.slots, "engine": options.engine}
        left = max(0.0, deadline - time.monotonic())
        try:
            if place.number > 0:
                return place, OtherPod(place, world, options.port).join(left)
            with contextlib.closing(FirstPod(place, world, options.port)) as first:
                first.gather(left)
                return place, first.go(start_horovod_meeting if options.engine == "horovod" else free_port)
        except PlacesChanged:
            print("hvdkit: the job's pods have changed; looking again", file=sys.stderr, flush=True)


def start_horovod_meeting(address: str) -> int:
    """Horovod's Gloo ranks meet at a server that lives as long as this process."""
    return int(start_rendezvous("0.0.0.0", [address])["HOROVOD_GLOO_RENDEZVOUS_PORT"])


def free_port(address: str) -> int:
    """torchrun's first agent opens the meeting place itself."""
    with socket.create_server(("0.0.0.0", 0)) as probe:
        return probe.getsockname()[1]


def horovod_plan(options: argparse.Namespace, command: list[str], place: Place, roster: Roster) -> LocalPlan:
    """This pod's part of a Gloo launch over all pods."""
    address, port = roster.meeting
    meeting = {"HOROVOD_GLOO_RENDEZVOUS_ADDR": address, "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port)}
    if interface := interface_between_pods(roster):
        meeting["HOROVOD_GLOO_IFACE"] = interface
    total = options.workers * options.slots
    # To the wrapper and its supervisor the ranks here are all; only the command knows of the others.
    whole = ("env", f"HOROVOD_SIZE={total}", *_program(command))
    processes = [
        Process(argv=_wrapped(*whole), env=meeting | dict(process.env) | {"HOROVOD_SIZE": str(options.slots)})
        for process in render(options, command, place).processes
        if process.host == place.name
    ]
    return _plan(processes, options)


def torchrun_plan(options: argparse.Namespace, command: list[str], place: Place, roster: Roster) -> LocalPlan:
    """torchrun on this pod, which starts its ranks; the first pod's address is where they meet."""
    address, port = roster.meeting
    settings = render(options, command, place).settings
    env = {setting.name: setting.value for setting in settings if not setting.name.startswith("HOROVOD_")}
    if interface := interface_between_pods(roster):
        env["GLOO_SOCKET_IFNAME"] = os.environ.get("GLOO_SOCKET_IFNAME", interface)
    argv = [sys.executable, "-m", "torch.distributed.run", "--nnodes", options.workers, "--node-rank", place.number]
    argv += ["--nproc-per-node", options.slots, "--rdzv-backend", "static", "--max-restarts", 0]
    argv += ["--master-addr", address, "--master-port", port, "--no-python"]
    argv += [sys.executable, "-m", "hvdkit.runtime.pod_wrapper", "--size-in", "LOCAL_WORLD_SIZE", "--"]
    argv += [*_program(command)]
    return _plan([Process(argv=tuple(map(str, argv)), env=env)], options)


def render(options: argparse.Namespace, command: list[str], place: Place) -> LocalPlan:
    """The whole world as one Gloo launch over hosts."""
    spec = JobSpec(
        name=os.environ.get("HVDKIT_JOB", "job"),
        command=tuple(command),
        controller="gloo",
        workers=options.workers,
        hosts=tuple(Host(name=name, slots=options.slots) for name in place.names),
        env={name: value for name, value in os.environ.items() if name.startswith(_FOR_RANKS)},
    )
    return local.render(spec, read_machine())


def interface_between_pods(roster: Roster) -> str | None:
    """The network interface that the other pods see; left alone, Gloo takes the one of the host's own name."""
    return "lo" if roster.own_address.startswith("127.") else interface_of(roster.own_address)


def _program(command: list[str]) -> list[str]:
    return [sys.executable if command[0] == "python" else command[0], *command[1:]]


def _wrapped(*command: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "hvdkit.runtime.pod_wrapper", "--", *command)


def _plan(processes: list[Process], options: argparse.Namespace) -> LocalPlan:
    # "pod": the ranks' meeting place is there already, so that the supervisor must start none.
    return LocalPlan(
        processes=tuple(processes), settings=(), world_size=options.slots, host_count=1, controller="pod"
    )


if __name__ == "__main__":
    sys.exit(explained(lambda: main(sys.argv[1:])))
