"""The world-size guard: a job that runs as another world than the one asked for must not succeed."""

from collections.abc import Mapping

from hvdkit.errors import HvdkitError, InputError


def check_world(size: int, hosts: int, environ: Mapping[str, str]) -> None:
    """Compare the world that came up with the one the launcher announced; HvdkitError when they differ.

    `hosts` is the number of distinct hosts (in Kubernetes: pods). The launcher announces through
    HVDKIT_WORLD_SIZE and HVDKIT_HOSTS, each a number or, when elastic, a range such as "2-4".
    Started without our launcher nothing is announced, and every world is right.
    """
    problems = []
    for variable, found, noun in (("HVDKIT_WORLD_SIZE", size, "rank"), ("HVDKIT_HOSTS", hosts, "host")):
        announced = environ.get(variable)
        if not announced:
            continue
        low, high = _parse_range(variable, announced)
        if not low <= found <= high:
            wanted = str(low) if low == high else f"{low} to {high}"
            problems.append(f"{found} {noun}{'' if found == 1 else 's'} instead of {wanted} ({variable})")
    if problems:
        raise HvdkitError(
            f"this is not the world that was launched: {' and '.join(problems)}; check that every rank was "
            "started by the same launcher and that Horovod and mpirun belong to the same Open MPI."
        )


def _parse_range(variable: str, text: str) -> tuple[int, int]:
    low, dash, high = text.partition("-")
    if not (low.isdecimal() and (high.isdecimal() if dash else True)):
        raise InputError(f"{variable} is '{text}'; it must be a number or a range such as 2-4.")
    bounds = int(low), int(high if dash else low)
    if not 1 <= bounds[0] <= bounds[1]:
        raise InputError(f"{variable} is '{text}'; it must be 1 or more, and a range must not run backwards.")
    return bounds
