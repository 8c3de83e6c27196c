"""The settings of Open MPI and Horovod that hvdkit chooses, each with its reason. Pure.

Figures: benchmarks/README.md says how they were measured.
"""

import re
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass

AUTOTUNE = "HOROVOD_AUTOTUNE"
TUNED = ("HOROVOD_FUSION_THRESHOLD", "HOROVOD_CYCLE_TIME")  # what Horovod searches for, unless the environment has it


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


def autotune_setting() -> Setting:
    """`--autotune`."""
    reason = f"--autotune; {' and '.join(TUNED)} are left out: Horovod tunes no value that is set"
    return Setting(name=AUTOTUNE, value="1", reason=reason)


def is_autotuned(environ: Mapping[str, str], *, asked: bool = False) -> bool:
    """Whether Horovod will tune itself: `asked` for by the flag, unless a variable of the user's says otherwise."""
    # As Horovod reads it: the number that it begins with, so that "yes" is 0.
    return re.match(r"\s*\+?0*[1-9]", environ.get(AUTOTUNE, "1" if asked else "0")) is not None


def leave_to_autotune(environ: MutableMapping[str, str]) -> None:
    """Take out of a rank's environment what hvdkit chose and Horovod shall tune; another value is the user's own."""
    if "HVDKIT_WORLD_SIZE" not in environ:
        return  # another launcher started it
    for one_machine in (True, False):
        for setting in horovod_settings(
            controller=environ.get("HOROVOD_CONTROLLER", ""), gpus=False, one_machine=one_machine, autotune=False
        ):
            if setting.name in TUNED and environ.get(setting.name) == setting.value:
                del environ[setting.name]


def memory_settings(*, gpus: bool) -> list[Setting]:
    """Variables by which the C library's allocator keeps what a step frees."""
    if gpus:
        return []  # there the tensors are in another memory, with an allocator of torch's own
    reason = "bytes; memory that a step frees is kept for the next: handed back, it is cleared by the kernel each time"
    return [
        Setting(name="MALLOC_TRIM_THRESHOLD_", value=str(1 << 40), reason=reason),
        Setting(name="MALLOC_MMAP_THRESHOLD_", value=str(32 << 20), reason=f"{reason}; the largest that it takes"),
    ]


def horovod_settings(*, controller: str, gpus: bool, one_machine: bool, autotune: bool) -> list[Setting]:
    """Environment variables of Horovod."""
    settings = [
        Setting(name="HOROVOD_CONTROLLER", value=controller, reason="--controller"),
        Setting(name="HOROVOD_CPU_OPERATIONS", value=controller, reason="tensors on the CPU go the same way"),
    ]
    if gpus or autotune:
        return settings  # Horovod's own defaults are made for GPUs, and what is set is not tuned
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
