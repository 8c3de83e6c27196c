"""The main program of an MPIJob's launcher pod: waits for the workers, then runs the ranks over them.

    python -m hvdkit.runtime.mpijob_launcher --slots S --workers N -- command …

Without the wait the first attempt of most jobs fails: the workers' names are not in DNS yet.
"""

import argparse
import dataclasses
import os
import re
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hvdkit.errors import EnvironmentProblem, InputError
from hvdkit.jobs import local
from hvdkit.jobs.spec import Host, JobSpec
from hvdkit.local.machine import find_mpirun, read_machine
from hvdkit.runtime import mpijob_ssh
from hvdkit.runtime.guard import check_world
from hvdkit.runtime.pod_names import addresses_of, first_label, only_ipv6, stop_when_asked, wait_until_none_is_missing
from hvdkit.runtime.pod_supervisor import PodSupervisor, run
from hvdkit.runtime.pod_termination import explained

HOSTFILE = "/etc/mpi/hostfile"
# The operator's own answers to what we say on mpirun's command line; a second hostfile would only filter ours.
_FROM_OPERATOR = ("OMPI_MCA_orte_default_hostfile", "OMPI_MCA_orte_set_default_slots", "OMPI_MCA_plm_rsh_args")
# What a user sets for the job by these names is for the ranks, wherever they run.
_FOR_RANKS = ("HOROVOD_", "NCCL_", "HVDKIT_JOB", "HVDKIT_WORLD_SIZE", "HVDKIT_HOSTS", "OMP_NUM_THREADS")


def main(arguments: list[str]) -> int:
    """Run the job of this launcher pod; returns the first failing rank's exit code."""
    options, command = parse(arguments)
    stop_when_asked()
    if options.elastic_min is not None:
        from hvdkit.runtime.mpijob_elastic import run_elastic

        return run_elastic(options, command)
    hosts = read_hostfile(options)
    check_world(sum(host.slots for host in hosts), len(hosts), os.environ)
    check_open_mpi(find_mpirun()[0])
    wait_for_workers([host.name for host in hosts], options.wait_seconds)
    ssh_config = mpijob_ssh.client_config(mpijob_ssh.new_folder())
    plan = plan_for(hosts, command, options.mpi_arg, ssh_config)
    for name in _FROM_OPERATOR:
        os.environ.pop(name, None)
    return run(PodSupervisor(plan, starter="mpirun", start_timeout=options.wait_seconds))


def parse(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Our own flags, and the ranks' command after `--`."""
    parser = argparse.ArgumentParser(prog="hvdkit.runtime.mpijob_launcher", allow_abbrev=False)
    parser.add_argument("--slots", type=int, required=True, help="ranks in a worker")
    parser.add_argument("--workers", type=int, required=True, help="worker pods")
    parser.add_argument("--wait-seconds", type=float, default=600, help="how long workers may take to answer")
    parser.add_argument("--mpi-arg", action="append", default=[], help="further words for mpirun")
    parser.add_argument("--elastic-min", type=int, help="train with as few workers as this")
    parser.add_argument("--elastic-max", type=int, help="and with as many as this")
    parser.add_argument("--launcher-as-worker", action="store_true", help="the launcher runs ranks too")
    split = arguments.index("--") if "--" in arguments else len(arguments)
    options, command = parser.parse_args(arguments[:split]), arguments[split + 1 :]
    if not command:
        raise InputError("there is nothing to run; put the ranks' command after '--'.")
    return options, command


def read_hostfile(options: argparse.Namespace) -> tuple[Host, ...]:
    """The hosts that the operator lists, each with `--slots` ranks."""
    path = Path(os.environ.get("HVDKIT_HOSTFILE", HOSTFILE))
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise EnvironmentProblem(
            f"{path} cannot be read ({error.strerror}); mpi-operator mounts it into the launcher of an MPIJob."
        ) from error
    # "host slots=2" for Open MPI, "host:2" for the other MPI libraries that the operator knows.
    names = [re.split(r"[\s:]", line.strip())[0] for line in lines if line.strip()]
    expected = options.workers + options.launcher_as_worker
    if len(names) != expected:
        raise EnvironmentProblem(
            f"{path} lists {len(names)} hosts, but the job has {expected}; was the MPIJob's number of workers changed? "
            "Render it again with --workers."
        )
    return tuple(Host(name=name, slots=options.slots) for name in names)


def check_open_mpi(mpirun: str | None) -> None:
    """Refuse an MPI that would lose the ranks."""
    if mpirun is None:
        raise EnvironmentProblem("there is no mpirun in the launcher's image; install Open MPI 4.1, or use ours.")
    said = subprocess.run([mpirun, "--version"], capture_output=True, text=True).stdout
    found = re.search(r"\(Open MPI\) ((\d+)[\d.]*)", said)
    if found is None:
        raise EnvironmentProblem(f"{mpirun} is not Open MPI's; hvdkit starts ranks with Open MPI 4.1.")
    if found[2] != "4":
        raise EnvironmentProblem(
            f"{mpirun} is Open MPI {found[1]}, which does not read the OMPI_MCA_orte_* settings of mpi-operator: "
            "all ranks would land in the launcher pod; use an image with Open MPI 4.1."
        )


def wait_for_workers(names: list[str], seconds: float) -> None:
    """Return when our own name and every worker's resolve and every worker's SSH server answers."""
    own = socket.gethostname()
    answered: set[str] = set()

    def look() -> dict[str, str]:
        missing = [name for name in dict.fromkeys([own, *names]) if name not in answered]
        problems = dict(zip(missing, pool.map(_problem_with, missing), strict=True))
        answered.update(name for name, problem in problems.items() if not problem)
        return {first_label(name): problem for name, problem in problems.items() if problem}

    with ThreadPoolExecutor(max_workers=64) as pool:
        wait_until_none_is_missing(look, seconds, "workers")


def _problem_with(name: str) -> str:
    addresses = addresses_of(name)
    if not addresses:
        return only_ipv6(name) or "its name does not resolve"
    if first_label(name) == socket.gethostname():
        return ""  # this pod: mpirun starts its ranks without SSH
    return mpijob_ssh.problem_with(addresses[0])


def plan_for(hosts: tuple[Host, ...], command: list[str], mpi_args: list[str], ssh_config: Path) -> local.LocalPlan:
    """The plan of a local launch over these hosts, with what is different in pods."""
    # As if there were GPUs: settings for CPUs are the workers' business, this pod sees none of theirs.
    machine = dataclasses.replace(read_machine(), gpus=1)
    # Every SSH session starts here, where all names were seen to resolve: no tree of daemons that start others.
    ours = {"plm_rsh_args": f"-F {ssh_config}", "plm_rsh_no_tree_spawn": "1", "orte_keep_fqdn_hostnames": "1"}
    theirs = local.mca_names(mpi_args)
    pods = [word for name, value in ours.items() if name not in theirs for word in ("--mca", name, value)]
    if machine.mpi_prefix is None and machine.mpirun is not None:
        # A worker may hold a second Open MPI, and its daemon would not understand ours.
        pods += ["--prefix", str(Path(machine.mpirun).resolve().parent.parent)]
    spec = JobSpec(
        name=os.environ.get("HVDKIT_JOB") or socket.gethostname().removesuffix("-launcher"),
        command=tuple(command),
        workers=len(hosts),
        hosts=hosts,
        env={name: value for name, value in os.environ.items() if name.startswith(_FOR_RANKS)},
        mpi_args=(*pods, *mpi_args),
    )
    plan = local.render(spec, machine)
    process = plan.processes[0]
    argv = [word if word != "hvdkit.runtime.rank" else "hvdkit.runtime.pod_wrapper" for word in process.argv]
    env = dict(process.env)
    if "OMP_NUM_THREADS" not in os.environ:
        place = argv.index("OMP_NUM_THREADS")  # these are the launcher's cores; the wrapper counts its own
        del argv[place - 1 : place + 1], env["OMP_NUM_THREADS"]
    return dataclasses.replace(plan, processes=(dataclasses.replace(process, argv=tuple(argv), env=env),))


if __name__ == "__main__":
    sys.exit(explained(lambda: main(sys.argv[1:])))
