"""Projects scaling efficiency to more GPUs: compute time, gradients, overlap, and a model of allreduce.

A step of one rank is a forward pass (a third of the computation) and a backward pass (two thirds: it computes gradients
of inputs and of weights). The backward pass makes gradients layer by layer, the last layer first. Horovod collects what
is ready in a fusion buffer and reduces it while the backward pass goes on; what is not reduced when the slowest rank
has ended its backward pass is waited for.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

from hvdkit.bench.networks import Network, scaled
from hvdkit.bench.project_allreduce import Allreduce
from hvdkit.errors import InputError

FORWARD_SHARE = 1 / 3
FUSION_BYTES = 64 << 20  # Horovod's default HOROVOD_FUSION_THRESHOLD
CYCLE_SECONDS = 0.001  # Horovod's default HOROVOD_CYCLE_TIME today
TOLERANCE = 0.2  # by which each constant may be wrong in the band; grows beyond FAR_GPUS
FAR_GPUS = 512  # the largest published run that the model was held against


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A layer, in the order in which the backward pass comes to it."""

    gradient_bytes: float
    backward_share: float
    """Of the time of the backward pass."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What one GPU does alone in a step."""

    name: str
    step_seconds: float
    """Of one GPU without any communication."""

    layers: tuple[Layer, ...]
    spread: float = 0.0
    """Standard deviation of a rank's step, relative to its mean: the slowest of many sets the pace."""

    fusion_bytes: float = FUSION_BYTES
    cycle_seconds: float = CYCLE_SECONDS

    def __post_init__(self) -> None:
        if not (self.step_seconds > 0 and math.isfinite(self.step_seconds)):
            raise InputError(f"step_seconds must be a positive number, not {self.step_seconds}.")
        if not self.layers or any(layer.gradient_bytes < 0 or layer.backward_share < 0 for layer in self.layers):
            raise InputError("layers must be given, with bytes and shares that are not negative.")
        if not 0 <= self.spread < 1:
            raise InputError(f"spread must be from 0 to 1, not {self.spread}.")

    @property
    def gradient_bytes(self) -> float:
        return sum(layer.gradient_bytes for layer in self.layers)


@dataclass(frozen=True, kw_only=True)
class Projection:
    """A step on so many GPUs."""

    gpus: int
    step_seconds: float
    compute_seconds: float
    straggling_seconds: float
    """What the slowest rank takes longer than the mean."""

    allreduce_seconds: float
    """Of all allreduces, also what the backward pass hides."""

    exposed_seconds: float
    """What of it is waited for."""

    allreduces: int
    efficiency: float
    low: float
    """Efficiency if every constant were worse by the tolerance; the band grows beyond 512 GPUs."""

    high: float


def even_layers(gradient_bytes: float, count: int = 50) -> tuple[Layer, ...]:
    """Gradients that become ready evenly over the backward pass: for a model of which only the size is known."""
    return tuple(Layer(gradient_bytes=gradient_bytes / count, backward_share=1 / count) for _ in range(count))


def slowest(gpus: int, spread: float) -> float:
    """Step of the slowest of so many ranks relative to the mean, as the expected largest of normal values (Blom)."""
    return 1 + spread * NormalDist().inv_cdf((gpus - 0.375) / (gpus + 0.25))


def reduce_gradients(
    workload: Workload, backward_seconds: float, gpus: int, network: Network, allreduce: Allreduce
) -> tuple[float, float, int]:
    """When the last gradient is reduced, counted from the beginning of the backward pass; seconds and number of
    allreduces.

    Each cycle takes what is ready, up to the size of the fusion buffer; a larger gradient goes alone.
    """
    total = sum(layer.backward_share for layer in workload.layers) or 1.0
    waiting, clock = [], 0.0
    for layer in workload.layers:
        clock += layer.backward_share / total * backward_seconds
        if layer.gradient_bytes:
            waiting.append((clock, layer.gradient_bytes))
    now, busy, count, first = 0.0, 0.0, 0, 0
    earliest = 0.0  # of the next cycle
    while first < len(waiting):
        now = max(now, waiting[first][0], earliest)
        earliest = now + workload.cycle_seconds
        last, size = first + 1, waiting[first][1]
        while last < len(waiting) and waiting[last][0] <= now and size + waiting[last][1] <= workload.fusion_bytes:
            size += waiting[last][1]
            last += 1
        first, count = last, count + 1
        seconds = allreduce(size, gpus, network)
        now, busy = now + seconds, busy + seconds
    return now, busy, count


def project(workload: Workload, gpus: int, network: Network, allreduce: Allreduce) -> Projection:
    """A step on so many GPUs, with a band."""
    middle = project_middle(workload, gpus, network, allreduce)
    tolerance = min(0.9, TOLERANCE + 0.1 * max(0.0, math.log2(gpus / FAR_GPUS)))
    ends = []
    for sign in (-1, 1):
        other = scaled(network, latency=1 - sign * tolerance, bandwidth=1 + sign * tolerance)
        ends.append(
            project_middle(replace(workload, spread=workload.spread * (1 - sign * tolerance)), gpus, other, allreduce)
        )
    # A faster network can catch the gradients in a worse moment, so neither end need be the better one.
    efficiencies = [middle.efficiency, *(end.efficiency for end in ends)]
    return replace(middle, low=min(efficiencies), high=max(efficiencies))


def project_middle(workload: Workload, gpus: int, network: Network, allreduce: Allreduce) -> Projection:
    """The same without its band."""
    if gpus < 1:
        raise InputError(f"--gpus must be 1 or more, not {gpus}.")
    compute = workload.step_seconds
    straggling = compute * (slowest(gpus, workload.spread) - 1)
    backward = (compute + straggling) * (1 - FORWARD_SHARE)
    end, busy, count = reduce_gradients(workload, backward, gpus, network, allreduce) if gpus > 1 else (0.0, 0.0, 0)
    exposed = max(0.0, end - backward)
    step = compute + straggling + exposed
    efficiency = compute / step
    return Projection(
        gpus=gpus,
        step_seconds=step,
        compute_seconds=compute,
        straggling_seconds=straggling,
        allreduce_seconds=busy,
        exposed_seconds=exposed,
        allreduces=count,
        efficiency=efficiency,
        low=efficiency,
        high=efficiency,
    )


def project_all(workload: Workload, counts: Sequence[int], network: Network, allreduce: Allreduce) -> list[Projection]:
    """One projection a number of GPUs."""
    return [project(workload, gpus, network, allreduce) for gpus in counts]
