"""What a rank and its launcher say to each other: frames over one TCP connection a rank.

mpirun cannot do this: it mixes long lines of different ranks, hides a rank's exit code and kills ranks a
second after a SIGTERM. The connection also tells each side, on any host, that the other one died.
"""

import contextlib
import json
import socket
import struct
from collections.abc import Iterator

VARIABLE = "HVDKIT_CHANNEL"
TOKEN_BYTES = 32  # the first bytes of every connection; nothing is parsed before they are right

# Rank to launcher.
HELLO = b"H"  # JSON: rank, size, host, need (of cores; see cores.py)
STDOUT = b"O"
STDERR = b"E"
RAISED = b"R"  # the command raises an exception that nobody catches; its end may take a while
EXIT = b"X"  # JSON: code, signal, memory (the limit, if the kernel killed for lack of it); output may still follow

# Launcher to rank.
GO = b"G"  # JSON: cores (to stay on, if any). All ranks are there: start the command
STOP = b"T"  # please stop in good order (SIGTERM to the command)
STACKS = b"S"  # print your stacks (SIGQUIT to every Python process that listens for it)
LEAVE = b"L"  # the outcome is known: end the command if it still runs, send the last output, go

_HEADER = struct.Struct("!cI")
_LONGEST = 1 << 20


def encode(kind: bytes, payload: bytes = b"") -> bytes:
    """One frame."""
    return _HEADER.pack(kind, len(payload)) + payload


def encode_json(kind: bytes, **values: object) -> bytes:
    """One frame with a JSON object in it."""
    return encode(kind, json.dumps(values).encode())


class Decoder:
    """Cuts a stream of bytes into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the frames that are complete with `data`; ValueError for what is no frame of ours."""
        self._buffer += data
        while len(self._buffer) >= _HEADER.size:
            kind, length = _HEADER.unpack_from(self._buffer)
            if length > _LONGEST:
                raise ValueError(f"a frame of {length} bytes")
            end = _HEADER.size + length
            if len(self._buffer) < end:
                return
            payload = bytes(self._buffer[_HEADER.size : end])
            del self._buffer[:end]
            yield kind, payload


def address(hosts: list[str], port: int, token: str) -> str:
    """The value of HVDKIT_CHANNEL: where the launcher listens, and the secret that opens the door."""
    return f"{','.join(hosts)} {port} {token}"


def connect(value: str) -> socket.socket:
    """Connect to the launcher named by HVDKIT_CHANNEL and show the token; OSError when no address answers."""
    hosts, port, token = value.split()
    failure: OSError = OSError("HVDKIT_CHANNEL names no address")
    for host in hosts.split(","):
        try:
            connection = socket.create_connection((host, int(port)), timeout=20)
        except OSError as error:
            failure = error
            continue
        connection.sendall(token.encode())
        notice_death(connection)
        return connection
    raise failure


def notice_death(connection: socket.socket) -> None:
    """Let the kernel find out within seconds that the other machine is gone; by default it takes hours."""
    options = {
        socket.SO_KEEPALIVE: 1,
        socket.TCP_NODELAY: 1,
        socket.TCP_KEEPIDLE: 5,
        socket.TCP_KEEPINTVL: 5,
        socket.TCP_KEEPCNT: 3,
    }
    for option, number in options.items():
        level = socket.SOL_SOCKET if option == socket.SO_KEEPALIVE else socket.IPPROTO_TCP
        with contextlib.suppress(OSError):
            connection.setsockopt(level, option, number)
