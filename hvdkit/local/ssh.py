"""Ranks on other machines without MPI: how to reach them, and how they reach us."""

import json
import os
import shlex
import socket

from hvdkit.errors import EnvironmentProblem
from hvdkit.jobs.local import Process

# A password prompt would hang the launch: a host that needs one is an error.
SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=20")


def over_ssh(process: Process, extra: dict[str, str], folder: str) -> tuple[list[str], bytes]:
    """The ssh command that starts the process on its host, and what to write to its stdin.

    The environment goes over stdin: on a command line every user of the host could read the secret in it.
    """
    assert process.host is not None
    interpreter, *module = process.argv[: process.argv.index("--")]
    command = [interpreter, *module, "--env-from-stdin", *process.argv[process.argv.index("--") :]]
    remote = f"cd {shlex.quote(folder)} && exec {shlex.join(command)}"
    env = dict(process.env) | extra
    return [*SSH, process.host, remote], json.dumps(env).encode() + b"\n"


def reachable_addresses(hosts: tuple[str, ...]) -> list[str]:
    """The addresses of this machine by which the given hosts can connect to it."""
    addresses: list[str] = []
    for host in hosts:
        name = host.rpartition("@")[2]
        try:
            family, kind, _, _, target = socket.getaddrinfo(name, 22, type=socket.SOCK_DGRAM)[0]
        except socket.gaierror as error:
            raise EnvironmentProblem(f"--hosts: '{name}' does not resolve: {error.strerror}.") from error
        with socket.socket(family, kind) as probe:
            try:
                # Connecting a datagram socket sends nothing; it only asks the kernel which way it would go.
                probe.connect(target)
            except OSError as error:
                raise EnvironmentProblem(f"--hosts: no route to '{name}': {os.strerror(error.errno)}.") from error
            address = probe.getsockname()[0]
        if address not in addresses:
            addresses.append(address)
    return addresses
