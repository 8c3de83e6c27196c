"""The wrapper around each rank: `python -m hvdkit.runtime.rank -- command …`.

It starts the command when all ranks are there, carries its output, its exit code and the launcher's wishes
over the channel, and makes sure that nothing of the command outlives mpirun, the launcher or the wrapper.
Without a channel (the argv of `--dry-run` started by hand) only the last of these is left.
"""

import contextlib
import json
import os
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from hvdkit.runtime import channel, cores
from hvdkit.runtime.interfaces import interface_of
from hvdkit.runtime.memory import limit_in_words, oom_kills
from hvdkit.runtime.processes import adopt_orphans, ask_to_stop, catches, descendants, die_with_parent, end_descendants

SECONDS_BEFORE_KILL = 0.5  # mpirun itself kills a second after its SIGTERM: be done by then
SECONDS_TO_DRAIN = 1.0  # for output still in the pipes of a command that has ended
MOST_PENDING = 1 << 20  # bytes that wait for a slow launcher; then the command has to wait


def main(arguments: list[str]) -> int:
    """Run the command of one rank and return its exit code (128 + n when a signal ended it)."""
    if arguments[:1] == ["--env-from-stdin"]:
        # Over SSH the environment, with the channel's secret in it, must not be seen on a command line.
        os.environ.update(json.loads(sys.stdin.readline()))
        arguments = arguments[1:]
    if arguments[:1] != ["--"] or len(arguments) < 2:
        print("usage: python -m hvdkit.runtime.rank -- command …", file=sys.stderr)
        return 2
    die_with_parent(signal.SIGTERM)
    adopt_orphans()
    if _launcher_is_gone():
        return 128 + signal.SIGTERM
    connection = None
    if address := os.environ.pop(channel.VARIABLE, None):
        try:
            connection = channel.connect(address)
        except OSError as error:
            print(f"hvdkit: {socket.gethostname()} cannot reach the launcher: {error}", file=sys.stderr)
            return 3
    rank = Rank(arguments[1:], connection)
    try:
        return rank.run()
    finally:
        end_descendants(SECONDS_BEFORE_KILL)


def _launcher_is_gone() -> bool:
    # It may have died before die_with_parent took effect; then no signal will ever come.
    host, _, number = os.environ.get("HVDKIT_LAUNCHER_PID", "").rpartition(":")
    return host == socket.gethostname() and not Path(f"/proc/{number}").exists()


def place_in_world(environ: Mapping[str, str]) -> tuple[int, int]:
    """Rank and size as the launcher's environment has them: Horovod's own variables, or Open MPI's."""
    rank = environ.get("HOROVOD_RANK") or environ.get("OMPI_COMM_WORLD_RANK") or "0"
    size = environ.get("HOROVOD_SIZE") or environ.get("OMPI_COMM_WORLD_SIZE") or "1"
    return int(rank), int(size)


class Rank:
    """One rank's command and the conversation about it. One thread, one event loop."""

    def __init__(self, command: list[str], connection: socket.socket | None) -> None:
        self.command = command
        self.connection = connection
        self.child: subprocess.Popen | None = None
        self.status: int | None = None  # of the command, once it has ended
        self.told = False  # the launcher knows the status
        self.kills_before = oom_kills()
        self.leave = False
        self.pending = bytearray()  # frames that the launcher has not taken yet
        self.streams: dict[int, bytes] = {}  # open pipes of the command: file descriptor → kind of frame
        self.decoder = channel.Decoder()
        self.selector = selectors.DefaultSelector()
        self.wakeup, self._wakeup_writer = socket.socketpair()
        for end in (self.wakeup, self._wakeup_writer):
            end.setblocking(False)
        signal.set_wakeup_fd(self._wakeup_writer.fileno(), warn_on_full_buffer=False)
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(signum, lambda *_: None)
        self.selector.register(self.wakeup, selectors.EVENT_READ)
        # Where sitecustomize.py says that the command raises; a name without a file, gone when we are.
        self.raised = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        name = f"hvdkit-rank-{os.getpid()}-{secrets.token_hex(8)}"
        self.raised.bind("\0" + name)
        os.environ["HVDKIT_RAISED"] = name
        self.selector.register(self.raised, selectors.EVENT_READ)

    def run(self) -> int:
        if self.connection is None:
            self._start_command()
        else:
            self.connection.setblocking(False)
            self.selector.register(self.connection, selectors.EVENT_READ)
            rank, size = place_in_world(os.environ)
            need = cores.need_of_this_rank(os.environ)
            self._send(channel.encode_json(channel.HELLO, rank=rank, size=size, host=socket.gethostname(), need=need))
        while not self.leave:
            self._handle_events(timeout=None)
            if self.status is not None and not self.told:
                self._tell_status()
        end_descendants(SECONDS_BEFORE_KILL)
        self._drain()
        return _exit_code(self.status) if self.status is not None else 128 + signal.SIGTERM

    def _handle_events(self, timeout: float | None) -> None:
        """One round of the event loop; a handler may close the file of one that comes after it."""
        for key, events in self.selector.select(timeout):
            if key.fileobj is self.wakeup:
                self._on_signal()
            elif key.fileobj is self.raised:
                self._on_raised()
            elif key.fileobj is self.connection:
                if events & selectors.EVENT_WRITE:
                    self._flush()
                if events & selectors.EVENT_READ and self.connection is not None:
                    self._on_launcher()
            elif key.fd in self.streams:
                self._forward(key.fd)
        self._watch()

    def _watch(self) -> None:
        """Read the command's pipes only while the launcher keeps up, and write only when there is something to."""
        full = len(self.pending) > MOST_PENDING
        for descriptor in self.streams:
            watched = descriptor in self.selector.get_map()
            if full and watched:
                self.selector.unregister(descriptor)
            elif not full and not watched:
                self.selector.register(descriptor, selectors.EVENT_READ)
        if self.connection is not None:
            writing = selectors.EVENT_WRITE if self.pending else 0
            self.selector.modify(self.connection, selectors.EVENT_READ | writing)

    def _start_command(self) -> None:
        stdin = stdout = stderr = None
        if self.connection is not None:
            stdin, stdout, stderr = subprocess.DEVNULL, subprocess.PIPE, subprocess.PIPE
        command = self.command
        terminal = os.environ.pop("HVDKIT_TERMINAL", None)
        try:
            if terminal and os.environ.get("HVDKIT_DEBUG_RANK") == str(place_in_world(os.environ)[0]):
                stdin = stdout = stderr = os.open(terminal, os.O_RDWR | os.O_NOCTTY)
                command = under_pdb(command)
            self._choose_interface()
            self.child = subprocess.Popen(
                command,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,  # so that mpirun's signals and the terminal's reach only the wrapper
                preexec_fn=die_with_parent,
            )
        except OSError as error:
            self._say(f"hvdkit: cannot run '{command[0]}': {error.strerror}")
            # 127 and 126 are what a shell says for "not found" and "cannot be run".
            self.status = (127 if isinstance(error, FileNotFoundError) else 126) << 8
            return
        for stream, kind in ((self.child.stdout, channel.STDOUT), (self.child.stderr, channel.STDERR)):
            if stream is not None:
                os.set_blocking(stream.fileno(), False)
                self.streams[stream.fileno()] = kind

    def _choose_interface(self) -> None:
        # Left alone, Gloo listens where the host's own name points to, which Debian sets to 127.0.1.1.
        if os.environ.get("HOROVOD_CONTROLLER") != "gloo" or self.connection is None:
            return
        if name := interface_of(self.connection.getsockname()[0]):
            os.environ.setdefault("HOROVOD_GLOO_IFACE", name)

    def _forward(self, descriptor: int) -> None:
        try:
            data = os.read(descriptor, 1 << 16)
        except BlockingIOError:
            return
        if data:
            self._send(channel.encode(self.streams[descriptor], data))
            return
        del self.streams[descriptor]
        if descriptor in self.selector.get_map():
            self.selector.unregister(descriptor)

    def _on_launcher(self) -> None:
        assert self.connection is not None  # the caller saw it
        try:
            data = self.connection.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:  # the launcher is gone: so must we be
            self._disconnect()
            return
        for kind, payload in self.decoder.feed(data):
            if kind == channel.GO and self.child is None:
                if own := json.loads(payload or b"{}").get("cores"):  # an earlier launcher says none
                    cores.bind(own)
                self._start_command()
            elif kind == channel.STOP and self.child is not None and self.status is None:
                ask_to_stop(self.child.pid)
            elif kind == channel.STACKS:
                self._print_stacks()
            elif kind == channel.LEAVE:
                self.leave = True

    def _on_signal(self) -> None:
        received = self.wakeup.recv(4096)
        if any(signum != signal.SIGCHLD for signum in received):
            self.leave = True  # mpirun or the launcher ends us, or has died
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if self.child is not None and pid == self.child.pid:
                self.child.returncode = _exit_code(status)
                self.status = status

    def _on_raised(self) -> None:
        # Of the command itself only: a helper process that fails may be no failure of the rank.
        if self.child is not None and self.raised.recv(64) == str(self.child.pid).encode():
            self._send(channel.encode(channel.RAISED))

    def _tell_status(self) -> None:
        """Say at once how the command ended, so that the launcher learns who was first; the last output follows."""
        self.told = True
        assert self.status is not None  # the caller saw it
        ended_by = os.WTERMSIG(self.status) if os.WIFSIGNALED(self.status) else 0
        memory = limit_in_words() if ended_by == signal.SIGKILL and oom_kills() > self.kills_before else ""
        self._send(channel.encode_json(channel.EXIT, code=_exit_code(self.status), signal=ended_by, memory=memory))
        end_descendants(SECONDS_BEFORE_KILL)
        self.leave = self.connection is None

    def _drain(self) -> None:
        """Send what is still in the pipes of a command that has ended."""
        deadline = time.monotonic() + SECONDS_TO_DRAIN
        while self.connection is not None and (self.streams or self.pending):
            before = len(self.pending)
            self._handle_events(timeout=0.1)
            if self.pending and len(self.pending) < before:
                deadline = time.monotonic() + SECONDS_TO_DRAIN  # a slow launcher is still a reader
            if time.monotonic() > deadline:
                return

    def _print_stacks(self) -> None:
        listening = [pid for pid in descendants(os.getpid()) if catches(pid, signal.SIGQUIT)]
        for pid in listening:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGQUIT)
        if not listening:
            self._say("hvdkit: no Python process listens for a request for its stacks")

    def _say(self, line: str) -> None:
        if self.connection is None:
            print(line, file=sys.stderr)
        else:
            self._send(channel.encode(channel.STDERR, f"{line}\n".encode()))

    def _send(self, frame: bytes) -> None:
        if self.connection is not None:
            self.pending += frame
            self._flush()

    def _flush(self) -> None:
        try:
            while self.pending and self.connection is not None:
                del self.pending[: self.connection.send(self.pending)]
        except BlockingIOError:
            return
        except OSError:
            self._disconnect()

    def _disconnect(self) -> None:
        if self.connection is not None:
            self.selector.unregister(self.connection)
            self.connection.close()
            self.connection = None
        self.leave = True


def _exit_code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code


def under_pdb(command: list[str]) -> list[str]:
    """A Python command stops in pdb where an exception is not caught; others run as they are."""
    if not Path(command[0]).name.startswith("python") or "pdb" in command:
        return command
    script = 1  # behind the interpreter's own flags
    while script < len(command) and command[script].startswith("-") and command[script] not in ("-m", "-c"):
        script += 2 if command[script] in ("-W", "-X") else 1
    if script >= len(command) or command[script] == "-c":
        return command
    return [*command[:script], "-m", "hvdkit.runtime.debugged", *command[script:]]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
