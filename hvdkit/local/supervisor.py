"""Runs a local plan: starts its processes, carries the ranks' output, and ends every one of them.

One event loop. Success is every rank's own word: the job succeeds only if each of the expected ranks said
hello, ran the command and reported exit code 0.
"""

import contextlib
import json
import os
import resource
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
from hvdkit.jobs.local import LocalPlan
from hvdkit.local.door import Door
from hvdkit.local.output import RankOutput
from hvdkit.local.ssh import reachable_addresses
from hvdkit.local.starting import start_process, start_rendezvous
from hvdkit.local.writer import Writer
from hvdkit.runtime import channel
from hvdkit.runtime.cores import Need, assign
from hvdkit.runtime.processes import adopt_orphans, end_descendants

SECONDS_TO_LEAVE = 5.0  # for wrappers and mpirun after the last word; then they are killed
KILLED = 128 + signal.SIGKILL
TERMINATED = 128 + signal.SIGTERM
# Open MPI moves its ssh into a process group from both sides; the parent warns when the child was quicker, and ran ssh.
HARMLESS = "plm:rsh: Warning: setpgid("
READER_GONE = 128 + signal.SIGPIPE
WATCHED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD)


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


@dataclass(eq=False)
class Rank:
    """One connected rank."""

    connection: socket.socket
    decoder: channel.Decoder = field(default_factory=channel.Decoder)
    number: int = -1
    """-1 until it has said hello."""

    host: str = ""
    need: Need | None = None
    """What it would like to be bound to, if at all."""

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
        _allow_open_files()
        self.plan = plan
        self.options = options
        self.writer = Writer()
        self.output = RankOutput(plan.world_size, options.log_dir, self.writer)
        self.selector = selectors.DefaultSelector()
        self.connections: set[Rank] = set()
        self.ranks: dict[int, Rank] = {}
        self.raised: Rank | None = None  # the first that raises an exception which nobody catches
        self.ended = 0  # ranks that have reported an exit code
        self.paused: list[Rank] = []  # not read while the terminal does not keep up
        self.processes: list[subprocess.Popen] = []
        self.noise: deque[str] = deque(maxlen=40)  # what mpirun or ssh printed
        self.unfinished: object = None  # whose last line of it goes on
        self.outcome: Outcome | None = None
        self.asked_to_stop = False
        self.start_by = time.monotonic() + options.start_timeout
        self.stop_by: float | None = None  # ranks were asked to stop, or one has: the others follow by then
        self.leave_by: float | None = None  # the outcome is known

    def start(self) -> None:
        """Start every process of the plan."""
        adopt_orphans()
        self._watch_signals()
        listen, addresses = "127.0.0.1", ["127.0.0.1"]
        if self.plan.hosts:
            listen, addresses = "0.0.0.0", reachable_addresses(self.plan.hosts)
        self.door = Door(listen, addresses, self.selector, self._on_admitted)
        extra = {channel.VARIABLE: self.door.address}
        extra["HVDKIT_LAUNCHER_PID"] = f"{socket.gethostname()}:{os.getpid()}"
        if self.options.debug_rank is not None:
            extra["HVDKIT_TERMINAL"] = os.ttyname(sys.stdin.fileno())
            extra["HVDKIT_DEBUG_RANK"] = str(self.options.debug_rank)
        if self.plan.controller == "gloo":
            extra |= start_rendezvous(listen, addresses)
        for process in self.plan.processes:
            child = start_process(process, extra)
            self.processes.append(child)
            self.selector.register(child.stdout, selectors.EVENT_READ, self._on_noise)

    def _watch_signals(self) -> None:
        wakeup, writer = socket.socketpair()
        wakeup.setblocking(False)
        writer.setblocking(False)
        self._wakeup_writer = writer  # must stay open as long as signals can come
        signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        self.handlers = {signum: signal.signal(signum, lambda *_: None) for signum in WATCHED_SIGNALS}
        self.selector.register(wakeup, selectors.EVENT_READ, self._on_signal)

    def loop(self) -> Outcome:
        """Handle events until the outcome is known and everybody has left."""
        while not self._everybody_left():
            for key, _ in self.selector.select(timeout=0.25):
                # A handler may have closed the file of one that comes after it.
                if key.fd in self.selector.get_map():
                    key.data(key.fileobj)
            self._check_clock()
            self._go_on_reading()
        assert self.outcome is not None  # nobody leaves before
        if self.outcome.rank is not None:
            self.outcome.tail = self.output.tail(self.outcome.rank)
        elif self.outcome.exit_code == 0 and (said := [line for line in self.noise if HARMLESS not in line]):
            self.writer.write(sys.stderr, "".join(f"[mpirun] {line}\n" for line in said).encode())
        return self.outcome

    def _everybody_left(self) -> bool:
        if self.leave_by is None:
            return False
        running = any(process.poll() is None for process in self.processes)
        return time.monotonic() > self.leave_by or not (self.connections or running)

    def _check_clock(self) -> None:
        now = time.monotonic()
        self.door.send_away_the_silent()
        if self.outcome is not None:
            return
        if self.writer.closed_by_reader:
            self._end(READER_GONE, "the reader of the output has gone")
        elif len(self.ranks) < self.plan.world_size and now > self.start_by:
            missing = [number for number in range(self.plan.world_size) if number not in self.ranks]
            reason = (
                f"{len(missing)} of {self.plan.world_size} ranks did not start within "
                f"{self.options.start_timeout:g} s (first missing: rank {missing[0]})"
            )
            self._end(EXIT_ENVIRONMENT, reason, tail=list(self.noise))
        elif self.stop_by is not None and now > self.stop_by:
            busy = next(rank.number for rank in self.ranks.values() if rank.exit_code is None)
            self._end(KILLED, f"rank {busy} did not stop within {self.options.grace:g} s and was killed", rank=busy)

    def _must_wait(self) -> bool:
        """Whether ranks have to wait for the terminal; at the end of a run their last words matter more."""
        return self.writer.full and not self.asked_to_stop and self.outcome is None

    def _go_on_reading(self) -> None:
        if self.paused and not self._must_wait():
            for rank in self.paused:
                self._listen_to(rank)
            self.paused.clear()

    def _on_admitted(self, connection: socket.socket) -> None:
        rank = Rank(connection)
        self.connections.add(rank)
        self._listen_to(rank)

    def _listen_to(self, rank: Rank) -> None:
        self.selector.register(rank.connection, selectors.EVENT_READ, lambda _: self._on_data(rank))

    def _on_data(self, rank: Rank) -> None:
        if self._must_wait():
            self.selector.unregister(rank.connection)
            self.paused.append(rank)
            return
        try:
            data = rank.connection.recv(1 << 18)
            frames = list(rank.decoder.feed(data))
        except (OSError, ValueError):
            data, frames = b"", []
        if not data:
            self._on_lost(rank)
            return
        if self.leave_by is not None:
            self.leave_by = time.monotonic() + SECONDS_TO_LEAVE  # it still has something to say
        for kind, payload in frames:
            if kind in (channel.STDOUT, channel.STDERR):
                self.output.write(rank.number, payload, error=kind == channel.STDERR)
            elif kind == channel.RAISED:
                self.raised = self.raised or rank
            elif kind == channel.EXIT:
                self._on_exit(rank, json.loads(payload))
            elif kind == channel.HELLO:
                self._on_hello(rank, json.loads(payload))

    def _on_hello(self, rank: Rank, hello: dict) -> None:
        rank.number, rank.host = hello["rank"], hello["host"]
        if need := hello.get("need"):  # an image of an earlier hvdkit has none
            rank.need = Need(**need | {"cores": tuple(need["cores"])})
        size, host = hello["size"], rank.host
        expected = self.plan.world_size
        if self.outcome is not None:
            self._tell(rank, channel.LEAVE)
        elif size != expected:
            reason = f"the launcher asked for {expected} ranks, but rank {rank.number} on {host} is one of {size}"
            self._end(EXIT_FAILED, f"{reason}: is `mpirun` the one of Open MPI 4.1?")
        elif rank.number in self.ranks:
            self._end(EXIT_FAILED, f"there are two ranks {rank.number}, on {self.ranks[rank.number].host} and {host}")
        else:
            self.ranks[rank.number] = rank
            if len(self.ranks) == expected:
                self._on_all_there()

    def _on_all_there(self) -> None:
        hosts = sorted({rank.host for rank in self.ranks.values()})
        if len(hosts) == self.plan.host_count:
            bound = assign({number: rank.need for number, rank in self.ranks.items() if rank.need is not None})
            for number, rank in self.ranks.items():
                self._tell(rank, channel.GO, cores=bound.get(number, []))
        else:
            found = f"{len(hosts)} ({', '.join(hosts)})"
            self._end(EXIT_FAILED, f"the number of hosts should be {self.plan.host_count}, but the ranks see {found}")

    def _on_exit(self, rank: Rank, end: dict) -> None:
        code = rank.exit_code = end["code"]
        self.ended += 1
        if self.outcome is not None:
            return
        if code not in (0, EXIT_RESTART_ME) and not (self.asked_to_stop and code == TERMINATED):
            how = _how_it_ended(code, end["signal"], end["memory"])
            if self.raised not in (None, rank) and end["signal"] != signal.SIGKILL:
                # It still waits at its exit for ranks that will not come; this one only lost its partner. (Not so one
                # that was killed: then it is the other way round.)
                rank, code, how = self.raised, EXIT_FAILED, "raised an exception"
            self._end(code, f"rank {rank.number} on {rank.host} {how}", rank=rank.number)
            return
        if code == EXIT_RESTART_ME and self.stop_by is None:
            self.stop_by = time.monotonic() + self.options.grace  # the others stop at the same step
        if self.ended == self.plan.world_size:
            self._on_all_ended()

    def _on_all_ended(self) -> None:
        codes = {rank.exit_code for rank in self.ranks.values()}
        if TERMINATED in codes:
            self._end(TERMINATED, "the ranks ended by the SIGTERM that asked them to stop, not in good order")
        elif EXIT_RESTART_ME in codes:
            self._end(EXIT_RESTART_ME, "stopped in good order")
        else:
            self._end(0, "")

    def _on_lost(self, rank: Rank) -> None:
        self._close(rank)
        if rank.exit_code is not None or self.outcome is not None:
            return
        self._reap()  # when mpirun is gone, the ranks went with it: blame mpirun
        if self.outcome is None and rank.number >= 0:
            reason = f"rank {rank.number} on {rank.host} vanished: its wrapper was killed, or the host is gone"
            self._end(KILLED, reason, rank=rank.number)

    def _close(self, rank: Rank) -> None:
        self.connections.discard(rank)
        self.selector.unregister(rank.connection)
        rank.connection.close()
        if rank.number >= 0:
            self.output.finish(rank.number)

    def _on_noise(self, stream) -> None:
        with contextlib.suppress(BlockingIOError):
            while data := os.read(stream.fileno(), 1 << 16):
                lines = data.decode(errors="replace").splitlines()
                if self.unfinished is stream and self.noise:
                    self.noise[-1] += lines.pop(0)  # Python writes a traceback in many small pieces
                self.noise.extend(lines)
                self.unfinished = None if data.endswith(b"\n") else stream
            self.selector.unregister(stream)

    def _on_signal(self, wakeup: socket.socket) -> None:
        for signum in wakeup.recv(4096):
            if signum == signal.SIGCHLD:
                self._reap()
            elif signum == signal.SIGQUIT:
                self._tell_all(channel.STACKS)
            elif signum == signal.SIGTERM and len(self.ranks) == self.plan.world_size:
                self._ask_to_stop()
            elif self.outcome is None:
                code = EXIT_INTERRUPTED if signum == signal.SIGINT else 128 + signum
                self._end(code, f"interrupted by {signal.Signals(signum).name}")

    def _ask_to_stop(self) -> None:
        # Once: `timeout` and some schedulers send SIGTERM twice, and that must not cut a save short.
        if self.asked_to_stop or self.outcome is not None:
            return
        self.asked_to_stop = True
        if self.stop_by is None:
            self.stop_by = time.monotonic() + self.options.grace
        self.output.say("asking the ranks to stop in good order")
        self._tell_all(channel.STOP)

    def _reap(self) -> None:
        for index, process in enumerate(self.processes):
            code = process.poll()
            if code is None or self.outcome is not None:
                continue
            if self.plan.controller == "gloo" and index in self.ranks:
                continue  # its connection says more
            if process.stdout.fileno() in self.selector.get_map():
                self._on_noise(process.stdout)
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
        if code > 128 and name == "mpirun":  # its way to say that a signal ended one of its ranks
            return code, f"{name} ended with code {code}"
        if len(self.ranks) < self.plan.world_size:
            return EXIT_ENVIRONMENT, f"{name} ended with code {code} before all ranks had started"
        return code or EXIT_FAILED, f"{name} ended with code {code} before its ranks"

    def _end(self, code: int, reason: str, *, rank: int | None = None, tail: list[str] | None = None) -> None:
        """The outcome is known: tell everybody to leave."""
        self.outcome = Outcome(exit_code=code, reason=reason, rank=rank, tail=tail or [])
        self.leave_by = time.monotonic() + SECONDS_TO_LEAVE
        self._tell_all(channel.LEAVE)

    def _tell_all(self, kind: bytes) -> None:
        for rank in self.connections:
            self._tell(rank, kind)

    def _tell(self, rank: Rank, kind: bytes, **values: object) -> None:
        with contextlib.suppress(OSError):  # it is gone already
            rank.connection.send(channel.encode_json(kind, **values) if values else channel.encode(kind))

    def end_everything(self) -> None:
        """No connection, no process: also when the launcher itself failed half-way."""
        signal.set_wakeup_fd(-1)
        for signum, handler in self.handlers.items():
            signal.signal(signum, handler)  # from here on Ctrl-C means what it always means
        for key in list(self.selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()  # for a wrapper, on any host, this means: end the command and leave
        deadline = time.monotonic() + SECONDS_TO_LEAVE
        while any(process.poll() is None for process in self.processes) and time.monotonic() < deadline:
            time.sleep(0.02)
        left = end_descendants(grace=0)
        _reap_adopted(self.processes)
        interrupted = self.outcome is None or self.outcome.exit_code != 0
        self.writer.close(limit=SECONDS_TO_LEAVE if interrupted else None)
        if self.writer.dropped:
            lines = f"{self.writer.dropped} lines are missing, because nobody read the output"
            print(f"hvdkit: {lines}", file=sys.stderr)
        if left:
            print(f"hvdkit: these processes could not be ended: {', '.join(map(str, left))}", file=sys.stderr)


def _allow_open_files() -> None:
    """Two connections or pipes a rank, and a log: the usual limit of 1024 ends at some hundred ranks."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _reap_adopted(processes: list[subprocess.Popen]) -> None:
    """Take the exit status of orphans that we adopted, so that no zombie stays."""
    own = {process.pid for process in processes}
    with contextlib.suppress(ChildProcessError):
        while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if ended.si_pid in own:
                return  # subprocess takes the status of its own children
            os.waitpid(ended.si_pid, 0)


def _how_it_ended(code: int, signum: int, memory: str) -> str:
    if memory:
        return f"was killed by the kernel for lack of memory ({memory})"
    return f"was killed by {signal.Signals(signum).name}" if signum else f"exited with code {code}"
