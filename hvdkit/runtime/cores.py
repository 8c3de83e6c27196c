"""Which cores each rank stays on, where the ranks of a job need all cores of a machine.

Horovod's background thread waits for other ranks by yielding its core again and again. The kernel shares cores out to
groups of processes first (pods, and on many machines sessions), and to it such a thread is as busy as one that
computes: free to move, the one that waits in a pod takes turns with the one that computes in another, or all that wait
share one core and all that compute the other. benchmarks/README.md has the figures.
"""

import contextlib
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

BIND = "HVDKIT_BIND"  # 1: this rank may be bound to cores
BEFORE = "HVDKIT_CORES"  # how many cores a rank had before it was


@dataclass(frozen=True, kw_only=True)
class Need:
    """What one rank could use."""

    machine: str
    cores: tuple[int, ...]
    threads: int


def need_of_this_rank(environ: Mapping[str, str]) -> dict[str, Any] | None:
    """For the launcher, who alone knows which ranks share a machine; None for a rank that wants to be left alone."""
    if environ.get(BIND) != "1":
        return None
    threads = environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    return {
        "machine": environ.get("HVDKIT_NODE") or socket.gethostname(),
        "cores": sorted(os.sched_getaffinity(0)),
        "threads": int(threads) if threads.isdecimal() else 1,
    }


def assign(needs: Mapping[int, Need]) -> dict[int, list[int]]:
    """Rank → its cores. A machine that has cores to spare, also for others, is left to the kernel."""
    found: dict[int, list[int]] = {}
    for machine in {need.machine for need in needs.values()}:
        there = {rank: need for rank, need in sorted(needs.items()) if need.machine == machine}
        kinds = {need.cores for need in there.values()}
        if len(kinds) > 1:
            continue  # somebody has shared them out already, as the kubelet does for pods with whole CPUs
        (cores,) = kinds
        if sum(need.threads for need in there.values()) < len(cores):
            continue
        first = 0
        for rank, need in there.items():
            found[rank] = sorted({cores[(first + thread) % len(cores)] for thread in range(need.threads)})
            first += need.threads
    return found


def bind(cores: list[int]) -> None:
    """Keep this process, and all that it starts, on these cores; where they are ours no more, stay where we may be."""
    before = len(os.sched_getaffinity(0))
    # Somebody may have taken cores from us since we named them: slower, perhaps, but no reason to fail a job.
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, cores)
        os.environ[BEFORE] = str(before)
