"""Runs a command in a pod, with this terminal as its own."""

import contextlib
import json
import os
import selectors
import shutil
import signal
import sys
from collections.abc import Iterator
from typing import Any

from hvdkit.cluster.api import Cluster, in_short
from hvdkit.cluster.kinds import POD
from hvdkit.errors import EnvironmentProblem

_STDIN, _STDOUT, _STDERR, _END, _RESIZE = range(5)  # the channels of one connection


def execute(cluster: Cluster, pod: str, command: list[str], *, stdin: bool) -> int:
    """Run it to its end and return its exit code; with a terminal on both sides, interactively."""
    terminal = stdin and sys.stdin.isatty() and sys.stdout.isatty()
    connection = _connect(cluster, pod, command, stdin=stdin, terminal=terminal)
    with contextlib.closing(connection), _raw(terminal):
        if terminal:
            _send_size(connection)
            signal.signal(signal.SIGWINCH, lambda *_: _send_size(connection))
        _pump(connection, stdin)
        end = connection.read_channel(_END)
    return _exit_code(end, pod)


def _exit_code(end: bytes, pod: str) -> int:
    """The exit code in the server's last word, a Status."""
    if not end:
        raise EnvironmentProblem(f"the connection to pod '{pod}' was lost before the command ended.")
    status = json.loads(end)
    if status.get("status") == "Success":
        return 0
    for cause in (status.get("details") or {}).get("causes") or []:
        if cause.get("reason") == "ExitCode":
            return int(cause["message"])
    raise EnvironmentProblem(
        f"the command could not be run in pod '{pod}': {status.get('message') or 'no reason given'}."
    )


def _connect(cluster: Cluster, pod: str, command: list[str], *, stdin: bool, terminal: bool) -> Any:
    from kubernetes import client
    from kubernetes.stream import stream

    api = client.CoreV1Api(cluster.client)
    options: dict[str, Any] = {"stdin": stdin, "stdout": True, "stderr": not terminal, "tty": terminal}
    options |= {"command": command, "binary": True, "_preload_content": False}
    try:
        return stream(api.connect_get_namespaced_pod_exec, pod, cluster.namespace, **options)
    except Exception as error:  # of the websocket library, the client, or TLS
        path = POD.path(cluster.namespace, pod)
        raise EnvironmentProblem(f"no command can be run in {path}: {in_short(error)}.") from None


def _pump(connection: Any, stdin: bool) -> None:
    """Carry bytes both ways until the command ends."""
    with selectors.DefaultSelector() as selector:
        selector.register(connection.sock.sock, selectors.EVENT_READ)
        if stdin:
            with contextlib.suppress(PermissionError):  # a plain file is always readable, and not for epoll
                selector.register(sys.stdin.buffer, selectors.EVENT_READ)
        plain_file = stdin and len(selector.get_map()) == 1
        if plain_file:
            _send_file(connection)
        while connection.is_open():
            # What TLS has read ahead, no selector sees.
            read_ahead = getattr(connection.sock.sock, "pending", lambda: 0)()
            for key, _ in selector.select(timeout=0 if read_ahead else 1.0):
                if key.fileobj is sys.stdin.buffer:
                    data = os.read(sys.stdin.fileno(), 1 << 16)
                    if data:
                        connection.write_channel(_STDIN, data)
                    else:
                        selector.unregister(sys.stdin.buffer)
                        connection.close_channel(_STDIN)
            connection.update(timeout=0)
            for channel, target in ((_STDOUT, sys.stdout.buffer), (_STDERR, sys.stderr.buffer)):
                if data := connection.read_channel(channel):
                    target.write(data)
                    target.flush()


def _send_file(connection: Any) -> None:
    while data := sys.stdin.buffer.read(1 << 16):
        connection.write_channel(_STDIN, data)
    connection.close_channel(_STDIN)


def _send_size(connection: Any) -> None:
    size = shutil.get_terminal_size()
    connection.write_channel(_RESIZE, b'{"Width":%d,"Height":%d}' % (size.columns, size.lines))


@contextlib.contextmanager
def _raw(terminal: bool) -> Iterator[None]:
    """The terminal hands every key on, also Ctrl-C."""
    if not terminal:
        yield
        return
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    tty.setraw(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
