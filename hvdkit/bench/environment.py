"""What a figure depends on beside the flags: the machine that the sweep was started on."""

import os
import platform
from pathlib import Path
from typing import Any

from hvdkit.local.machine import usable_cores
from hvdkit.train.history import versions


def environment() -> dict[str, Any]:
    """Processor, cores, memory, system and versions; nothing that names the machine or its user."""
    return {
        "processor": _processor(),
        "cores": usable_cores(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "versions": versions(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
