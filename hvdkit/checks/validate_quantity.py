"""Kubernetes' quantities: 500m, 4, 16Gi."""

import re
from decimal import Decimal, InvalidOperation

from hvdkit.checks.validate_fields import Field

FORM = re.compile(r"([-+]?[0-9]*\.?[0-9]*(?:[eE][-+]?[0-9]{1,3})?)([a-zA-Z]*)")
POWERS = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
FACTORS = {
    **{suffix: Decimal(10) ** power for suffix, power in POWERS.items()},
    **{f"{suffix}i": Decimal(1024) ** power for power, suffix in enumerate("KMGTPE", 1)},
    "": Decimal(1),
}


def quantity(field: Field) -> Decimal | None:
    """The number that a field stands for, None when it is no quantity."""
    value = field.value
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    match = FORM.fullmatch(str(value).strip())
    if not match or match[2] not in FACTORS:
        return None
    try:
        return Decimal(match[1]) * FACTORS[match[2]]
    except InvalidOperation:
        return None


def is_gpu(resource: str) -> bool:
    """nvidia.com/gpu, amd.com/gpu, nvidia.com/mig-1g.5gb, gpu.intel.com/i915."""
    domain, _, name = resource.partition("/")
    return bool(name) and (name == "gpu" or name.startswith(("gpu.", "mig-")) or domain.startswith("gpu."))


def gpus(container: Field) -> int:
    """How many GPUs a container gets: what its limits say, whatever their maker."""
    found = 0
    for resource, amount in container["resources"]["limits"].entries():
        if is_gpu(resource):
            found += int(quantity(amount) or 0)
    return found
