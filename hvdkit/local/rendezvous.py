"""Starts the rendezvous server that Gloo ranks meet at."""

import subprocess
import sys

from hvdkit.errors import EnvironmentProblem


def start_rendezvous(listen: str, addresses: list[str]) -> dict[str, str]:
    """Start the server as a child of this process; returns the variables that lead the ranks to it."""
    server = subprocess.Popen(
        [sys.executable, "-m", "hvdkit.runtime.rendezvous", listen, "0"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert server.stdout is not None and server.stderr is not None  # both are pipes
    port = server.stdout.readline().strip()
    if not port:
        last = (server.stderr.read().strip().splitlines() or ["it said nothing"])[-1]
        raise EnvironmentProblem(
            f"controller: Horovod's Gloo rendezvous did not start ({last}); run `hvdkit horovod install`."
        )
    return {"HOROVOD_GLOO_RENDEZVOUS_ADDR": addresses[0], "HOROVOD_GLOO_RENDEZVOUS_PORT": port}
