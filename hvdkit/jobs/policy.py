"""How a job lives and ends, how its pods reach each other, and what it shows of itself. Pure data."""

import re
from dataclasses import dataclass

from hvdkit.errors import InputError
from hvdkit.jobs.rules import MAX_INT32, choice, data_key, dns_name, label_key, not_negative, port, positive, ruled

RESTART_POLICIES = ("Never", "OnFailure")
CLEAN_POD_POLICIES = ("Running", "All", "None")
BACKOFF_LIMIT = 3
START_TIMEOUT = 600

_INTERFACES = re.compile(r"[A-Za-z0-9_.-]{1,15}(,[A-Za-z0-9_.-]{1,15})*")
_POD_FIELDS = ("metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "spec.serviceAccountName")
_POD_FIELDS += ("status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs")
_POD_FIELD_WITH_KEY = re.compile(r"metadata\.(?:labels|annotations)\['([^']*)'\]")


def _interfaces(name: str, value: str) -> None:
    if not _INTERFACES.fullmatch(value):
        raise InputError(f"{name}: '{value}' is not a network interface or a list of them; write eth0 or eth0,eth1.")


def _pod_field(name: str, value: str) -> None:
    match = _POD_FIELD_WITH_KEY.fullmatch(value)
    if match:
        label_key(name, match[1])
    elif value not in _POD_FIELDS:
        known = ", ".join(_POD_FIELDS)
        raise InputError(f"{name}: '{value}' is not one of {known}, metadata.labels['…'] or metadata.annotations['…'].")


@dataclass(frozen=True, kw_only=True)
class EnvSource:
    """Where the value of an environment variable comes from; exactly one of secret, config_map and field is set."""

    secret: str | None = ruled(dns_name, None)
    """A secret of the namespace."""

    config_map: str | None = ruled(dns_name, None)
    """A config map of the namespace."""

    key: str | None = ruled(data_key, None)
    """The key in the secret or config map."""

    field: str | None = ruled(_pod_field, None)
    """A field of the pod itself, such as status.podIP."""

    optional: bool = False
    """Go on without the variable when the secret, config map or key is missing."""

    def check(self, where: str) -> None:
        """Called by the spec."""
        given = [name for name in ("secret", "config_map", "field") if getattr(self, name) is not None]
        if len(given) != 1:
            found = " and ".join(given) or "none"
            raise InputError(f"{where}secret: set one of secret, config_map and field, not {found}.")
        if self.field is None and self.key is None:
            raise InputError(f"{where}key: say which key of {given[0]} '{getattr(self, given[0])}' is meant.")
        if self.field is not None and (self.key is not None or self.optional):
            raise InputError(f"{where}field: key and optional belong to secrets and config maps; leave them out.")


@dataclass(frozen=True, kw_only=True)
class Elastic:
    """A world that may shrink and grow while it trains (mpijob, pytorchjob)."""

    min_workers: int = ruled(positive)
    """With fewer workers than this, training waits."""

    max_workers: int = ruled(positive)
    """More workers than this are not used."""

    def check(self, where: str) -> None:
        """Called by the spec."""
        if self.min_workers > self.max_workers:
            raise InputError(f"{where}min_workers: {self.min_workers} is more than max_workers, {self.max_workers}.")


@dataclass(frozen=True, kw_only=True)
class RunPolicy:
    """What happens when a pod fails, when the job ends, and how long it may take."""

    restart_policy: str | None = choice(RESTART_POLICIES, None)
    """Never: a failed pod stays to be looked at and a new one is made; OnFailure: its container starts again in
    place. None is what suits the backend."""

    backoff_limit: int = ruled(not_negative, BACKOFF_LIMIT)
    """How often the world as a whole may start again (from its checkpoint) before the job has failed; monarch's never
    does."""

    start_timeout: int = ruled(positive, START_TIMEOUT)
    """Seconds that the pods of a started job may take to meet, images and nodes included; then those that wait start
    again, which counts like a failure (all but pytorchjob; monarch fails), and whoever follows the job
    gives up. Time in a queue is not counted."""

    deadline: int | None = ruled(positive, None)
    """Seconds after which a job that still runs has failed; None waits for ever."""

    ttl: int | None = ruled(not_negative, None)
    """Seconds after its end at which the cluster removes the job (mpijob: its launcher); None keeps it."""

    clean_pods: str = choice(CLEAN_POD_POLICIES, "Running")
    """Which workers go when the job has ended: those that still run and hold GPUs, all, or none (mpijob,
    pytorchjob)."""

    suspend: bool = False
    """Create the job without starting it; `hvdkit resume` does."""

    grace: int = ruled(positive, 30)
    """Seconds that ranks asked to stop may take to save and leave."""

    def restarts(self, pods: int, restart_policy: str) -> int:
        """The `backoffLimit` under which so many pods may start again `backoff_limit` times."""
        limit = self.backoff_limit * pods
        # New pods are over when they exceed the limit; restarts in place already when they reach it, unless it is 0.
        if limit and restart_policy == "OnFailure":
            limit += 1
        return min(MAX_INT32, limit)


@dataclass(frozen=True, kw_only=True)
class Network:
    """How the pods of a job reach each other."""

    interface: str | None = ruled(_interfaces, None)
    """Network interface that MPI, NCCL and Gloo use, such as eth0; None lets them choose."""

    host_network: bool = False
    """Use the node's own network; needs security.level privileged."""

    port: int = ruled(port, 29500)
    """Port at which the ranks first meet (indexed-job, job, pytorchjob)."""

    policy: bool = True
    """Bring a NetworkPolicy that lets in the job's own pods only: where ranks meet there is no password (all
    backends but mpijob, which has SSH keys unless it is elastic)."""

    service_mesh: bool = False
    """Let Istio and Linkerd put their proxies into the pods; they break the connections of MPI and Gloo."""


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """Live metrics of the ranks."""

    port: int | None = ruled(port, None)
    """The first rank of a pod serves Prometheus metrics here, the next one port further; None serves none."""

    pod_monitor: bool = False
    """Bring a PodMonitor, by which the Prometheus operator finds the pods."""

    def check(self, where: str) -> None:
        """Called by the spec."""
        if self.pod_monitor and self.port is None:
            raise InputError(f"{where}pod_monitor: there is nothing to monitor without {where}port; set it to 9400.")
