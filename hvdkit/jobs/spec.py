"""JobSpec: the one description of a job that every backend renders.

Pure data. Each field checks itself, and the error names the field.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from hvdkit.errors import InputError

BACKENDS = ("auto", "local")
CONTROLLERS = ("mpi", "gloo")
MAX_RANKS = 100_000  # Horovod's largest published run had 27,360 ranks; beyond this a number is a typo

_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]*")


@dataclass(frozen=True, kw_only=True)
class Host:
    """A machine reached over SSH, and how many ranks it runs."""

    name: str
    """Host name or address, as `ssh` takes it."""

    slots: int = 1
    """Ranks on this machine."""

    def __post_init__(self) -> None:
        if not _HOST.fullmatch(self.name):
            raise InputError(f"hosts: '{self.name}' is not a host name; write --hosts a:4,b:4.")
        _require_positive("hosts", self.slots)


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """What to run and on how many ranks; where it runs is the backend's business."""

    name: str
    """Name of the job: a DNS label, unique among the jobs of a namespace or machine."""

    command: tuple[str, ...]
    """What every rank runs: program and arguments, no shell in between."""

    backend: str = "local"
    """Where it runs."""

    workers: int = 1
    """Pods, or shares of this machine."""

    slots: int = 1
    """Ranks in a worker."""

    controller: str = "mpi"
    """How Horovod's ranks find each other and agree on the order of operations."""

    threads: int | None = None
    """CPU threads a rank computes with; None shares the cores evenly."""

    env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables for the ranks."""

    mpi_args: tuple[str, ...] = ()
    """Further arguments for mpirun, after ours, so that they win."""

    hosts: tuple[Host, ...] = ()
    """Machines to run on over SSH; empty means this machine."""

    timeline: str | None = None
    """File for Horovod's timeline (chrome://tracing); None records none."""

    autotune: bool = False
    """Let Horovod search for cycle time and fusion threshold while it trains."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InputError(
                f"name: '{self.name}' is not a DNS label; use up to 63 of a-z, 0-9 and '-', a letter first."
            )
        if not self.command or not self.command[0]:
            raise InputError("command: there is nothing to run; put the command after '--'.")
        if self.backend not in BACKENDS:
            raise InputError(f"backend: '{self.backend}' is not one of {', '.join(BACKENDS)}.")
        if self.controller not in CONTROLLERS:
            raise InputError(f"controller: '{self.controller}' is not one of {', '.join(CONTROLLERS)}.")
        _require_positive("workers", self.workers)
        _require_positive("slots", self.slots)
        if self.threads is not None:
            _require_positive("threads", self.threads)
        if self.world_size > MAX_RANKS:
            raise InputError(
                f"workers: {self.workers} workers x {self.slots} slots are {self.world_size} ranks; "
                f"hvdkit starts at most {MAX_RANKS}."
            )
        if self.mpi_args and self.controller != "mpi":
            raise InputError("mpi_args: --mpi-arg needs --controller mpi; with gloo there is no mpirun.")
        self._check_hosts()
        for key, value in self.env.items():
            if not _VARIABLE.fullmatch(key):
                raise InputError(f"env: '{key}' is not a variable name; write --env NAME=VALUE.")
            if "\0" in value:
                raise InputError(f"env: the value of {key} contains a null character.")
        # A frozen spec must not change through the mapping that somebody else holds.
        object.__setattr__(self, "env", MappingProxyType(dict(self.env)))

    def _check_hosts(self) -> None:
        if not self.hosts:
            return
        names = [host.name for host in self.hosts]
        for name in names:
            if names.count(name) > 1:
                raise InputError(f"hosts: '{name}' is listed twice; give it all its slots once, {name}:N.")
        if self.workers != len(self.hosts):
            raise InputError(
                f"workers: {self.workers} workers, but --hosts lists {len(self.hosts)}; leave --workers out."
            )

    @property
    def world_size(self) -> int:
        """Ranks in all."""
        if self.hosts:
            return sum(host.slots for host in self.hosts)
        return self.workers * self.slots

    @property
    def host_count(self) -> int:
        """Distinct machines that the ranks must be seen on."""
        return len(self.hosts) or 1


def _require_positive(name: str, value: int) -> None:
    if value < 1:
        raise InputError(f"{name}: {value} is too few; it must be 1 or more.")
