"""Where ranks knock: a listening socket that lets in only those who show the run's token."""

import contextlib
import hmac
import secrets
import selectors
import socket
import time
from collections.abc import Callable

from hvdkit.runtime import channel

SECONDS_FOR_THE_TOKEN = 10.0


class Door:
    """Listens, and hands each connection that showed the token to `admit`."""

    def __init__(
        self,
        listen: str,
        addresses: list[str],
        selector: selectors.BaseSelector,
        admit: Callable[[socket.socket], None],
    ) -> None:
        self._selector = selector
        self._admit = admit
        self._strangers: dict[socket.socket, tuple[bytearray, float]] = {}
        token = secrets.token_hex(channel.TOKEN_BYTES // 2)
        self._token = token.encode()
        self._listener = socket.create_server((listen, 0), backlog=1024)
        self._listener.setblocking(False)
        selector.register(self._listener, selectors.EVENT_READ, self._on_knock)
        self.address = channel.address(addresses, self._listener.getsockname()[1], token)
        """The value of HVDKIT_CHANNEL."""

    def send_away_the_silent(self) -> None:
        """Close connections that have not shown the token in time."""
        for stranger, (_, deadline) in list(self._strangers.items()):
            if time.monotonic() > deadline:
                self._send_away(stranger)

    def _on_knock(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):  # gone already, or no file descriptor left for it
            connection, _ = listener.accept()
            connection.setblocking(False)
            self._strangers[connection] = (bytearray(), time.monotonic() + SECONDS_FOR_THE_TOKEN)
            self._selector.register(connection, selectors.EVENT_READ, self._on_token)

    def _on_token(self, connection: socket.socket) -> None:
        shown, _ = self._strangers[connection]
        try:
            data = connection.recv(channel.TOKEN_BYTES - len(shown))
        except OSError:
            data = b""
        shown += data
        if not data:
            self._send_away(connection)
        elif len(shown) == channel.TOKEN_BYTES:
            if not hmac.compare_digest(shown, self._token):
                self._send_away(connection)
                return
            del self._strangers[connection]
            self._selector.unregister(connection)
            channel.notice_death(connection)
            self._admit(connection)

    def _send_away(self, connection: socket.socket) -> None:
        del self._strangers[connection]
        self._selector.unregister(connection)
        connection.close()
