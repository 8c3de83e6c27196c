"""Processors that claim AMX and cannot run it.

Some virtual machines show the feature, but hide the size of its tiles; torch's first product of bfloat16 matrices then
ends the process with SIGILL. Whether that is so shows only by trying, in a process that may die of it.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

LIMIT = "ONEDNN_MAX_CPU_ISA"  # read by torch's kernels when the first one of them runs in a process
_WITHOUT_AMX = "AVX512_CORE_BF16"
_PRODUCT = "import torch; one = torch.ones(64, 64, dtype=torch.bfloat16); one @ one"
_PROBE_SECONDS = 180  # a cold import of torch from a slow disk takes a minute


def is_broken(cpuinfo: Path = Path("/proc/cpuinfo"), product: str = _PRODUCT) -> bool:
    """Whether bfloat16 needs AMX here and dies of it; False where somebody has set the limit already."""
    if LIMIT in os.environ or not cpuinfo.exists() or "amx_tile" not in cpuinfo.read_text():
        return False
    try:
        done = subprocess.run([sys.executable, "-c", product], capture_output=True, timeout=_PROBE_SECONDS)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == -signal.SIGILL


def leave_out_if_broken() -> bool:
    """Let this process compute without AMX where that is broken; must come before its first model."""
    broken = is_broken()
    if broken:
        os.environ[LIMIT] = _WITHOUT_AMX
    return broken
