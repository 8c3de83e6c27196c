"""Runs one point once and brings back its log: what every backend promises, and the one of this machine."""

import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from hvdkit.bench.points import IDEAL, Point, SweepSettings
from hvdkit.bench.train_words import train_words
from hvdkit.config.environment import without_settings
from hvdkit.errors import EXIT_INTERRUPTED, EnvironmentProblem, HvdkitError
from hvdkit.jobs.local import binds
from hvdkit.local.machine import read_machine
from hvdkit.runtime.cores import BIND
from hvdkit.runtime.processes import die_with_parent

SECONDS_TO_LEAVE = 20.0  # for a launch that was asked to end; `hvdkit launch` takes a few
LAST_LINES = 3  # of a failed run's log that go into its problem


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """One run of a point."""

    point: Point
    settings: SweepSettings
    repeat: int = 0
    """The round, from 0."""

    log: Path
    """Where the run's output goes as it comes."""

    timeout: float
    """Seconds after which the run has failed."""


class NoPointRuns(EnvironmentProblem):
    """What keeps every point from running, such as an image that nobody has: the sweep stops."""


class Runner(Protocol):
    """A backend of sweeps."""

    def check(self, settings: SweepSettings, timeout: float) -> None:
        """HvdkitError when the sweep cannot run, before its first run."""

    def run_point(self, spec: RunSpec) -> list[str]:
        """Run it to its end and return its log. HvdkitError, one sentence, when it fails."""

    def describe(self, spec: RunSpec) -> str:
        """What such a run is: the command or manifest, word for word."""


class LocalRunner:
    """Runs points on this machine, each by a `hvdkit launch` of its own, which leaves no process behind."""

    def check(self, settings: SweepSettings, timeout: float) -> None:
        pass  # a launch says by itself what it lacks

    def describe(self, spec: RunSpec) -> str:
        return shlex.join(local_command(spec.settings, spec.point, "FOLDER")) + "\n"

    def run_point(self, spec: RunSpec) -> list[str]:
        with tempfile.TemporaryDirectory(prefix="hvdkit-bench-") as folder:
            barrier, state = Path(folder, "barrier"), Path(folder, "state")
            barrier.mkdir()
            words = local_command(spec.settings, spec.point, str(barrier))
            spec.log.parent.mkdir(parents=True, exist_ok=True)
            with spec.log.open("wb") as log:
                code = run_command(words, local_environment(os.environ, state), log, spec.timeout)
        lines = spec.log.read_text(errors="replace").splitlines()
        if code:
            raise HvdkitError(why(code, lines, spec))
        return lines


def local_command(settings: SweepSettings, point: Point, barrier: str) -> list[str]:
    """The whole command line of a run on this machine; no hvdkit.yaml adds to it."""
    launch = [sys.executable, "-m", "hvdkit", "launch", "--config", os.devnull, "--backend", "local"]
    launch += ["--threads", str(settings.threads)]
    if point.engine == IDEAL and "horovod" in settings.engines and binds(point.ranks, read_machine()):
        launch += ["--env", f"{BIND}=1"]  # as the ranks are that they are compared with
    launch += [word for variable in settings.env for word in ("--env", variable)]
    words = train_words(settings, point)
    if point.engine == IDEAL:
        # Without mpirun, which would be one more process that does nothing for them.
        launch += ["--controller", "gloo", "--workers", str(point.ranks), "--slots", "1", "--"]
        alone = ["--barrier", barrier, "--count", str(point.ranks)]
        return [*launch, "python", "-m", "hvdkit.bench.independent", *alone, *words]
    if point.engine == "ddp":
        # One "rank", torchrun, that starts the real ones; it is ended with all that it started.
        launch += ["--controller", "gloo", "--workers", "1", "--slots", "1"]
        launch += ["--env", f"HVDKIT_WORLD_SIZE={point.ranks}", "--"]
        torchrun = ["python", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(point.ranks)]
        return [*launch, *torchrun, "-m", "hvdkit.train", "--engine", "ddp", *words]
    launch += ["--workers", str(point.workers), "--slots", str(point.slots), "--"]
    return [*launch, "python", "-m", "hvdkit.train", "--engine", "horovod", *words]


def local_environment(environment: Mapping[str, str], state: Path) -> dict[str, str]:
    """The environment of such a run: no settings of the user's jobs, which no result would tell of; and its record, one
    of hundreds in a sweep, pushes none of the user's own out of the last ones that are kept."""
    return without_settings(environment) | {"XDG_STATE_HOME": str(state)}


def run_command(words: list[str], environment: dict[str, str], log: BinaryIO, timeout: float) -> int:
    """The exit code; after the timeout the launch is ended, and so it is when we are interrupted."""
    process = subprocess.Popen(
        words,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # Ctrl-C is for us; we end the launch
        preexec_fn=die_with_parent,  # whatever ends us; and its ranks die with it
    )
    try:
        return process.wait(timeout)
    except subprocess.TimeoutExpired:
        raise HvdkitError(f"it was not done after {timeout:g} s (--timeout)") from None
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(SECONDS_TO_LEAVE)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)  # its ranks die with it
                process.wait()


def why(code: int, lines: list[str], spec: RunSpec) -> str:
    """Why a run failed, from its exit code and the end of its log."""
    said = [line for line in lines if line.strip() and "HVDKIT_RESULT" not in line][-LAST_LINES:]
    ending = "it was interrupted" if code == EXIT_INTERRUPTED else f"exit code {code}"
    return f"{ending}; {spec.log} ends with: {' | '.join(line.strip()[:200] for line in said) or 'nothing'}"
