"""Starts the processes of a plan, each so that it dies with the launcher."""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

from hvdkit.errors import EnvironmentProblem
from hvdkit.jobs.local import Process
from hvdkit.runtime.processes import die_with_parent


def start_process(process: Process, extra: dict[str, str]) -> subprocess.Popen:
    """Start mpirun, a rank's wrapper or ssh; `extra` is the environment that only the running launcher knows."""
    env = dict(process.env) | extra
    try:
        child = subprocess.Popen(
            process.argv,
            env=None if process.env_on_stdin else os.environ | env,
            stdin=subprocess.PIPE if process.env_on_stdin else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for us; we tell the ranks
            preexec_fn=die_with_parent,
        )
    except OSError as error:
        name = Path(process.argv[0]).name
        raise EnvironmentProblem(f"{name} cannot be started ({error.strerror}); install it, or mend PATH.") from error
    assert child.stdout is not None  # it is a pipe
    os.set_blocking(child.stdout.fileno(), False)
    if child.stdin is not None:
        with contextlib.suppress(BrokenPipeError):  # its own output will say why
            child.stdin.write(json.dumps(env).encode() + b"\n")
            child.stdin.close()
    return child


def start_rendezvous(listen: str, addresses: list[str]) -> dict[str, str]:
    """Start the server that Gloo ranks meet at; returns the variables that lead the ranks to it."""
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
