"""JobSpec: the one description of a job that every backend renders.

Pure data. Each field checks itself, and the error names the field. What only one backend can or cannot do is checked
by that backend's renderer.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from hvdkit.errors import InputError
from hvdkit.jobs import LOCAL, MODULES, rules
from hvdkit.jobs.policy import Elastic, EnvSource, Metrics, Network, RunPolicy
from hvdkit.jobs.resources import Launcher, Resources
from hvdkit.jobs.rules import check_part, choice, parse_quantity, ruled
from hvdkit.jobs.scheduling import Scheduling
from hvdkit.jobs.security import Security
from hvdkit.jobs.volumes import NFS_MODES, Volume

BACKENDS = ("auto", *MODULES)
CONTROLLERS = ("mpi", "gloo")
ENGINES = ("horovod", "ddp")
PULL_POLICIES = ("Always", "IfNotPresent", "Never")
MAX_RANKS = 100_000  # Horovod's largest published run had 27,360 ranks; beyond this a number is a typo

_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]*")
# hvdkit and the controllers mount these themselves; another volume there would hide what ranks need.
_TAKEN_MOUNTS = ("/dev", "/dev/shm", "/etc", "/tmp")
_TAKEN_FOLDERS = ("/etc/hvdkit/", "/etc/mpi/", "/proc/", "/sys/")
_TAKEN_PORTS = (2222, 26600)  # SSH of mpijob's workers, Monarch's worker loop
_OWN_LABELS = ("app.kubernetes.io/", "hvdkit.io/", "kueue.x-k8s.io/queue-name")


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
        rules.positive("hosts", self.slots)


def _job_name(name: str, value: str) -> None:
    if not _NAME.fullmatch(value):
        raise InputError(f"{name}: '{value}' is not a DNS label; use up to 63 of a-z, 0-9 and '-', a letter first.")


def _provenance(name: str, value: Mapping[str, str]) -> None:
    for key in value:
        if "/" in key:
            raise InputError(f"{name}: '{key}' has a domain; write the name alone, hvdkit puts hvdkit.io/ before it.")
        rules.label_key(name, key)
    rules.annotations(name, value)


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """What to run, on how many ranks and with what; where it runs is the backend's business."""

    name: str = ruled(_job_name)
    """Name of the job: a DNS label, unique among the jobs of a namespace or machine."""

    command: tuple[str, ...] = ruled(rules.word)
    """What every rank runs: program and arguments, no shell in between."""

    backend: str = choice(BACKENDS, LOCAL)
    """Where it runs."""

    namespace: str | None = ruled(rules.dns_label, None)
    """Namespace of the cluster; None is that of the current context."""

    workers: int = ruled(rules.positive, 1)
    """Pods, or shares of this machine."""

    slots: int = ruled(rules.positive, 1)
    """Ranks in a worker."""

    engine: str | None = choice(ENGINES, None)
    """What reduces gradients; None is horovod, and ddp (torchrun) where the backend has no Horovod."""

    controller: str = choice(CONTROLLERS, "mpi")
    """How Horovod's ranks find each other (local); mpijob uses mpi, or gloo when elastic, the others gloo."""

    threads: int | None = ruled(rules.positive, None)
    """CPU threads a rank computes with; None shares the cores evenly."""

    elastic: Elastic | None = None
    """Let the number of workers change while it trains; None keeps it."""

    independent: bool = False
    """Run unconnected copies of the command instead of one world (job)."""

    generate_name: bool = False
    """Let the cluster add five characters to the name, for `kubectl create` of one manifest again and again (job).

    The Service and NetworkPolicy of the first time serve the later ones: kubectl says that they exist, and goes on."""

    image: str | None = ruled(rules.image, None)
    """Container image with the command and hvdkit in it."""

    launcher_image: str | None = ruled(rules.image, None)
    """Image of the launcher; None is the same."""

    pull_policy: str | None = choice(PULL_POLICIES, None)
    """When nodes fetch the image; None is Kubernetes' own rule: always for :latest, else when it is not there."""

    pull_secrets: tuple[str, ...] = ruled(rules.dns_name, ())
    """Secrets with the registry's password."""

    working_dir: str | None = ruled(rules.absolute_path, None)
    """Folder in which the command runs, also on a mounted volume; None is the image's."""

    env: Mapping[str, str] = ruled(rules.variables, {})
    """Environment variables for the ranks."""

    env_from: Mapping[str, EnvSource] = ruled(rules.variables, {})
    """Environment variables whose values lie in a secret, a config map or a field of the pod."""

    resources: Resources = field(default_factory=Resources)
    """What each worker asks for."""

    shm: str | None = ruled(rules.memory, None)
    """How much /dev/shm may hold, which data loaders and NCCL share memory through; what it holds counts as the pod's
    memory. None is all of resources.memory, and without that all of the node's."""

    launcher: Launcher = field(default_factory=Launcher)
    """The pod that starts the ranks, where the backend has one."""

    volumes: tuple[Volume, ...] = ()
    """What is mounted into every pod, the launcher included."""

    nfs_mode: str = choice(NFS_MODES, "auto")
    """How NFS is mounted: inline in the pods, or through a PV and a claim that carry mount options; auto is inline
    unless security.enforced forbids that or a volume has mount options of its own."""

    scheduling: Scheduling = field(default_factory=Scheduling)
    """Which nodes, and together with what."""

    run: RunPolicy = field(default_factory=RunPolicy)
    """How the job lives and ends."""

    network: Network = field(default_factory=Network)
    """How the pods reach each other."""

    security: Security = field(default_factory=Security)
    """What the pods may do."""

    service_account: str | None = ruled(rules.dns_name, None)
    """ServiceAccount of the pods; None is the namespace's default, without its token."""

    metrics: Metrics = field(default_factory=Metrics)
    """Live metrics of the ranks."""

    labels: Mapping[str, str] = ruled(rules.labels, {})
    """Further labels on every object of the job."""

    annotations: Mapping[str, str] = ruled(rules.annotations, {})
    """Further annotations on every object of the job."""

    provenance: Mapping[str, str] = ruled(_provenance, {})
    """What the job was made from, such as git-commit and version; written as annotations hvdkit.io/…"""

    mpi_args: tuple[str, ...] = ruled(rules.word, ())
    """Further arguments for mpirun, after ours, so that they win."""

    hosts: tuple[Host, ...] = ()
    """Machines to run on over SSH; empty means this machine (local)."""

    timeline: str | None = ruled(rules.word, None)
    """File for Horovod's timeline (chrome://tracing); None records none."""

    autotune: bool = False
    """Let Horovod search for cycle time and fusion threshold while it trains."""

    def __post_init__(self) -> None:
        check_part(self)

    def check(self, where: str) -> None:
        """What no field can say alone."""
        if not self.command or not self.command[0]:
            raise InputError("command: there is nothing to run; put the command after '--'.")
        self._check_size()
        self._check_hosts()
        if self.mpi_args and self.controller != "mpi":
            raise InputError("mpi_args: --mpi-arg needs --controller mpi; with gloo there is no mpirun.")
        for variable in self.env_from:
            if variable in self.env:
                raise InputError(f"env_from.{variable}: {variable} is in env too; give it in one place.")
        for index, name in enumerate(self.pull_secrets):
            if name in self.pull_secrets[:index]:
                raise InputError(f"pull_secrets[{index}]: '{name}' is listed twice; once is enough.")
        for key in self.labels:
            if key.startswith(_OWN_LABELS):
                raise InputError(f"labels: '{key}' is set by hvdkit; use another key.")
        self._check_volumes()
        self._check_security()

    def _check_size(self) -> None:
        most = max(self.world_size, self.elastic.max_workers * self.slots if self.elastic else 0)
        if most > MAX_RANKS:
            raise InputError(
                f"workers: {most // self.slots} workers x {self.slots} slots are {most} ranks; "
                f"hvdkit starts at most {MAX_RANKS}."
            )
        if self.elastic and not self.elastic.min_workers <= self.workers <= self.elastic.max_workers:
            bounds = f"{self.elastic.min_workers} to {self.elastic.max_workers}"
            raise InputError(f"workers: {self.workers} is outside elastic's {bounds}; start with a number in between.")
        if self.elastic and self.launcher.as_worker:
            raise InputError("launcher.as_worker: an elastic world must outlive its workers, so the launcher is none.")
        if 0 < self.resources.gpus < self.slots:
            raise InputError(
                f"slots: {self.slots} ranks in a worker of {self.resources.gpus} GPUs, but each rank needs its own; "
                "set --gpus to the slots, or fewer slots and more workers."
            )
        self._check_shm()
        self._check_metrics()

    def _check_shm(self) -> None:
        memory = self.resources.memory
        if self.shm and memory and (parse_quantity(self.shm) or 0) > (parse_quantity(memory) or 0):
            raise InputError(
                f"shm: {self.shm} is more than the pod's memory, {memory}, which it counts as; set --memory higher."
            )

    def _check_metrics(self) -> None:
        if self.metrics.port is None:
            return
        first, last = self.metrics.port, self.metrics.port + self.slots - 1
        if last > 65535:
            raise InputError(f"metrics.port: {self.slots} ranks from port {first} on end beyond 65535.")
        for taken in (self.network.port, *_TAKEN_PORTS):
            if first <= taken <= last:
                raise InputError(f"metrics.port: ports {first} to {last} hold {taken}, which the pods use already.")

    def _check_hosts(self) -> None:
        if not self.hosts:
            return
        if self.backend not in ("auto", LOCAL):
            raise InputError(f"hosts: --hosts runs over SSH and needs --backend local, not {self.backend}.")
        names = [host.name for host in self.hosts]
        for name in names:
            if names.count(name) > 1:
                raise InputError(f"hosts: '{name}' is listed twice; give it all its slots once, {name}:N.")
        if self.workers != len(self.hosts):
            raise InputError(
                f"workers: {self.workers} workers, but --hosts lists {len(self.hosts)}; leave --workers out."
            )

    def _check_volumes(self) -> None:
        seen: dict[str, int] = {}
        for index, volume in enumerate(self.volumes):
            place = "/" + "/".join(part for part in volume.mount.split("/") if part not in ("", "."))
            where = f"volumes[{index}].mount"
            if place in _TAKEN_MOUNTS or f"{place}/".startswith(_TAKEN_FOLDERS):
                raise InputError(f"{where}: '{volume.mount}' is needed by the system; use another folder.")
            if place in seen:
                raise InputError(f"{where}: '{volume.mount}' is taken by volumes[{seen[place]}] already.")
            seen[place] = index
            if volume.nfs is not None and volume.nfs.own_options and self.nfs_mode == "inline":
                raise InputError(
                    f"volumes[{index}].nfs.mount_options: an inline NFS volume has none; leave them out, or use "
                    "--nfs-mode pv."
                )

    def _check_security(self) -> None:
        if self.network.host_network:
            self.security.require("privileged", "network.host_network", "the node's network", "leave it out")
        for index, volume in enumerate(self.volumes):
            if volume.host_path is not None:
                where = f"volumes[{index}].host_path"
                self.security.require("privileged", where, "a hostPath volume", "use a PVC, --pvc CLAIM:/mount")
            if volume.nfs is not None and self.nfs_mode == "inline" and self.security.enforced == "restricted":
                raise InputError(
                    f"volumes[{index}].nfs: the namespace enforces the Pod Security Standard 'restricted', which "
                    "forbids inline NFS; use --nfs-mode pv, or a claim that exists already with --pvc CLAIM:/mount."
                )

    @property
    def world_size(self) -> int:
        """Ranks in all."""
        if self.hosts:
            return sum(host.slots for host in self.hosts)
        return self.workers * self.slots

    @property
    def host_count(self) -> int:
        """Distinct machines (on a cluster: pods) that the ranks must be seen on."""
        if self.backend in ("auto", LOCAL):
            return len(self.hosts) or 1
        return self.workers
