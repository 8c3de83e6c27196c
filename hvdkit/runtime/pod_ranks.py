"""The ranks that run in this pod: find them, ask them to stop, and how long they may take."""

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from hvdkit.runtime.processes import ask_to_stop, descendants

WRAPPERS = (b"hvdkit.runtime.rank", b"hvdkit.runtime.pod_wrapper")


def grace_seconds() -> float:
    """How long ranks may take that were asked to stop; a bit less than what Kubernetes gives the pod (30 s)."""
    return float(os.environ.get("HVDKIT_GRACE_SECONDS", 25))


def rank_wrappers(pids: Iterable[int]) -> list[int]:
    """Those of the processes that are a rank's wrapper."""
    found = []
    for pid in pids:
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if any(words[place : place + 2] == [b"-m", wrapper] for wrapper in WRAPPERS for place in (1, 2)):
                found.append(pid)
    return found


def ask_ranks_to_stop(pids: Iterable[int]) -> int:
    """Send SIGTERM to the command of every rank among the processes, not to its wrapper; returns how many."""
    asked = 0
    for wrapper in rank_wrappers(pids):
        for pid in descendants(wrapper):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if os.getpgid(pid) == pid and _parent(pid) == wrapper:  # the command leads a process group of its own
                    ask_to_stop(pid)
                    asked += 1
    return asked


def _parent(pid: int) -> int:
    with contextlib.suppress(OSError, ValueError):
        return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    return 0
