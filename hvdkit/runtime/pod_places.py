"""Which place a pod has among the pods of its job, when no operator tells it."""

import os
import socket
import time
from dataclasses import dataclass

from hvdkit.errors import InputError
from hvdkit.runtime.pod_names import addresses_of, only_ipv6, wait_until_none_is_missing

SECONDS_UNTIL_STABLE = 1.0  # DNS may still show a pod that goes, or not yet one that comes


@dataclass(frozen=True, kw_only=True)
class Place:
    """One pod's place; the pods' ranks follow each other in this order."""

    number: int
    names: tuple[str, ...]
    """Of all pods, in order."""

    first: str
    """Where the first pod is reached: a name, or an address."""

    service: str = ""
    """The headless Service whose addresses gave the places; empty when an index did."""

    @property
    def name(self) -> str:
        """Of this pod."""
        return self.names[self.number]

    def changed(self) -> bool:
        """Whether the Service shows other pods now."""
        return bool(self.service) and tuple(addresses_of(self.service)) != self.names


def by_index(workers: int, service: str) -> Place:
    """The place of a pod of an Indexed Job: Kubernetes numbers them, and names them after the number."""
    text = os.environ.get("JOB_COMPLETION_INDEX", "")
    if not text.isdecimal() or int(text) >= workers:
        raise InputError(
            f"JOB_COMPLETION_INDEX is '{text}', but must be 0 to {workers - 1}; a Job with completionMode: Indexed "
            f"and completions: {workers} sets it."
        )
    hostname = socket.gethostname()
    job = hostname.removesuffix(f"-{text}") if hostname.endswith(f"-{text}") else os.environ.get("HVDKIT_JOB", hostname)
    names = tuple(f"{job}-{number}" for number in range(workers))
    return Place(number=int(text), names=names, first=f"{names[0]}.{service}")


def by_addresses(workers: int, service: str, seconds: float) -> Place:
    """The place of a pod among the sorted addresses behind a headless Service, as soon as all are there."""
    # In a pod /etc/hosts has its own name, with the address that the Service shows.
    own = os.environ.get("POD_IP") or (addresses_of(socket.gethostname()) or [""])[0]
    seen: tuple[str, ...] = ()
    since = time.monotonic()

    def look() -> dict[str, str]:
        nonlocal seen, since
        found = tuple(addresses_of(service))
        if found != seen:
            seen, since = found, time.monotonic()
        if len(found) < workers:
            why = (not found and only_ipv6(service)) or f"{service} has {len(found)} addresses"
            return {f"{workers - len(found)} of {workers}": why}
        if len(found) > workers:
            return {f"an end of {len(found) - workers}": f"{service} has {len(found)} addresses for {workers} pods"}
        if own not in found:
            return {own: f"{service} does not show this pod's own address"}
        return {} if time.monotonic() - since >= SECONDS_UNTIL_STABLE else {"all": "their addresses just changed"}

    wait_until_none_is_missing(look, seconds, "pods", longest_pause=0.5)
    return Place(number=seen.index(own), names=seen, first=seen[0], service=service)
