"""The wrapper around each rank: `python -m hvdkit.runtime.rank -- command …`.

It starts the command when all ranks are there, carries its output, its exit code and the launcher's wishes
over the channel, and makes sure that nothing of the command outlives mpirun, the launcher or the wrapper.
Without a channel (the argv of `--dry-run` started by hand) only the last of these is left.
"""

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from hvdkit.runtime import channel
from hvdkit.runtime.processes import (
    adopt_orphans,
    catches,
    descendants,
    die_with_parent,
    signal_descendants,
)

SECONDS_BEFORE_KILL = 0.5  # mpirun itself kills a second after its SIGTERM: be done by then
SECONDS_TO_DRAIN = 1.0  # output still in the pipes of a command that has ended


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
    try:
        return _Rank(arguments[1:]).run()
    except OSError as error:
        print(f"hvdkit: the launcher cannot be reached from {socket.gethostname()}: {error}", file=sys.stderr)
        return 3


def _launcher_is_gone() -> bool:
    # It may have died before die_with_parent took effect; then no signal will ever come.
    pid = os.environ.get("HVDKIT_LAUNCHER_PID", "")
    host, _, number = pid.rpartition(":")
    return host == socket.gethostname() and not Path(f"/proc/{number}").exists()


def rank_from(environ: dict[str, str] | os._Environ) -> int:
    """The rank that the launcher's environment gives this process: Horovod's own variable, or Open MPI's."""
    return int(environ.get("HOROVOD_RANK") or environ.get("OMPI_COMM_WORLD_RANK") or 0)


class _Rank:
    def __init__(self, command: list[str]) -> None:
        self.command = command
        self.rank = rank_from(os.environ)
        self.child: subprocess.Popen | None = None
        self.status: int | None = None  # of the command, once it has ended
        self.leave = False
        self.selector = selectors.DefaultSelector()
        self.decoder = channel.Decoder()
        self.socket: socket.socket | None = None
        wakeup_read, wakeup_write = socket.socketpair()
        wakeup_read.setblocking(False)
        wakeup_write.setblocking(False)
        signal.set_wakeup_fd(wakeup_write.fileno(), warn_on_full_buffer=False)
        self._wakeup = (wakeup_read, wakeup_write)
        self.selector.register(wakeup_read, selectors.EVENT_READ, self._on_signal)
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(signum, lambda *_: None)

    def run(self) -> int:
        address = os.environ.pop(channel.VARIABLE, None)
        if address:
            self.socket = channel.connect(address, self.rank)
            self.selector.register(self.socket, selectors.EVENT_READ, self._on_launcher)
        else:
            self._start_command()
        while not self.leave:
            for key, _ in self.selector.select():
                key.data(key.fileobj)
            if self.status is not None and self.socket is None:
                self.leave = True
        self._end_descendants()
        return _exit_code(self.status) if self.status is not None else 128 + signal.SIGTERM

    def _start_command(self) -> None:
        piped = self.socket is not None
        stdin = subprocess.DEVNULL if piped else None
        stdout = stderr = subprocess.PIPE if piped else None
        terminal = os.environ.pop("HVDKIT_TERMINAL", None)
        attached = terminal is not None and os.environ.get("HVDKIT_DEBUG_RANK") == str(self.rank)
        if attached:
            stdin = stdout = stderr = os.open(terminal, os.O_RDWR | os.O_NOCTTY)
        try:
            self.child = subprocess.Popen(
                _under_pdb(self.command) if attached else self.command,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,  # so that mpirun's signals and the terminal's reach only the wrapper
                preexec_fn=die_with_parent,
            )
        except OSError as error:
            # 127 and 126 are what a shell says for "not found" and "cannot be run".
            code = 127 if isinstance(error, FileNotFoundError) else 126
            self._send(channel.STDERR, f"hvdkit: cannot run '{self.command[0]}': {error.strerror}\n".encode())
            self._finish(code << 8)
            return
        for stream, kind in ((self.child.stdout, channel.STDOUT), (self.child.stderr, channel.STDERR)):
            if stream is not None:
                self.selector.register(stream, selectors.EVENT_READ, self._forward(kind))

    def _forward(self, kind: bytes):
        def forward(stream) -> None:
            data = os.read(stream.fileno(), 1 << 16)
            if data:
                self._send(kind, data)
            else:
                self.selector.unregister(stream)

        return forward

    def _on_launcher(self, connection: socket.socket) -> None:
        try:
            data = connection.recv(4096)
        except OSError:
            data = b""
        if not data:  # the launcher is gone: so must we be
            self.leave = True
            return
        for kind, _ in self.decoder.feed(data):
            if kind == channel.GO and self.child is None:
                self._start_command()
            elif kind == channel.STOP and self.child is not None and self.status is None:
                os.killpg(self.child.pid, signal.SIGTERM)
            elif kind == channel.STACKS:
                self._print_stacks()
            elif kind in (channel.KILL, channel.LEAVE):
                self.leave = True

    def _on_signal(self, wakeup: socket.socket) -> None:
        received = wakeup.recv(4096)
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
                self._finish(status)

    def _finish(self, status: int) -> None:
        """Tell the launcher how the command ended, after the last of its output."""
        self.status = status
        self._end_descendants()
        deadline = time.monotonic() + SECONDS_TO_DRAIN
        while self._streams() and time.monotonic() < deadline:
            for key, _ in self.selector.select(timeout=0.1):
                if key.fileobj in self._streams():
                    key.data(key.fileobj)
        if self.socket is not None:
            ended_by = status & 0x7F if os.WIFSIGNALED(status) else 0
            self._send_frame(channel.encode_json(channel.EXIT, code=_exit_code(status), signal=ended_by))

    def _streams(self) -> list:
        open_files = [key.fileobj for key in self.selector.get_map().values()]
        child = self.child
        return [stream for stream in (child.stdout, child.stderr) if stream in open_files] if child else []

    def _print_stacks(self) -> None:
        listening = [pid for pid in descendants(os.getpid()) if catches(pid, signal.SIGQUIT)]
        for pid in listening:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGQUIT)
        if not listening:
            self._send(channel.STDERR, b"hvdkit: no Python process listens for a request for its stacks\n")

    def _end_descendants(self) -> None:
        """Nothing that the command started may outlive it."""
        if not signal_descendants(signal.SIGTERM):
            return
        deadline = time.monotonic() + SECONDS_BEFORE_KILL
        while time.monotonic() < deadline:
            if not descendants(os.getpid()):
                return
            time.sleep(0.02)
        while signal_descendants(signal.SIGKILL):
            time.sleep(0.02)

    def _send(self, kind: bytes, data: bytes) -> None:
        if self.socket is None:
            sys.stderr.write(data.decode(errors="replace"))
        else:
            self._send_frame(channel.encode(kind, data))

    def _send_frame(self, frame: bytes) -> None:
        try:
            self.socket.sendall(frame)
        except OSError:
            self.leave = True


def _exit_code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code


def _under_pdb(command: list[str]) -> list[str]:
    """A Python command starts in pdb and stops where an exception is not caught; others run as they are."""
    if not Path(command[0]).name.startswith("python") or "pdb" in command:
        return command
    script = 1  # behind the interpreter's own flags
    while script < len(command) and command[script].startswith("-") and command[script] not in ("-m", "-c"):
        script += 2 if command[script] in ("-W", "-X") else 1
    if script == len(command) or command[script] == "-c":
        return command
    return [*command[:script], "-m", "pdb", "-c", "continue", *command[script:]]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
