"""The life of a worker pod: a server through which ranks are started, and what Kubernetes says to the pod.

A SIGTERM would otherwise be for the server only, and the ranks would be killed without having saved anything.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

from hvdkit.errors import EnvironmentProblem
from hvdkit.runtime.pod_ranks import ask_ranks_to_stop, grace_seconds, rank_wrappers
from hvdkit.runtime.processes import adopt_orphans, descendants, die_with_parent, end_descendants

SECONDS_FOR_LAUNCHER = 5.0  # to tell an elastic job's worker that the whole job stops
_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGCHLD}


def serve(start: Callable[[], subprocess.Popen], what: str) -> int:
    """Run the server until the pod is asked to stop; then let the ranks save and leave."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # taken one by one with sigwait
    adopt_orphans()  # Open MPI's daemon leaves its SSH session
    server = start()
    while True:
        received = signal.sigwait(_SIGNALS)
        if received in (signal.SIGTERM, signal.SIGINT):
            _stop(server)
            return 0
        if received == signal.SIGUSR1:  # the launcher of an elastic job was asked to stop
            ask_ranks_to_stop(descendants(os.getpid()))
        _reap(server)
        if server.returncode is not None:
            end_descendants(grace=0.5)
            raise EnvironmentProblem(f"{what} ended with code {server.returncode}; it says why above.")


def start_child(argv: list[str]) -> subprocess.Popen:
    """Start the server so that it does not outlive us; its output is the pod's log."""

    def prepare() -> None:
        die_with_parent()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)

    return subprocess.Popen(argv, stdin=subprocess.DEVNULL, preexec_fn=prepare)


def _stop(server: subprocess.Popen) -> None:
    """No new ranks; ask those that run to stop; leave when they have, or when the grace period is over.

    In an elastic job that would stop all of it, because ranks stop together. There the ranks of this pod just end, and
    the others go on from their last commit; unless the launcher, stopped at the same time, asks for all to stop.
    """
    if _is_elastic() and not _launcher_asks(server):
        print("hvdkit: asked to stop; the ranks of other pods go on without this one", file=sys.stderr, flush=True)
        end_descendants(grace=0)  # a SIGTERM would be passed on to all ranks
        return
    asked = ask_ranks_to_stop(descendants(os.getpid()))
    if asked:
        print(f"hvdkit: asked to stop, as is every rank here ({asked})", file=sys.stderr, flush=True)
    deadline = time.monotonic() + grace_seconds()
    while rank_wrappers(descendants(os.getpid())) and time.monotonic() < deadline:
        signal.sigtimedwait({signal.SIGCHLD}, 0.2)
        _reap(server)
    end_descendants(grace=0.5)


def _is_elastic() -> bool:
    return "-" in os.environ.get("HVDKIT_WORLD_SIZE", "")  # a range


def _launcher_asks(server: subprocess.Popen) -> bool:
    """Whether the launcher says within a moment that the whole job is to stop."""
    deadline = time.monotonic() + min(SECONDS_FOR_LAUNCHER, grace_seconds() / 2)
    while rank_wrappers(descendants(os.getpid())) and (left := deadline - time.monotonic()) > 0:
        received = signal.sigtimedwait({signal.SIGUSR1, signal.SIGCHLD}, left)
        if received is not None and received.si_signo == signal.SIGUSR1:
            return True
        _reap(server)
    return False


def _reap(server: subprocess.Popen) -> None:
    """Take the exit status of every child that has ended: as a pod's first process we are everybody's parent."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == server.pid:
                server.returncode = os.waitstatus_to_exitcode(ended[1])
