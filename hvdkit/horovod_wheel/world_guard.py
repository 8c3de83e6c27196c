"""Goes into the Horovod wheel as horovod/common/hvdkit_guard.py, so it imports nothing of hvdkit.

A launcher that loses its ranks (two MPI libraries in one image, Open MPI 5 under mpi-operator) makes worlds of
one rank: each trains alone, and the job "succeeds". hvdkit's launchers say how many ranks on how many hosts they
started, and `hvd.init()` in any script compares that with the world that came up.
"""

import os


def check_world(basics) -> None:
    """Raise when the world of `basics` (HorovodBasics) is not the one the launcher started."""
    expected_ranks = os.environ.get("HVDKIT_WORLD_SIZE", "")
    expected_hosts = os.environ.get("HVDKIT_HOSTS", "")
    # Horovod's cross size is the number of hosts only where all hosts hold equally many ranks.
    hosts = basics.cross_size() if basics.is_homogeneous() else None
    ranks = basics.size()
    ranks_fit = _fits("HVDKIT_WORLD_SIZE", expected_ranks, ranks)
    hosts_fit = hosts is None or _fits("HVDKIT_HOSTS", expected_hosts, hosts)
    if ranks_fit and hosts_fit:
        return
    started = " on ".join(
        _count(number, noun) for number, noun in ((expected_ranks, "rank"), (expected_hosts, "host")) if number
    )
    seen = _count(ranks, "rank") + (f" on {_count(hosts, 'host')}" if hosts is not None else "")
    raise RuntimeError(
        f"the launcher started {started}, but Horovod sees {seen}: check that the launcher and Horovod use "
        "the same Open MPI (hvdkit doctor shows both)"
    )


def _fits(name: str, expected: str, actual: int) -> bool:
    """Whether `actual` is the number, or within the range such as 2-4, that the launcher wrote."""
    if not expected:
        return True
    low, _, high = expected.partition("-")
    try:
        return int(low) <= actual <= int(high or low)
    except ValueError:
        raise RuntimeError(f"{name} is '{expected}', but must be a number or a range such as 2-4") from None


def _count(number, noun: str) -> str:
    return f"{number} {noun}" if str(number) == "1" else f"{number} {noun}s"
