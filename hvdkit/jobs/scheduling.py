"""Where the pods of a job may run, and together with what. Pure data."""

from collections.abc import Mapping
from dataclasses import dataclass

from hvdkit.errors import InputError
from hvdkit.jobs.rules import choice, dns_name, label_key, label_value, labels, not_negative, positive, ruled

OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")
TAINT_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
PLACEMENTS = ("any", "spread", "pack")
GANG_SCHEDULERS = ("volcano", "coscheduling")


@dataclass(frozen=True, kw_only=True)
class Toleration:
    """A taint of nodes that the pods put up with."""

    key: str | None = ruled(label_key, None)
    """The taint's key; None stands for every taint."""

    value: str | None = ruled(label_value, None)
    """The taint's value; None for any."""

    effect: str | None = choice(TAINT_EFFECTS, None)
    """What the taint does; None for all of it."""

    seconds: int | None = ruled(not_negative, None)
    """How long to stay on a node that got a NoExecute taint; None for ever."""

    def check(self, where: str) -> None:
        """Called by the spec."""
        if self.key is None and self.value is not None:
            raise InputError(f"{where}value: a value needs a key; set {where}key.")
        if self.seconds is not None and self.effect != "NoExecute":
            raise InputError(f"{where}seconds: only NoExecute taints wait; set {where}effect to NoExecute.")


@dataclass(frozen=True, kw_only=True)
class NodeRule:
    """What a node's labels must be, or should be."""

    key: str = ruled(label_key)
    """Label of the node."""

    operator: str = choice(OPERATORS, "In")
    """How the label is compared with the values."""

    values: tuple[str, ...] = ruled(label_value, ())
    """What it is compared with."""

    weight: int | None = None
    """1 to 100 makes it a wish of this weight; None makes it a must."""

    def check(self, where: str) -> None:
        """Called by the spec."""
        wanted = {"In": "one or more", "NotIn": "one or more", "Exists": "no", "DoesNotExist": "no"}
        expected = wanted.get(self.operator, "exactly one")
        fits = {"one or more": len(self.values) >= 1, "no": not self.values, "exactly one": len(self.values) == 1}
        if not fits[expected]:
            raise InputError(f"{where}values: {self.operator} takes {expected} values, not {len(self.values)}.")
        if expected == "exactly one" and not (self.values[0].isascii() and self.values[0].isdecimal()):
            raise InputError(f"{where}values[0]: {self.operator} needs a whole number, not '{self.values[0]}'.")
        if self.weight is not None and not 1 <= self.weight <= 100:
            raise InputError(f"{where}weight: {self.weight} is not from 1 to 100.")


@dataclass(frozen=True, kw_only=True)
class Scheduling:
    """Which nodes, how workers lie on them, and who is let in first."""

    node_selector: Mapping[str, str] = ruled(labels, {})
    """Labels that a node must have."""

    affinity: tuple[NodeRule, ...] = ()
    """Further musts and wishes about nodes."""

    tolerations: tuple[Toleration, ...] = ()
    """Taints that the pods put up with; that of the GPU resource is added by itself."""

    placement: str = choice(PLACEMENTS, "any")
    """spread: workers evenly over hosts, as a must; pack: on as few hosts as possible, as a wish. With GPUs, spread
    wants a node_selector for the GPU nodes: hosts without one count as well, and stay without a worker."""

    topology_key: str = ruled(label_key, "kubernetes.io/hostname")
    """What placement counts as one host; a rack's or zone's label spreads or packs over those."""

    priority_class: str | None = ruled(dns_name, None)
    """PriorityClass of the pods."""

    scheduler: str | None = ruled(dns_name, None)
    """Scheduler of the pods; None is the cluster's own, or the gang's."""

    gang: str | None = choice(GANG_SCHEDULERS, None)
    """Start all pods together or none (PodGroup); the scheduler of this name must run in the cluster, and for mpijob
    and pytorchjob their operator with its gang scheduling switched on."""

    gang_timeout: int | None = ruled(positive, None)
    """Seconds that a gang may wait for its last pod before it gives its place back (coscheduling)."""

    queue: str | None = ruled(label_value, None)
    """Kueue LocalQueue that admits the job; with gang volcano, Volcano's queue."""

    def check(self, where: str) -> None:
        """Called by the spec."""
        if self.queue is not None:
            dns_name(f"{where}queue", self.queue)
        if self.gang_timeout is not None and self.gang != "coscheduling":
            raise InputError(f"{where}gang_timeout: it belongs to gang coscheduling; set {where}gang, or leave it out.")
        if self.gang == "volcano" and self.scheduler not in (None, "volcano"):
            raise InputError(f"{where}scheduler: gang volcano is scheduled by volcano; leave {where}scheduler out.")
