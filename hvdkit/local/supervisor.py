"""Runs a local plan: starts its processes, carries the ranks' output, and ends every one of them.

One thread and one event loop. Success is every rank's own word: the job succeeds only if each of the
expected ranks said hello, ran the command and reported exit code 0.
"""

import contextlib
import hmac
import json
import os
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from hvdkit.errors import EXIT_ENVIRONMENT, EXIT_FAILED, EXIT_INTERRUPTED, EXIT_RESTART_ME
from hvdkit.jobs.local import LocalPlan, Process
from hvdkit.local.output import RankOutput
from hvdkit.local.rendezvous import start_rendezvous
from hvdkit.local.ssh import over_ssh, reachable_addresses
from hvdkit.runtime import channel
from hvdkit.runtime.processes import adopt_orphans, die_with_parent, signal_descendants

SECONDS_TO_LEAVE = 5.0  # for wrappers and mpirun after the last word; then they are killed
KILLED = 128 + signal.SIGKILL
TERMINATED = 128 + signal.SIGTERM


@dataclass(kw_only=True)
class RunOptions:
    """How to run a plan; what to run is the plan's."""

    log_dir: Path | None = None
    debug_rank: int | None = None
    start_timeout: float = 120.0
    """Seconds until every rank must have started."""

    grace: float = 30.0
    """Seconds that ranks may take which were asked to stop."""


@dataclass(kw_only=True)
class Outcome:
    """How a run ended."""

    exit_code: int = 0
    reason: str = ""
    rank: int | None = None
    """The first rank that failed."""

    tail: list[str] = field(default_factory=list)
    """The last lines of that rank, or of mpirun or ssh when no rank is to blame."""


@dataclass
class Rank:
    """What the launcher knows of one rank."""

    number: int
    host: str
    connection: socket.socket
    exit_code: int | None = None


def run(plan: LocalPlan, options: RunOptions) -> Outcome:
    """Run the plan to its end. Whatever happens, no process that it started is left."""
    supervisor = Supervisor(plan, options)
    try:
        supervisor.start()
        return supervisor.loop()
    finally:
        supervisor.end_everything()


class Supervisor:
    """The launcher's side of a run."""

    def __init__(self, plan: LocalPlan, options: RunOptions) -> None:
        self.plan = plan
        self.options = options
        self.output = RankOutput(plan.world_size, options.log_dir)
        self.ranks: dict[int, Rank] = {}
        self.token = secrets.token_hex(16)
        self.selector = selectors.DefaultSelector()
        self.processes: list[subprocess.Popen] = []
        self.noise: deque[str] = deque(maxlen=40)  # what mpirun or ssh printed
        self.outcome: Outcome | None = None
        self.start_by = time.monotonic() + options.start_timeout
        self.stop_by: float | None = None  # ranks asked to stop, or one that stopped: the others follow by then
        self.leave_by: float | None = None  # the outcome is known

    def start(self) -> None:
        """Start every process of the plan."""
        adopt_orphans()
        self._watch_signals()
        listen, addresses = "127.0.0.1", ["127.0.0.1"]
        if self.plan.hosts:
            listen, addresses = "0.0.0.0", reachable_addresses(self.plan.hosts)
        extra = {channel.VARIABLE: self._listen(listen, addresses)}
        extra["HVDKIT_LAUNCHER_PID"] = f"{socket.gethostname()}:{os.getpid()}"
        if self.options.debug_rank is not None:
            extra["HVDKIT_TERMINAL"] = os.ttyname(sys.stdin.fileno())
            extra["HVDKIT_DEBUG_RANK"] = str(self.options.debug_rank)
        if self.plan.controller == "gloo":
            extra |= start_rendezvous(listen, addresses)
        for process in self.plan.processes:
            self._start_process(process, extra)

    def _start_process(self, process: Process, extra: dict[str, str]) -> None:
        argv, stdin = list(process.argv), None
        if process.host:
            argv, stdin = over_ssh(process, extra, str(Path.cwd()))
        elif self.plan.hosts:  # mpirun carries only the variables it is told of to other machines
            argv[1:1] = [word for name in extra for word in ("-x", name)]
        child = subprocess.Popen(
            argv,
            env=os.environ | dict(process.env) | extra,
            stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for us; we tell the ranks
            preexec_fn=die_with_parent,
        )
        if stdin and child.stdin:
            with contextlib.suppress(BrokenPipeError):
                child.stdin.write(stdin)
                child.stdin.close()
        self.processes.append(child)
        self.selector.register(child.stdout, selectors.EVENT_READ, self._on_noise)

    def _listen(self, listen: str, addresses: list[str]) -> str:
        listener = socket.create_server((listen, 0), backlog=1024)
        listener.setblocking(False)
        self.selector.register(listener, selectors.EVENT_READ, self._on_connection)
        return channel.address(addresses, listener.getsockname()[1], self.token)

    def _watch_signals(self) -> None:
        wakeup, writer = socket.socketpair()
        wakeup.setblocking(False)
        writer.setblocking(False)
        self._writer = writer  # must stay open as long as signals can come
        signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD):
            signal.signal(signum, lambda *_: None)
        self.selector.register(wakeup, selectors.EVENT_READ, self._on_signal)

    def loop(self) -> Outcome:
        """Handle events until the outcome is known and everybody has left."""
        while not self._everybody_left():
            for key, _ in self.selector.select(timeout=0.25):
                key.data(key.fileobj)
            self._check_clock()
        assert self.outcome is not None  # nobody leaves before
        if self.outcome.rank is not None:
            self.outcome.tail = self.output.tail(self.outcome.rank)
        return self.outcome

    def _everybody_left(self) -> bool:
        if self.leave_by is None:
            return False
        connected = any(rank.connection.fileno() >= 0 for rank in self.ranks.values())
        running = any(process.poll() is None for process in self.processes)
        return time.monotonic() > self.leave_by or not (connected or running)

    def _check_clock(self) -> None:
        now = time.monotonic()
        if self.outcome is not None:
            return
        if len(self.ranks) < self.plan.world_size and now > self.start_by:
            missing = [str(n) for n in range(self.plan.world_size) if n not in self.ranks]
            self._end(
                EXIT_ENVIRONMENT,
                f"{len(missing)} of {self.plan.world_size} ranks did not start within "
                f"{self.options.start_timeout:.0f} s (first missing: rank {missing[0]})",
                tail=list(self.noise),
            )
        elif self.stop_by is not None and now > self.stop_by:
            busy = next(rank for rank in self.ranks.values() if rank.exit_code is None)
            reason = f"rank {busy.number} did not stop within {self.options.grace:.0f} s and was killed"
            self._end(KILLED, reason, rank=busy.number)

    def _on_connection(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        connection.setblocking(False)
        decoder = channel.Decoder()
        self.selector.register(connection, selectors.EVENT_READ, lambda c: self._on_data(c, decoder))

    def _on_data(self, connection: socket.socket, decoder: channel.Decoder) -> None:
        rank = next((rank for rank in self.ranks.values() if rank.connection is connection), None)
        try:
            data = connection.recv(1 << 18)
            frames = list(decoder.feed(data))
        except (OSError, ValueError):
            data, frames = b"", []
        for kind, payload in frames:
            if rank is None:
                rank = self._welcome(connection, kind, payload)
                if rank is None:  # a stranger
                    data = b""
                    break
            elif kind in (channel.STDOUT, channel.STDERR):
                self.output.write(rank.number, payload, error=kind == channel.STDERR)
            elif kind == channel.EXIT:
                self._on_exit(rank, **json.loads(payload))
        if not data:
            self.selector.unregister(connection)
            connection.close()
            if rank is not None:
                self._on_lost(rank)

    def _welcome(self, connection: socket.socket, kind: bytes, payload: bytes) -> Rank | None:
        try:
            hello = json.loads(payload)
            known = kind == channel.HELLO and hmac.compare_digest(str(hello["token"]), self.token)
        except (ValueError, KeyError, TypeError):
            return None
        if not known or self.outcome is not None:
            return None
        rank = Rank(int(hello["rank"]), str(hello["host"]), connection)
        if rank.number in self.ranks or not 0 <= rank.number < self.plan.world_size:
            self._end(
                EXIT_FAILED,
                f"rank {rank.number} on {rank.host} does not belong to a world of {self.plan.world_size} ranks, "
                "or came twice: is mpirun another MPI than the one that was asked for?",
            )
            return None
        self.ranks[rank.number] = rank
        if len(self.ranks) == self.plan.world_size:
            self._check_hosts()
        return rank

    def _check_hosts(self) -> None:
        hosts = sorted({rank.host for rank in self.ranks.values()})
        if len(hosts) != self.plan.host_count:
            expected = f"{self.plan.host_count} host{'s' if self.plan.host_count > 1 else ''}"
            reason = f"the ranks should be on {expected}, but they are on {len(hosts)}: {', '.join(hosts)}"
            self._end(EXIT_FAILED, reason)
            return
        self._tell_all(channel.GO)

    def _on_exit(self, rank: Rank, code: int, signal: int) -> None:
        rank.exit_code = code
        self.output.finish(rank.number)
        if self.outcome is not None:
            return
        asked_to_stop = self.stop_by is not None
        in_good_order = code in (0, EXIT_RESTART_ME) or (asked_to_stop and code == TERMINATED)
        if not in_good_order:
            self._end(code, f"rank {rank.number} on {rank.host} {_how_it_ended(code, signal)}", rank=rank.number)
            return
        if code == EXIT_RESTART_ME and self.stop_by is None:
            self.stop_by = time.monotonic() + self.options.grace  # the others stop at the same step
        codes = [other.exit_code for other in self.ranks.values()]
        if None not in codes:
            self._end(max(codes), "stopped in good order" if EXIT_RESTART_ME in codes else "")

    def _on_lost(self, rank: Rank) -> None:
        self.output.finish(rank.number)
        if rank.exit_code is not None or self.outcome is not None:
            return
        self._reap()  # when mpirun is gone, the ranks went with it: blame mpirun
        if self.outcome is None:
            reason = f"rank {rank.number} on {rank.host} vanished: its wrapper was killed, or the host is gone"
            self._end(KILLED, reason, rank=rank.number)

    def _on_noise(self, stream) -> None:
        data = os.read(stream.fileno(), 1 << 16)
        if data:
            self.noise.extend(data.decode(errors="replace").splitlines())
        else:
            self.selector.unregister(stream)

    def _on_signal(self, wakeup: socket.socket) -> None:
        for signum in wakeup.recv(4096):
            if signum == signal.SIGCHLD:
                self._reap()
            elif signum == signal.SIGQUIT:
                self._tell_all(channel.STACKS)
            elif signum == signal.SIGTERM and self.stop_by is None and len(self.ranks) == self.plan.world_size:
                self.stop_by = time.monotonic() + self.options.grace
                print("hvdkit: asking the ranks to stop in good order", file=sys.stderr, flush=True)
                self._tell_all(channel.STOP)
            elif self.outcome is None:
                code = EXIT_INTERRUPTED if signum == signal.SIGINT else 128 + signum
                self._end(code, f"interrupted by {signal.Signals(signum).name}")

    def _reap(self) -> None:
        for index, process in enumerate(self.processes):
            code = process.poll()
            if code is None or self.outcome is not None:
                continue
            if self.plan.controller == "gloo" and index in self.ranks:
                continue  # its connection says more
            self._drain_noise(process)
            self._end(*self._blame(index, code), tail=list(self.noise))
        _reap_adopted(self.processes)

    def _blame(self, index: int, code: int) -> tuple[int, str]:
        """Exit code and reason when mpirun, ssh or a wrapper ended before its ranks did."""
        name = "mpirun"
        if self.plan.controller == "gloo":
            host = self.plan.processes[index].host
            name = f"rank {index}" if host is None else f"ssh to {host} for rank {index}"
        if code < 0:
            return 128 - code, f"{name} was killed by {signal.Signals(-code).name}"
        if len(self.ranks) < self.plan.world_size:
            return EXIT_ENVIRONMENT, f"{name} ended with code {code} before all ranks had started"
        return code or EXIT_FAILED, f"{name} ended with code {code} before its ranks"

    def _drain_noise(self, process: subprocess.Popen) -> None:
        if process.stdout in [key.fileobj for key in self.selector.get_map().values()]:
            self._on_noise(process.stdout)

    def _end(self, code: int, reason: str, *, rank: int | None = None, tail: list[str] | None = None) -> None:
        """The outcome is known: tell everybody to leave."""
        self.outcome = Outcome(exit_code=code, reason=reason, rank=rank, tail=tail or [])
        self.leave_by = time.monotonic() + SECONDS_TO_LEAVE
        self._tell_all(channel.LEAVE if code == 0 else channel.KILL)

    def _tell_all(self, kind: bytes) -> None:
        for rank in self.ranks.values():
            if rank.connection.fileno() >= 0:
                with contextlib.suppress(OSError):  # it is gone already
                    rank.connection.send(channel.encode(kind))

    def end_everything(self) -> None:
        """No connection, no process: also when the launcher itself failed half-way."""
        signal.set_wakeup_fd(-1)
        for key in list(self.selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                self.selector.unregister(key.fileobj)
                key.fileobj.close()  # for a wrapper, on any host, this means: end the command and leave
        deadline = time.monotonic() + SECONDS_TO_LEAVE
        while any(process.poll() is None for process in self.processes) and time.monotonic() < deadline:
            time.sleep(0.02)
        while signal_descendants(signal.SIGKILL):
            _reap_adopted(self.processes)
            time.sleep(0.02)
        for process in self.processes:
            process.wait()


def _reap_adopted(processes: list[subprocess.Popen]) -> None:
    """Take the exit status of orphans that we adopted, so that no zombie stays."""
    own = {process.pid for process in processes}
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if ended is None or ended.si_pid in own:
            return  # subprocess takes the status of its own children
        os.waitpid(ended.si_pid, 0)


def _how_it_ended(code: int, signum: int) -> str:
    if not signum:
        return f"exited with code {code}"
    hint = " (by hand, or by the kernel for lack of memory: see `dmesg`)" if signum == signal.SIGKILL else ""
    return f"was killed by {signal.Signals(signum).name}{hint}"
