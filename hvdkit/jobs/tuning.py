"""The settings of Open MPI and Horovod that hvdkit chooses, each with its reason. Pure.

Figures: benchmarks/README.md says how they were measured.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One argument or variable, and why it has this value."""

    name: str
    value: str
    reason: str


def threads_per_rank(cores: int, ranks: int) -> int:
    """Cores shared evenly, and one thread at least."""
    return max(1, cores // ranks)


def mpi_settings(*, one_machine: bool) -> list[Setting]:
    """MCA parameters for mpirun (`--mca name value`)."""
    settings = [
        Setting(
            name="mpi_yield_when_idle",
            value="1",
            reason="Horovod's background thread spins in MPI; yielding gives that time to the computation",
        ),
        Setting(
            name="pml",
            value="ob1",
            reason="plain TCP and shared memory; the other layers only cost start-up time without their network",
        ),
    ]
    if one_machine:
        settings += [
            Setting(name="btl", value="self,vader", reason="all ranks are on this machine: shared memory, no sockets"),
            Setting(name="plm", value="isolated", reason="no other machine is used, so no ssh has to be there"),
        ]
    return settings


def horovod_settings(*, controller: str, gpus: bool, one_machine: bool) -> list[Setting]:
    """Environment variables of Horovod."""
    settings = [
        Setting(name="HOROVOD_CONTROLLER", value=controller, reason="--controller"),
        Setting(name="HOROVOD_CPU_OPERATIONS", value=controller, reason="tensors on the CPU go the same way"),
    ]
    if gpus:
        return settings  # Horovod's own defaults are made for them
    if controller == "mpi":
        cycle = 5
        if one_machine:
            fusion, reason = 0, "off: through shared memory, copies to a fusion buffer cost more than small messages"
        else:
            fusion, reason = 1 << 20, "bytes; small enough to stay in the processor's cache between its copies"
        settings.append(Setting(name="HOROVOD_FUSION_THRESHOLD", value=str(fusion), reason=reason))
    else:
        cycle = 25  # Gloo pays for each cycle with wake-ups of all its sockets
    reason = "milliseconds; on CPUs each cycle takes time from the computation, and there is nothing to overlap"
    settings.append(Setting(name="HOROVOD_CYCLE_TIME", value=str(cycle), reason=reason))
    return settings
