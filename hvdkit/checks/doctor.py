"""`hvdkit doctor`: the list of checks, and what is needed where."""

from collections.abc import Callable, Iterator

from hvdkit.checks import doctor_machine, doctor_services, doctor_training
from hvdkit.checks.doctor_finding import FAILURE, Finding

ROLES = ("launcher", "worker")

Check = Callable[[], Finding | None]

# The second part: the images whose job needs it. A launcher only starts mpirun; a worker trains, and Horovod
# came into its image as a wheel, so that it needs no compiler.
CHECKS: tuple[tuple[Check, tuple[str, ...]], ...] = (
    (doctor_machine.check_python, ("launcher", "worker")),
    (doctor_machine.check_compiler, ()),
    (doctor_training.check_torch, ("worker",)),
    (doctor_training.check_gpus, ("worker",)),
    (doctor_training.check_open_mpi, ("launcher", "worker")),
    (doctor_training.check_horovod, ("worker",)),
    (doctor_machine.check_shared_memory, ("worker",)),
    (doctor_machine.check_nfs, ()),
    (doctor_services.check_cluster, ()),
    (doctor_services.check_mpi_operator, ()),
    (doctor_services.check_training_operator, ()),
    (doctor_services.check_pushgateway, ("worker",)),
)


def examine(role: str | None = None) -> Iterator[Finding]:
    """Each finding as soon as it is known: of all checks, or of those that an image of that role needs."""
    for check, roles in CHECKS:
        if role is not None and role not in roles:
            continue
        try:
            finding = check()
        except Exception as error:  # a doctor who faints helps nobody: what broke is a finding like others
            name = check.__name__.removeprefix("check_").replace("_", " ")
            finding = Finding(name, FAILURE, f"the check itself failed: {type(error).__name__}: {error}")
        if finding is not None:
            yield finding
