"""The roll call of pods that train as one world without an operator.

The first pod listens, the others join it and stay connected. So a world starts when all its pods are there, and each
of them learns at once that another one failed, has gone, was asked to stop, or came back as somebody new.
"""

import contextlib
import json
import selectors
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from hvdkit.runtime import channel
from hvdkit.runtime.pod_names import addresses_of, in_words, only_ipv6, wait_until_none_is_missing
from hvdkit.runtime.pod_places import Place

# A pod to the first one.
JOIN = b"J"  # JSON: place, and what it thinks the world is
# The first pod to the others.
WAITING = b"W"  # JSON: for whom
REFUSED = b"N"  # JSON: why; a later try may succeed
GO = b"G"  # JSON: port of the ranks' meeting place
# Both ways.
STOP = b"T"  # this pod was asked to stop: please all of you
# JSON: exit code, reason, and whether the world is broken or was left in good order. Closing the connection without
# it means that the pod has gone.
END = b"X"

SECONDS_BETWEEN_LOOKS = 2.0


class PlacesChanged(Exception):
    """The Service shows other pods than those that this world was to be made of."""


@dataclass(eq=False)
class Peer:
    """Another pod, at the other end of a connection."""

    connection: socket.socket
    name: str = ""
    decoder: channel.Decoder = field(default_factory=channel.Decoder)
    ended: bool = False
    early: list[tuple[bytes, dict]] = field(default_factory=list)
    """What it said together with GO: the ranks of a quick command may end before ours have begun."""

    def frames(self) -> list[tuple[bytes, dict]] | None:
        """What has arrived; None when the connection is closed or talks nonsense."""
        try:
            data = self.connection.recv(1 << 16)
            parsed = [(kind, dict(json.loads(payload))) for kind, payload in self.decoder.feed(data)]
        except BlockingIOError:
            return []
        except (OSError, ValueError, TypeError):
            return None
        return parsed if data else None

    def tell(self, kind: bytes, **values: object) -> None:
        with contextlib.suppress(OSError):  # gone already; its absence is noticed elsewhere
            self.connection.send(channel.encode_json(kind, **values))


class Roster:
    """This pod's connections to the others, once the world is complete."""

    def __init__(self, peers: list[Peer], meeting: tuple[str, int], own_address: str) -> None:
        self.peers = peers
        self.meeting = meeting
        """Address of the first pod, and the port where the ranks meet."""

        self.own_address = own_address
        """By which the other pods see this one."""

    def tell(self, kind: bytes, **values: object) -> None:
        """Say something to every pod that is connected."""
        for peer in self.peers:
            peer.tell(kind, **values)

    def watch(
        self,
        selector: selectors.BaseSelector,
        on_stop: Callable[[], None],
        on_end: Callable[[int, str, bool], None],
        on_gone: Callable[[str], None],
    ) -> None:
        """Register with an event loop that calls `key.data(key.fileobj)`."""

        def handle(peer: Peer) -> None:
            frames = peer.frames()
            if frames is None:
                selector.unregister(peer.connection)
                self.peers.remove(peer)
                peer.connection.close()
                if not peer.ended:
                    on_gone(peer.name)
                return
            listen(peer, frames)

        def listen(peer: Peer, frames: list[tuple[bytes, dict]]) -> None:
            for kind, values in frames:
                if kind == STOP:
                    on_stop()
                elif kind == END:
                    peer.ended = True
                    on_end(values["code"], values["reason"], values["broken"])

        for peer in self.peers:
            selector.register(peer.connection, selectors.EVENT_READ, lambda _, peer=peer: handle(peer))
            listen(peer, peer.early)


class FirstPod:
    """Listens, and calls the roll until every place is taken."""

    def __init__(self, place: Place, world: dict, port: int) -> None:
        self.place, self.world = place, world
        self.guests: dict[int, Peer] = {}
        self.strangers: list[Peer] = []
        self.selector = selectors.DefaultSelector()
        self.listener = socket.create_server(("0.0.0.0", port), backlog=1024)
        self.listener.setblocking(False)
        self.selector.register(self.listener, selectors.EVENT_READ)
        self._next_look = 0.0

    def gather(self, seconds: float) -> None:
        """Return when all pods have joined; PlacesChanged when they turn out to be others."""
        wait_until_none_is_missing(self._look, seconds, "pods", longest_pause=0.0)

    def go(self, start_meeting: Callable[[str], int]) -> Roster:
        """The world is complete: start the ranks' meeting place and tell all pods its port."""
        peers = list(self.guests.values())
        own = peers[0].connection.getsockname()[0] if peers else "127.0.0.1"
        port = start_meeting(own)
        self.guests.clear()  # they are the roster's now
        self.close()
        for peer in peers:
            peer.tell(GO, port=port)
        return Roster(peers, (own, port), own)

    def close(self) -> None:
        """Stop listening. A pod that comes later is turned away by the kernel, and tries again."""
        self.selector.close()
        self.listener.close()
        for peer in (*self.strangers, *self.guests.values()):
            peer.connection.close()

    def _look(self) -> dict[str, str]:
        for key, _ in self.selector.select(timeout=0.2):
            if key.fileobj is self.listener:
                self._accept()
            else:
                self._read(key.data)
        missing = {
            name: "has not joined"
            for number, name in enumerate(self.place.names)
            if number not in self.guests and number != self.place.number
        }
        if missing and time.monotonic() > self._next_look:
            self._next_look = time.monotonic() + SECONDS_BETWEEN_LOOKS
            if self.place.changed():
                raise PlacesChanged
            for guest in self.guests.values():
                guest.tell(WAITING, names=in_words(dict.fromkeys(missing, "")))
        return missing

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            connection, _ = self.listener.accept()
            connection.setblocking(False)
            channel.notice_death(connection)
            self.strangers.append(Peer(connection))
            self.selector.register(connection, selectors.EVENT_READ, self.strangers[-1])

    def _read(self, peer: Peer) -> None:
        frames = peer.frames()
        if frames is None:
            self._forget(peer)
            return
        for kind, values in frames:
            if kind == JOIN and peer in self.strangers:
                self._join(peer, values)

    def _join(self, peer: Peer, values: dict) -> None:
        number = values.get("place")
        if values.get("world") != self.world or not isinstance(number, int) or not 0 < number < len(self.place.names):
            peer.tell(REFUSED, reason=f"{self.place.name} is part of another world: {json.dumps(self.world)}")
            self._forget(peer)
            return
        if number in self.guests:  # restarted, and its old connection has not broken yet
            self._forget(self.guests[number])
        peer.name = self.place.names[number]
        self.strangers.remove(peer)
        self.guests[number] = peer

    def _forget(self, peer: Peer) -> None:
        if peer not in self.strangers and peer not in self.guests.values():
            return  # it broke in the same moment as its successor took its place
        if peer in self.strangers:
            self.strangers.remove(peer)
        self.guests = {number: guest for number, guest in self.guests.items() if guest is not peer}
        self.selector.unregister(peer.connection)
        peer.connection.close()


class OtherPod:
    """Joins the first pod and waits for the others."""

    def __init__(self, place: Place, world: dict, port: int) -> None:
        self.place, self.world, self.port = place, world, port
        self.peer: Peer | None = None
        self.problem = ""
        self.addresses = ("", "")
        """Of the first pod and of this one; a connection that has ended does not tell them any more."""

        self.meeting_port: int | None = None
        self._next_look = 0.0

    def join(self, seconds: float) -> Roster:
        """Return when the first pod says that all are there; PlacesChanged when they turn out to be others."""
        wait_until_none_is_missing(self._look, seconds, "pods", longest_pause=0.2)
        assert self.peer is not None and self.meeting_port is not None  # nobody is missing
        first, own = self.addresses
        return Roster([self.peer], (first, self.meeting_port), own)

    def _look(self) -> dict[str, str]:
        if time.monotonic() > self._next_look:
            self._next_look = time.monotonic() + SECONDS_BETWEEN_LOOKS
            if self.place.changed():
                raise PlacesChanged
        if self.peer is None:
            self._connect()
        elif (frames := self.peer.frames()) is None:
            self._disconnect("it was there, and has gone")
        else:
            for kind, values in frames:
                self._on_frame(kind, values)
        return {} if self.meeting_port is not None else {self.place.names[0]: self.problem}

    def _connect(self) -> None:
        addresses = addresses_of(self.place.first)
        if not addresses:
            self.problem = only_ipv6(self.place.first) or f"its name {self.place.first} does not resolve"
            return
        try:
            connection = socket.create_connection((addresses[0], self.port), timeout=3)
        except OSError as error:
            self.problem = f"port {self.port} at {addresses[0]}: {error.strerror or error}"
            return
        connection.setblocking(False)
        channel.notice_death(connection)
        self.addresses = (connection.getpeername()[0], connection.getsockname()[0])
        self.peer = Peer(connection, name=self.place.names[0])
        self.peer.tell(JOIN, place=self.place.number, world=self.world)
        self.problem = "it has not answered yet"

    def _on_frame(self, kind: bytes, values: dict) -> None:
        assert self.peer is not None  # who has said it
        if self.meeting_port is not None:
            self.peer.early.append((kind, values))
        elif kind == GO:
            self.meeting_port = values["port"]
        elif kind == WAITING:
            self.problem = f"it waits for {values['names']}"
        elif kind == REFUSED:
            self._disconnect(values["reason"])

    def _disconnect(self, problem: str) -> None:
        assert self.peer is not None  # the caller has it
        self.peer.connection.close()
        self.peer, self.problem = None, problem
