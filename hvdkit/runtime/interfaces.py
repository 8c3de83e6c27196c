"""Which network interface has an address."""

import contextlib
import fcntl
import socket
import struct

_SIOCGIFADDR = 0x8915  # linux/sockios.h: the IPv4 address of an interface


def interface_of(address: str) -> str | None:
    """The name of the interface with this IPv4 address, such as eth0; None when there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # an interface without an IPv4 address
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                if socket.inet_ntoa(answer[20:24]) == address:
                    return name
    return None
