"""What a pod of a job needs: processors, memory, GPUs, and the launcher's share. Pure data."""

from collections.abc import Mapping
from dataclasses import dataclass

from hvdkit.errors import InputError
from hvdkit.jobs import rules
from hvdkit.jobs.rules import not_negative, parse_quantity, quantities, ruled


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What one pod asks for."""

    cpus: str | None = ruled(rules.cpus, None)
    """Processors of a pod, such as 4 or 500m; None asks for none, and the pod takes what is left."""

    limit_cpus: bool = False
    """Also stop the pod at that many; needed where nodes give whole cores away, else it only slows it down."""

    memory: str | None = ruled(rules.memory, None)
    """Memory of a pod, such as 16Gi: asked for, and the limit at which the kernel ends it."""

    gpus: int = ruled(not_negative, 0)
    """GPUs of a pod."""

    gpu_resource: str = ruled(rules.device, "nvidia.com/gpu")
    """What the cluster calls its GPUs: nvidia.com/gpu, amd.com/gpu, or a MIG profile."""

    extended: Mapping[str, str] = ruled(quantities, {})
    """Further resources by name, such as rdma/hca: 1."""

    def check(self, where: str) -> None:
        """Called by the spec."""
        if self.gpu_resource in self.extended:
            raise InputError(f"{where}extended: {self.gpu_resource} are the GPUs; ask for them with {where}gpus.")

    def amounts(self) -> dict[str, dict[str, str | int]]:
        """The `resources` of a container."""
        requests: dict[str, str | int] = {}
        limits: dict[str, str | int] = {}
        if self.cpus:
            requests["cpu"] = self.cpus
            if self.limit_cpus:
                limits["cpu"] = self.cpus
        if self.memory:
            requests["memory"] = limits["memory"] = self.memory
        if self.gpus:
            # Kubernetes refuses a request that differs from the limit, so both are always said.
            requests[self.gpu_resource] = limits[self.gpu_resource] = self.gpus
        for name, amount in self.extended.items():
            requests[name] = limits[name] = amount
        return {kind: amount for kind, amount in (("requests", requests), ("limits", limits)) if amount}

    @property
    def whole_cpus(self) -> int | None:
        """Processors that threads can be counted on; None when nothing was said."""
        amount = parse_quantity(self.cpus) if self.cpus else None
        return None if amount is None else max(1, int(amount))


@dataclass(frozen=True, kw_only=True)
class Launcher:
    """The pod that starts the ranks (mpijob) or steers them (monarch); other backends have none."""

    resources: Resources | None = None
    """What it asks for; None is half a processor and memory that grows with the workers. As a worker it gets a
    worker's share instead."""

    as_worker: bool = False
    """Run ranks in the launcher too: it is then the first of the workers (mpijob)."""

    def share(self, workers: int) -> Resources:
        """What it asks for when it runs no ranks: each worker costs it an SSH connection and a part of the output."""
        return self.resources or Resources(cpus="500m", memory=f"{2048 + 16 * workers}Mi")
