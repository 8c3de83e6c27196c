"""The flags that every launching command shares, each a field of the JobSpec."""

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import click

from hvdkit.config.settings import COMMAND_LINE, Setting, merge, settings_of, sources_named
from hvdkit.errors import InputError
from hvdkit.jobs.policy import CLEAN_POD_POLICIES, RESTART_POLICIES
from hvdkit.jobs.scheduling import GANG_SCHEDULERS, PLACEMENTS
from hvdkit.jobs.security import LEVELS
from hvdkit.jobs.spec import BACKENDS, CONTROLLERS, ENGINES, PULL_POLICIES
from hvdkit.jobs.volumes import NFS_MODES

_NFS = re.compile(r"(?:\[([^\]]+)\]|([^:\[\]]+)):([^:]+):([^:]+?)(?::(ro|rw))?")
_PVC = re.compile(r"([^:]+):([^:]+?)(?::(ro|rw))?")

Read = Callable[[str, tuple[str, ...]], Any]


@dataclass(frozen=True)
class Flag:
    """A flag, the path of its field, and what click shows and checks."""

    names: str
    path: str
    help: str
    type: Any = str
    metavar: str | None = None
    many: Read | None = None
    """For a flag that can be repeated: its values to the field's."""

    @property
    def option(self) -> str:
        """The long name, which errors use."""
        return next(name for name in self.names.split() if name.startswith("--"))

    @property
    def parameter(self) -> str:
        return self.option.removeprefix("--").replace("-", "_")

    def decorate(self, function: Callable) -> Callable:
        details: dict[str, Any] = {"help": self.help, "metavar": self.metavar, "default": None}
        if self.type is bool:
            details |= {"is_flag": True, "flag_value": True}
        else:
            choices = isinstance(self.type, tuple)
            details |= {"type": click.Choice(self.type) if choices else self.type, "multiple": self.many is not None}
        return click.option(*self.names.split(), self.parameter, **details)(function)


def members(option: str, values: tuple[str, ...]) -> list[str]:
    return list(values)


def pairs(option: str, values: tuple[str, ...]) -> dict[str, str]:
    """KEY=VALUE words; the last of a key wins."""
    found = {}
    for word in values:
        key, equals, value = word.partition("=")
        if not equals:
            raise InputError(f"{option}: '{word}' has no '='; write {option} KEY=VALUE.")
        found[key] = value
    return found


def nfs(option: str, values: tuple[str, ...]) -> list[dict]:
    """`server:/export:/mount[:ro]` words to volumes; an IPv6 address stands in brackets."""
    volumes = []
    for value in values:
        match = _NFS.fullmatch(value)
        if match is None:
            raise InputError(f"{option}: '{value}' is not server:/export:/mount, with :ro at the end to only read.")
        address, host, path, mount, mode = match.groups()
        source = {"nfs": {"server": address or host, "path": path}}
        volumes.append({"mount": mount, **source, "read_only": mode == "ro"})
    return volumes


def pvc(option: str, values: tuple[str, ...]) -> list[dict]:
    """`CLAIM:/mount[:ro]` words to volumes."""
    volumes = []
    for value in values:
        match = _PVC.fullmatch(value)
        if match is None:
            raise InputError(f"{option}: '{value}' is not CLAIM:/mount, with :ro at the end to only read.")
        volumes.append({"mount": match[2], "pvc": match[1], "read_only": match[3] == "ro"})
    return volumes


# In the order in which --help shows them.
FLAGS = (
    Flag("--workers -w", "workers", "Pods, or shares of this machine.  [default: 1]", int),
    Flag("--slots", "slots", "Ranks in a worker.  [default: one for each GPU, else 1]", int),
    Flag("--backend", "backend", "Where to run; auto: local without a cluster, else mpijob or indexed-job.", BACKENDS),
    Flag("--engine", "engine", "What reduces gradients.", ENGINES),
    Flag("--controller", "controller", "How Horovod's ranks find each other.  [default: mpi]", CONTROLLERS),
    Flag("--name", "name", "Name of the job.  [default: train-<5 characters>]"),
    Flag("--namespace -n", "namespace", "Namespace of the cluster.  [default: that of the current context]"),
    Flag("--image", "image", "Container image with the command and hvdkit in it."),
    Flag("--launcher-image", "launcher_image", "Image of the launcher.  [default: the same]"),
    Flag("--pull-policy", "pull_policy", "When nodes fetch the image.", PULL_POLICIES),
    Flag("--pull-secret", "pull_secrets", "Secret with the registry's password; repeatable.", many=members),
    Flag("--working-dir", "working_dir", "Folder in which the command runs.", metavar="/FOLDER"),
    Flag("--env", "env", "Variable for the ranks; repeatable.", metavar="NAME=VALUE", many=pairs),
    Flag("--threads", "threads", "CPU threads a rank.  [default: cores / ranks]", int),
    Flag("--gpus", "resources.gpus", "GPUs of a worker.", int),
    Flag("--gpu-resource", "resources.gpu_resource", "What the cluster calls its GPUs.  [default: nvidia.com/gpu]"),
    Flag("--cpus", "resources.cpus", "Processors of a worker, such as 4 or 500m."),
    Flag("--memory", "resources.memory", "Memory of a worker, such as 16Gi."),
    Flag("--shm", "shm", "Size of /dev/shm.  [default: as large as the memory]"),
    Flag(
        "--nfs",
        "volumes",
        "Mount a folder of an NFS server everywhere; repeatable.",
        metavar="SERVER:/EXPORT:/MOUNT[:ro]",
        many=nfs,
    ),
    Flag("--nfs-mode", "nfs_mode", "Mount NFS inline, or through a PV and a claim.", NFS_MODES),
    Flag("--pvc", "volumes", "Mount a claim everywhere; repeatable.", metavar="CLAIM:/MOUNT[:ro]", many=pvc),
    Flag("--min-workers", "elastic.min_workers", "Elastic: with fewer workers, training waits.", int),
    Flag("--max-workers", "elastic.max_workers", "Elastic: more workers are not used.", int),
    Flag("--launcher-as-worker", "launcher.as_worker", "Run ranks in the launcher too (mpijob).", bool),
    Flag("--queue", "scheduling.queue", "Kueue LocalQueue, or Volcano's queue with --gang volcano."),
    Flag("--gang", "scheduling.gang", "Start all pods together or none, by this scheduler.", GANG_SCHEDULERS),
    Flag("--placement", "scheduling.placement", "How workers lie on hosts.", PLACEMENTS),
    Flag(
        "--node-selector",
        "scheduling.node_selector",
        "Label that nodes must have; repeatable.",
        metavar="KEY=VALUE",
        many=pairs,
    ),
    Flag("--priority-class", "scheduling.priority_class", "PriorityClass of the pods."),
    Flag("--service-account", "service_account", "ServiceAccount of the pods."),
    Flag("--security", "security.level", "Pod Security Standard that the pods keep.  [default: restricted]", LEVELS),
    Flag("--interface", "network.interface", "Network interface that MPI, NCCL and Gloo use."),
    Flag("--restart-policy", "run.restart_policy", "What a failed pod does.", RESTART_POLICIES),
    Flag("--backoff-limit", "run.backoff_limit", "How often the world may start again.  [default: 3]", int),
    Flag("--grace", "run.grace", "Seconds that ranks asked to stop may take.  [default: 30]", int),
    Flag("--deadline", "run.deadline", "Seconds after which a job that still runs has failed.", int),
    Flag("--ttl", "run.ttl", "Seconds after its end at which the job is removed.", int),
    Flag("--clean-pods", "run.clean_pods", "Which workers go at the end.", CLEAN_POD_POLICIES),
    Flag("--suspend", "run.suspend", "Create the job without starting it.", bool),
    Flag("--independent", "independent", "Unconnected copies instead of one world (job).", bool),
    Flag("--generate-name", "generate_name", "Let the cluster finish the name, for kubectl create (job).", bool),
    Flag("--metrics-port", "metrics.port", "Serve Prometheus metrics from this port on.", int),
    Flag("--pod-monitor", "metrics.pod_monitor", "Bring a PodMonitor for the Prometheus operator.", bool),
    Flag("--label", "labels", "Label on every object; repeatable.", metavar="KEY=VALUE", many=pairs),
    Flag("--annotation", "annotations", "Annotation on every object; repeatable.", metavar="KEY=VALUE", many=pairs),
    Flag("--mpi-arg", "mpi_args", "Further words for mpirun; repeatable.", many=members),
    Flag("--timeline", "timeline", "Record Horovod's timeline in this file."),
    Flag("--autotune", "autotune", "Let Horovod tune itself while it trains.", bool),
)


def job_flags(function: Callable) -> Callable:
    """Add the flags, --profile and --config to a command; `load(flags)` reads what it is called with."""
    return job_flags_without(())(function)


def job_flags_without(left_out: Collection[str]) -> Callable[[Callable], Callable]:
    """The same for a command that decides some of them itself."""

    def decorate(function: Callable) -> Callable:
        text = "Settings; /dev/null for none.  [default: hvdkit.yaml here]"
        function = click.option("--config", metavar="FILE", help=text)(function)
        function = click.option("--profile", metavar="NAME", help="Profile of hvdkit.yaml to use.")(function)
        for flag in reversed(FLAGS):
            if flag.option not in left_out:
                function = flag.decorate(function)
        return function

    return decorate


def load(flags: dict[str, Any], command_line: tuple[str, ...] = ()) -> list[Setting]:
    """All settings: those of the flags over the environment's over the file's, and what the job is made from."""
    import os

    from hvdkit.cli.provenance import provenance
    from hvdkit.config.load import load_settings

    given = flag_settings(flags, command_line)
    settings = load_settings(given, os.environ, config=flags["config"], profile=flags["profile"])
    return merge(provenance(), settings)


def warn_of_typos() -> None:
    """Name on stderr the variables that look like a setting and are none."""
    import os

    from hvdkit.config.environment import likely_typos

    for name, near in likely_typos(os.environ).items():
        click.echo(f"hvdkit: {name} sets nothing; did you mean {near}?", err=True)


def flag_settings(flags: dict[str, Any], command_line: tuple[str, ...] = ()) -> list[Setting]:
    """The settings of the flags that were given; several flags may add to one list."""
    given: dict[str, tuple[Any, str]] = {}
    if command_line:
        given["command"] = (command_line, COMMAND_LINE)
    for flag in FLAGS:
        value = flags.get(flag.parameter)
        if value is None or value == ():
            continue
        if flag.many:
            value = flag.many(flag.option, value)
        source = flag.option
        if flag.path in given:
            before, other = given[flag.path]
            value, source = [*before, *value], f"{other} and {source}"
        given[flag.path] = (value, source)
    settings: list[Setting] = []
    for path, (data, source) in given.items():
        keys = path.split(".")
        for key in reversed(keys):
            data = {key: data}
        with sources_named([Setting(path=tuple(keys), value=None, source=source)]):
            settings += settings_of(data, source)
    return settings
