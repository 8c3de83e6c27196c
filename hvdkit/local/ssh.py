"""The addresses of this machine that other machines can reach."""

import os
import socket

from hvdkit.errors import EnvironmentProblem


def reachable_addresses(hosts: tuple[str, ...]) -> list[str]:
    """The IPv4 addresses by which the given hosts can connect to this machine, loopback only if nothing else is."""
    addresses: list[str] = []
    for host in hosts:
        name = host.rpartition("@")[2]
        try:
            # IPv4 only: it is what Horovod's Gloo and its rendezvous listen on.
            target = socket.getaddrinfo(name, 22, socket.AF_INET, socket.SOCK_DGRAM)[0][4]
        except socket.gaierror as error:
            raise EnvironmentProblem(f"--hosts: '{name}' does not resolve: {error.strerror}.") from error
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                # Connecting a datagram socket sends nothing; it only asks the kernel which way it would go.
                probe.connect(target)
            except OSError as error:
                raise EnvironmentProblem(f"--hosts: no route to '{name}': {os.strerror(error.errno)}.") from error
            address = probe.getsockname()[0]
        if address not in addresses:
            addresses.append(address)
    # This machine's own name often points to 127.0.1.1; other machines cannot come that way.
    return [address for address in addresses if not address.startswith("127.")] or addresses
