"""Process trees that end: parent-death signals, adoption of orphans, killing all descendants. Linux only."""

import contextlib
import ctypes
import os
import signal
import time
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
# Resolved at import: between fork and exec only the call itself may happen.
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(signum: int = signal.SIGKILL) -> None:
    """Ask the kernel to send `signum` to this process when the thread that started it ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, int(signum), 0, 0, 0)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies, so that `descendants` still finds it."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants(pid: int) -> list[int]:
    """All living processes below `pid`; zombies are left out, they are dead already."""
    children, found, queue = _children(), [], [pid]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def ask_to_stop(pid: int) -> None:
    """SIGTERM to a command, and to what a shell or profiler runs for it, but to none that a Python program started.

    That program alone knows what to do with its helpers: a DataLoader, for one, raises when a worker of it is ended.
    """
    children, asked, queue = _children(), [], [pid]
    while queue:
        asked.append(queue.pop())
        if not _is_python(asked[-1]):
            queue += children.get(asked[-1], [])
    for one in asked:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(one, signal.SIGTERM)


def _is_python(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/exe").readlink().name.startswith("python")
    except OSError:
        return False


def _children() -> dict[int, list[int]]:
    """The living processes by their parent."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError):
            # The name in parentheses may itself contain spaces and parentheses.
            state, parent = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
            if state not in "ZX":
                children.setdefault(int(parent), []).append(int(entry.name))
    return children


def end_descendants(grace: float, limit: float = 5.0) -> list[int]:
    """End every descendant of this process: SIGTERM, after `grace` seconds SIGKILL.

    Returns those that are still there after `limit` seconds: stuck in the kernel (a dead NFS server, a GPU
    driver) or somebody else's.
    """
    begin = time.monotonic()
    signum = signal.SIGTERM if grace > 0 else signal.SIGKILL
    sent: set[int] = set()
    while below := descendants(os.getpid()):
        for pid in below:
            if pid not in sent:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signum)
        sent = set(below)  # a new one gets its signal in the next round
        passed = time.monotonic() - begin
        if passed > limit:
            return below
        if signum == signal.SIGTERM and passed > grace:
            signum, sent = signal.SIGKILL, set()
        time.sleep(0.02)
    return []


def catches(pid: int, signum: int) -> bool:
    """Whether the process has a handler for the signal (else a signal like SIGQUIT would end it)."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    caught = next((line for line in status.splitlines() if line.startswith("SigCgt:")), "SigCgt: 0")
    return bool(int(caught.split()[1], 16) >> (signum - 1) & 1)
