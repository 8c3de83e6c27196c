"""A session with an NFS 4.1 server (RFC 8881): XDR, RPC over TCP, and calls that outlast connection and server."""

import socket
import struct
import time
from collections.abc import Callable
from typing import Any, NamedTuple

PORT = 2049
LARGEST = 1 << 20  # bytes of data in one call
_ROOM = 1 << 16  # for what surrounds the data
_PATIENCE = 10.0  # seconds for an answer; then the connection counts as broken and the call is sent again
_PAUSE = 0.5

_EXCHANGE_ID, _CREATE_SESSION, _SEQUENCE, _RECLAIM_COMPLETE = 42, 43, 53, 58
_DELAY, _GRACE = 10008, 10013
_EXPIRED, _STALE_CLIENT, _BAD_SESSION, _BAD_SLOT = 10011, 10022, 10052, 10053
_COMPLETE_ALREADY, _NOT_BOUND, _MISORDERED, _UNCACHED, _DEAD_SESSION = 10054, 10055, 10063, 10068, 10078
_LOST = {_EXPIRED, _STALE_CLIENT, _BAD_SESSION, _BAD_SLOT, _NOT_BOUND, _MISORDERED, _DEAD_SESSION}


class NfsError(Exception):
    """The server says no, with a number of RFC 8881."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the NFS server answers with error {status}")
        self.status = status


class Refused(ConnectionError):
    """Whoever is there does not speak NFS 4 with us."""


class Reader:
    """Takes XDR apart."""

    def __init__(self, data: bytes | memoryview) -> None:
        self._data, self._at = memoryview(data), 0

    def take(self, form: str) -> tuple[int, ...]:
        """Numbers: I has 4 bytes, Q has 8, q may be negative."""
        values = struct.unpack_from(f">{form}", self._data, self._at)
        self._at += struct.calcsize(f">{form}")
        return values

    def number(self) -> int:
        return self.take("I")[0]

    def fixed(self, size: int) -> memoryview:
        found = self._data[self._at : self._at + size]
        self._at += size + -size % 4
        return found

    def opaque(self) -> memoryview:
        return self.fixed(self.number())

    def bits(self) -> set[int]:
        """A bitmap."""
        words = [self.number() for _ in range(self.number())]
        return {32 * place + bit for place, word in enumerate(words) for bit in range(32) if word >> bit & 1}


def numbers(*values: int) -> bytes:
    return struct.pack(f">{len(values)}I", *values)


def longs(*values: int) -> bytes:
    return struct.pack(f">{len(values)}Q", *values)


def opaque(content: bytes | memoryview) -> bytes:
    return b"".join((numbers(len(content)), content, bytes(-len(content) % 4)))


def bitmap(bits: set[int]) -> bytes:
    words = [0] * (max(bits, default=-1) // 32 + 1)
    for bit in bits:
        words[bit // 32] |= 1 << bit % 32
    return numbers(len(words), *words)


class Operation(NamedTuple):
    """One step of a compound call: its number, its arguments, and how its result is read."""

    number: int
    arguments: bytes = b""
    result: Callable[[Reader], Any] = lambda _reader: None


class Session:
    """One slot of one session, so that calls are done one after the other."""

    def __init__(self, server: str, owner: bytes, verifier: bytes) -> None:
        """Owner and verifier tell the server who we are, also after it was restarted."""
        self.server, self.owner, self.verifier = server, owner, verifier
        self._socket: socket.socket | None = None
        self._session: bytes | None = None
        self._sequence = 1
        self._call_number = 0

    def open(self) -> None:
        """Find the server; OSError when it is not there, which is the one time that we do not wait for it."""
        client, sequence = self._compound((0, 0), Operation(_EXCHANGE_ID, self._identity(), _read_client))[0]
        channel = numbers(0, LARGEST + _ROOM, LARGEST + _ROOM, _ROOM, 16, 1, 0)
        arguments = longs(client) + numbers(sequence, 0) + channel + channel + numbers(0, 1, 0)
        made = self._compound((0, 0), Operation(_CREATE_SESSION, arguments, lambda found: bytes(found.fixed(16))))
        self._session, self._sequence = made[0], 1
        try:  # we hold no open files that a restarted server would have to give back first
            self._compound((0, 0), self._place(kept=True), Operation(_RECLAIM_COMPLETE, numbers(0)))
        except (NfsError, OSError) as error:
            if not (isinstance(error, NfsError) and error.status == _COMPLETE_ALREADY):
                self._session = None  # half open
                raise

    def call(self, user: tuple[int, int], *operations: Operation, kept: bool = False) -> list[Any]:
        """The results of the operations, whenever that is; `kept`: must not be done twice if it is sent twice.

        Broken off, the call goes out again with the same number, and the server that knows the number does nothing but
        answer. A server that was restarted in between knows none: then it may be done twice, as with every NFS client.
        """
        while True:
            try:
                if self._session is None:
                    self.open()
                return self._compound(user, self._place(kept), *operations)[1:]
            except OSError:
                self._disconnect()
            except NfsError as error:
                if error.status in _LOST:
                    self._session = None
                elif error.status == _UNCACHED:  # done, but the answer is lost: the next number asks anew
                    self._sequence += 1
                    continue
                elif error.status not in (_DELAY, _GRACE):
                    raise
            time.sleep(_PAUSE)

    def _place(self, kept: bool) -> Operation:
        def accepted(answer: Reader) -> None:
            answer.fixed(16)
            answer.take("5I")
            self._sequence += 1

        assert self._session is not None
        return Operation(_SEQUENCE, self._session + numbers(self._sequence, 0, 0, kept), accepted)

    def _identity(self) -> bytes:
        return self.verifier + opaque(self.owner) + numbers(0, 0, 0)

    def _compound(self, user: tuple[int, int], *operations: Operation) -> list[Any]:
        body = [opaque(b""), numbers(1, len(operations))]
        for operation in operations:
            body += [numbers(operation.number), operation.arguments]
        answer = self._exchange(user, b"".join(body))
        status = answer.number()
        answer.opaque()
        results = []
        for _, operation in zip(range(answer.number()), operations, strict=False):
            _, status = answer.take("2I")
            if status:
                break
            results.append(operation.result(answer))
        if status:
            raise NfsError(status)
        return results

    def _exchange(self, user: tuple[int, int], body: bytes) -> Reader:
        """One remote procedure call (RFC 5531)."""
        if self._socket is None:
            self._socket = socket.create_connection((self.server, PORT), timeout=_PATIENCE)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._call_number += 1
        who = numbers(0) + opaque(b"hvdkit") + numbers(*user, 0)
        call = numbers(self._call_number, 0, 2, 100003, 4, 1, 1) + opaque(who) + numbers(0, 0) + body
        self._socket.sendall(numbers(1 << 31 | len(call)) + call)
        while True:
            answer = Reader(self._receive())
            number, _, denied = answer.take("3I")
            if number != self._call_number:
                continue
            if denied:
                raise Refused(f"{self.server} denies the call")
            answer.number()
            answer.opaque()
            if code := answer.number():
                raise Refused(f"{self.server} does not serve NFS 4 (RPC status {code})")
            return answer

    def _receive(self) -> bytes:
        record = b""
        while True:
            (mark,) = struct.unpack(">I", self._bytes(4))
            record += self._bytes(mark & 0x7FFFFFFF)
            if mark >> 31:
                return record

    def _bytes(self, count: int) -> bytes:
        assert self._socket is not None
        found = bytearray(count)
        rest = memoryview(found)
        while rest:
            size = self._socket.recv_into(rest)
            if not size:
                raise ConnectionResetError
            rest = rest[size:]
        return bytes(found)

    def _disconnect(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None


def _read_client(answer: Reader) -> tuple[int, int]:
    client, sequence, _flags, _protection = answer.take("QIII")
    answer.take("Q")  # who the server is, and what it is made of
    answer.opaque()
    answer.opaque()
    for _ in range(answer.number()):
        answer.opaque()
        answer.opaque()
        answer.take("qI")
    return client, sequence
