"""The supervisor of a local launch, in a pod: Kubernetes gives the signals, and other pods may belong to the job."""

import dataclasses
import signal
import time
from typing import IO

from hvdkit.errors import EXIT_ENVIRONMENT, EXIT_RESTART_ME
from hvdkit.jobs.local import LocalPlan
from hvdkit.local.supervisor import Outcome, RunOptions, Supervisor
from hvdkit.runtime import pod_roster, pod_termination
from hvdkit.runtime.pod_ranks import grace_seconds
from hvdkit.runtime.pod_wrapper import OUT_OF_MEMORY

STOPPED_EARLY = "asked to stop before all ranks had started"


def run(supervisor: "PodSupervisor") -> int:
    """Run to the end, say how it ended, leave the termination message; returns the exit code."""
    try:
        supervisor.start()
        outcome = supervisor.loop()
    finally:
        supervisor.end_everything()
    outcome, out_of_memory = supervisor.explained(outcome)
    pod_termination.report(outcome)
    if outcome.exit_code != 0:
        host = supervisor.ranks[outcome.rank].host if outcome.rank in supervisor.ranks else None
        pod_termination.write(outcome, host=host, out_of_memory=out_of_memory)
    return outcome.exit_code


class PodSupervisor(Supervisor):
    """Runs a plan in a pod. The plan's world is what this pod starts; `total` is the size of the whole one."""

    def __init__(
        self,
        plan: LocalPlan,
        *,
        starter: str,
        total: int | None = None,
        roster: pod_roster.Roster | None = None,
        start_timeout: float,
    ) -> None:
        super().__init__(plan, RunOptions(grace=grace_seconds()))
        self.starter = starter
        """What starts the ranks, for messages: mpirun, torchrun …"""

        self.roster = roster
        """The other pods of a world that no launcher holds together."""

        self.output.width = len(str((total or plan.world_size) - 1))
        self.start_timeout = start_timeout
        self.start_by = float("inf")  # our own clock, because the ranks here may not be the first of the world
        self._ranks_by = time.monotonic() + start_timeout

    def start(self) -> None:
        super().start()
        if self.roster is not None:
            self.roster.watch(self.selector, self._on_stop_elsewhere, self._on_end_elsewhere, self._on_pod_gone)

    def _on_stop_elsewhere(self) -> None:
        if len(self.ranks) == self.plan.world_size:
            self._ask_to_stop()
        elif self.outcome is None:
            self._end(EXIT_RESTART_ME, STOPPED_EARLY)

    def _on_end_elsewhere(self, code: int, reason: str, broken: bool) -> None:
        if broken and self.outcome is None:
            self._end(code, reason, broken=True)
        elif code == EXIT_RESTART_ME:
            self._on_stop_elsewhere()

    def _on_pod_gone(self, name: str) -> None:
        if self.outcome is None:
            # Not our failure: with this code the pods are started again, and meet as a new world.
            reason = f"the pod {name} has gone: it was deleted or restarted, or its node died"
            self._end(EXIT_RESTART_ME, reason, broken=True)

    def _ask_to_stop(self) -> None:
        before = self.asked_to_stop
        super()._ask_to_stop()
        if self.roster is not None and self.asked_to_stop and not before:
            self.roster.tell(pod_roster.STOP)

    def _check_clock(self) -> None:
        super()._check_clock()
        there, expected = len(self.ranks), self.plan.world_size
        if self.outcome is None and there < expected and time.monotonic() > self._ranks_by:
            reason = f"only {there} of {expected} ranks started within {self.start_timeout:g} s"
            # A Job that runs the pods of a roster would take another code for the end of all tries.
            code = EXIT_ENVIRONMENT if self.roster is None else EXIT_RESTART_ME
            self._end(code, reason, tail=list(self.noise), broken=True)

    def _blame(self, index: int, code: int) -> tuple[int, str]:
        code, reason = super()._blame(index, code)
        return code, reason.replace("mpirun", self.starter)

    def _end(
        self, code: int, reason: str, *, rank: int | None = None, tail: list[str] | None = None, broken: bool = False
    ) -> None:
        if reason == f"interrupted by {signal.SIGTERM.name}":
            # It came before all ranks were there (later they are asked to stop): nothing is lost.
            code, reason = EXIT_RESTART_ME, STOPPED_EARLY
        super()._end(code, reason, rank=rank, tail=tail)
        if code == 0 and self.starter != "mpirun":
            self.noise.clear()
        if self.roster is not None:
            broken = broken or code not in (0, EXIT_RESTART_ME)
            self.roster.tell(pod_roster.END, code=code, reason=reason, broken=broken)

    def _on_noise(self, stream: IO[bytes]) -> None:
        super()._on_noise(stream)
        if self.outcome is not None and self.outcome.exit_code == 0 and self.starter != "mpirun":
            self.noise.clear()  # Monarch and torchrun talk about themselves; after a success nobody needs it

    def explained(self, outcome: Outcome) -> tuple[Outcome, bool]:
        """The outcome with the kernel's reason for a kill, where a wrapper found one, and whether it did."""
        self._read_last_noise()
        for line in self.noise:
            _, found, rest = line.partition(OUT_OF_MEMORY)
            number, _, limit = rest.partition(" ")
            if found and outcome.rank is not None and number == str(outcome.rank):
                host = self.ranks[outcome.rank].host
                reason = f"rank {number} on {host} was killed for lack of memory {limit}"
                return dataclasses.replace(outcome, reason=reason), True
        return outcome, False

    def _read_last_noise(self) -> None:
        for process in self.processes:
            if process.stdout is not None and process.stdout.fileno() in self.selector.get_map():
                self._on_noise(process.stdout)
