"""How long an allreduce takes, by algorithm: the latency-bandwidth model."""

import math
from collections.abc import Callable

from hvdkit.bench.networks import Network
from hvdkit.errors import InputError

Allreduce = Callable[[float, int, Network], float]


def servers_of(gpus: int, network: Network) -> int:
    """Servers that hold so many GPUs."""
    return math.ceil(gpus / network.gpus_per_server)


def ring(size: float, gpus: int, network: Network) -> float:
    """One ring through all GPUs, server by server: 2 (n - 1) steps, of which two a server cross the network.

    Each link carries 2 (n - 1) / n of the bytes, and the slowest link sets the pace.
    """
    if gpus == 1:
        return 0.0
    servers = servers_of(gpus, network)
    steps = 2 * (gpus - 1)
    crossing = min(steps, 2 * servers) if servers > 1 else 0
    links = ([network.between] if crossing else []) + ([network.inside] if steps > crossing else [])
    return (
        network.start_seconds
        + crossing * network.between.step_seconds
        + (steps - crossing) * network.inside.step_seconds
        + 2 * (gpus - 1) / gpus * size / min(link.bytes_per_second for link in links)
    )


def tree(size: float, gpus: int, network: Network) -> float:
    """A chain within each server and a binary tree between servers, up and down, pipelined.

    Few steps, but each link carries all bytes twice.
    """
    if gpus == 1:
        return 0.0
    servers = servers_of(gpus, network)
    inside = min(gpus, network.gpus_per_server) - 1
    crossing = math.ceil(math.log2(servers))
    links = ([network.between] if crossing else []) + ([network.inside] if inside else [])
    return (
        network.start_seconds
        + 2 * (inside * network.inside.step_seconds + crossing * network.between.step_seconds)
        + 2 * size / min(link.bytes_per_second for link in links)
    )


def hierarchical(size: float, gpus: int, network: Network) -> float:
    """Reduce-scatter within the server, rings between servers for each part at once, allgather within the server."""
    if gpus == 1:
        return 0.0
    servers = servers_of(gpus, network)
    local = min(gpus, network.gpus_per_server)
    inside = 2 * (local - 1) * (network.inside.step_seconds + size / local / network.inside.bytes_per_second)
    # Every GPU has 1 / local of the bytes to send, and they share the server's cards.
    crossing = 2 * (servers - 1) * (network.between.step_seconds + size / servers / network.between.bytes_per_second)
    return network.start_seconds + inside + crossing


def best(size: float, gpus: int, network: Network) -> float:
    """What a library that chooses by size would take."""
    return min(algorithm(size, gpus, network) for algorithm in (ring, tree, hierarchical))


ALGORITHMS: dict[str, Allreduce] = {"ring": ring, "tree": tree, "hierarchical": hierarchical, "best": best}


def find_algorithm(name: str) -> Allreduce:
    """The algorithm of that name; InputError when there is none."""
    if name not in ALGORITHMS:
        raise InputError(f"--algorithm '{name}' is unknown; there are {', '.join(ALGORITHMS)}.")
    return ALGORITHMS[name]
