"""An elastic MPIJob: horovodrun starts the ranks on the workers that are there, and again when that changes."""

import argparse
import importlib.util
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections import deque
from pathlib import Path

from hvdkit.errors import EXIT_RESTART_ME, EnvironmentProblem, InputError
from hvdkit.jobs import local
from hvdkit.jobs.spec import Host, JobSpec
from hvdkit.local.machine import read_machine
from hvdkit.local.output import TAIL_LINES
from hvdkit.local.ssh import reachable_addresses
from hvdkit.local.supervisor import KILLED, Outcome
from hvdkit.runtime import mpijob_ssh, pod_termination
from hvdkit.runtime.interfaces import interface_of
from hvdkit.runtime.pod_discovery import hosts_that_answer
from hvdkit.runtime.pod_names import wait_until_none_is_missing
from hvdkit.runtime.pod_ranks import grace_seconds
from hvdkit.runtime.processes import adopt_orphans, die_with_parent, end_descendants

COOLDOWN_SECONDS = (10, 300)  # after a first failure and at most; each further one doubles it
_OF_A_RANK = re.compile(rb"\[(\d+)\]<(?:stdout|stderr)>:(.*)", re.DOTALL)
_FAILED = re.compile(rb"Process (\d+) exit with status code (\d+)")


def run_elastic(options: argparse.Namespace, command: list[str]) -> int:
    """Run an elastic job; returns the exit code of the rank that horovodrun blames."""
    low, high = options.elastic_min, options.elastic_max or options.workers
    if not 1 <= low <= high:
        raise InputError(f"--elastic-min {low} and --elastic-max {high} are not a range.")
    if importlib.util.find_spec("horovod") is None:
        raise EnvironmentProblem(
            "an elastic job needs Horovod in the launcher's image too; leave --launcher-image out, or use the worker's."
        )
    hosts = wait_for_enough(low, options.wait_seconds)
    folder = mpijob_ssh.new_folder()
    write_scripts(folder, options.slots)
    argv, env = horovodrun(hosts[:high], low, high, options.slots, command, folder)
    outcome = Elastic(argv, env, folder).run()
    pod_termination.report(outcome)
    if outcome.exit_code != 0:
        pod_termination.write(outcome)
    return outcome.exit_code


def wait_for_enough(low: int, seconds: float) -> list[str]:
    """The workers that answer, as soon as there are `low` of them."""
    hosts: list[str] = []

    def look() -> dict[str, str]:
        hosts[:] = hosts_that_answer(known=set(hosts))
        return {} if len(hosts) >= low else {f"{low - len(hosts)} of at least {low}": ""}

    wait_until_none_is_missing(look, seconds, "workers")
    return hosts


def write_scripts(folder: Path, slots: int) -> None:
    """What horovodrun calls: `ssh` with our configuration, and the discovery of hosts."""
    ssh = f"{shutil.which('ssh')} -F {shlex.quote(str(mpijob_ssh.client_config(folder)))}"
    discovery = f"{shlex.quote(sys.executable)} -m hvdkit.runtime.pod_discovery {slots} {folder}/hosts"
    for name, line in (("ssh", f'{ssh} "$@"'), ("discover_hosts", discovery)):
        script = folder / name
        script.write_text(f"#!/bin/sh\nexec {line}\n")
        script.chmod(0o700)


def horovodrun(
    hosts: list[str], low: int, high: int, slots: int, command: list[str], folder: Path
) -> tuple[list[str], dict[str, str]]:
    """The command line and environment of horovodrun."""
    machine = read_machine()
    spec = JobSpec(
        name=os.environ.get("HVDKIT_JOB", "elastic"),
        command=tuple(command),
        controller="gloo",
        workers=len(hosts),
        hosts=tuple(Host(name=name, slots=slots) for name in hosts),
    )
    env = {setting.name: setting.value for setting in local.render(spec, machine).settings}
    env["HVDKIT_WORLD_SIZE"], env["HVDKIT_HOSTS"] = f"{low * slots}-{high * slots}", f"{low}-{high}"
    env["PATH"] = f"{folder}:{env['PATH']}"
    address = reachable_addresses(tuple(hosts))[0]
    interface = interface_of(address) or ("lo" if address.startswith("127.") else None)
    program = machine.python if command[0] == "python" else command[0]
    argv = [sys.executable, "-m", "horovod.runner.launch", "--gloo", "-np", str(len(hosts) * slots)]
    argv += ["--min-np", str(low * slots), "--max-np", str(high * slots)]
    argv += ["--host-discovery-script", str(folder / "discover_hosts")]
    # A worker that was lost comes back under its old name, which would otherwise stay on the blacklist for good.
    argv += ["--blacklist-cooldown-range", *map(str, COOLDOWN_SECONDS)]
    # Its own search for a common interface needs a second round of SSH and hangs when it finds none.
    argv += ["--network-interfaces", interface] if interface else []
    return [*argv, machine.python, "-m", "hvdkit.runtime.pod_wrapper", "--", program, *command[1:]], env


class Elastic:
    """horovodrun, its output and its end."""

    def __init__(self, argv: list[str], env: dict[str, str], folder: Path) -> None:
        self.argv, self.env, self.folder = argv, env, folder
        self.tails: dict[int | None, deque[str]] = {}  # last lines of each rank, under None of horovodrun itself
        self.failed: tuple[int, int] | None = None  # the last rank that failed, and its exit code
        self.asked_to_stop = False
        self.too_late = False

    def run(self) -> Outcome:
        adopt_orphans()
        self.child = subprocess.Popen(
            self.argv,
            env=os.environ | self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=self._ask_to_stop, daemon=True).start())
        assert self.child.stdout is not None  # it is a pipe
        try:
            for line in self.child.stdout:
                self._show(line.rstrip(b"\n"))
            return self._outcome(self.child.wait())
        finally:
            end_descendants(grace=0)

    def _show(self, line: bytes) -> None:
        """Print a line as every launch does, with the rank it came from."""
        rank, prefix = None, b"[horovodrun]"
        if of_rank := _OF_A_RANK.fullmatch(line):
            rank, prefix, line = int(of_rank[1]), b"[%b]" % of_rank[1], of_rank[2]
        elif (found := _FAILED.search(line)) and found[2] != b"0":
            self.failed = int(found[1]), int(found[2])
        sys.stdout.buffer.write(b"%b %b\n" % (prefix, line))
        sys.stdout.buffer.flush()
        self.tails.setdefault(rank, deque(maxlen=TAIL_LINES)).append(line.decode(errors="replace"))

    def _outcome(self, code: int) -> Outcome:
        if self.too_late:
            reason = f"the ranks did not stop within {grace_seconds():g} s and were killed"
            return Outcome(exit_code=KILLED, reason=reason)
        if code == 0:
            return Outcome()
        rank, rank_code = self.failed or (None, None)
        if rank_code == EXIT_RESTART_ME:
            return Outcome(exit_code=EXIT_RESTART_ME, reason="stopped in good order")
        blamed = f"rank {rank}" if rank is not None else "horovodrun"
        exit_code = rank_code or (code if code > 0 else 128 - code)
        reason = f"the elastic job failed: {blamed} exited with code {exit_code}"
        return Outcome(exit_code=exit_code, reason=reason, rank=rank, tail=list(self.tails.get(rank, ())))

    def _ask_to_stop(self) -> None:
        """Tell every worker pod; horovodrun itself could only kill the ranks."""
        if self.asked_to_stop:
            return
        self.asked_to_stop = True
        print("hvdkit: asking the ranks to stop in good order", file=sys.stderr, flush=True)
        state = self.folder / "hosts"
        hosts = state.read_text().split() if state.exists() else []
        words = [str(self.folder / "ssh")]
        asking = [subprocess.Popen([*words, host, "kill -USR1 $HVDKIT_WORKER_PID"]) for host in hosts]
        for process in asking:
            process.wait()
        try:
            self.child.wait(grace_seconds())
        except subprocess.TimeoutExpired:
            self.too_late = True
            self.child.terminate()
