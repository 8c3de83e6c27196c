"""`hvdkit selftest`: real collectives on real ranks of this machine, started as `hvdkit launch` starts them."""

import contextlib
import importlib.util
import json
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hvdkit.checks.timeline import allreduce_counts
from hvdkit.errors import EnvironmentProblem, HvdkitError
from hvdkit.jobs import local
from hvdkit.jobs.spec import JobSpec
from hvdkit.local.machine import read_machine
from hvdkit.local.supervisor import RunOptions, run

RANK_COMMAND = (sys.executable, "-m", "hvdkit.checks.selftest_ranks")

# A collective that hangs must end the test: warn after the first, give up after the second.
STALL_SECONDS = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "30", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "90"}


@dataclass(frozen=True, kw_only=True)
class SelfTest:
    """What came out."""

    ranks: int
    hosts: int
    controller: str
    device: str
    operations: tuple[str, ...]
    """The collectives that were checked."""

    wrong: tuple[str, ...]
    """Everything that was wrong; empty is good."""

    libraries: dict[str, int]
    """Allreduces by library, counted in Horovod's timeline."""

    bandwidth: tuple[dict[str, float], ...]
    """Of allreduce, by size."""

    def to_json(self) -> str:
        """For machines."""
        return json.dumps({"version": 1, **asdict(self)}, indent=2)


def selftest(workers: int, controller: str) -> SelfTest:
    """Start the ranks, and judge what they report and what the timeline shows."""
    if importlib.util.find_spec("horovod") is None:
        raise EnvironmentProblem("Horovod is not installed; run 'hvdkit horovod install'.")
    with tempfile.TemporaryDirectory(prefix="hvdkit-selftest-") as folder:
        result_file, timeline = Path(folder) / "result.json", Path(folder) / "timeline.json"
        spec = JobSpec(
            name="selftest",
            command=(*RANK_COMMAND, str(result_file)),
            workers=workers,
            controller=controller,
            env=STALL_SECONDS,
            timeline=str(timeline),
        )
        plan = local.render(spec, read_machine())
        with contextlib.redirect_stdout(sys.stderr):  # what ranks say is for people; stdout is for the result
            outcome = run(plan, RunOptions())
        if outcome.exit_code != 0 or not result_file.is_file():
            raise HvdkitError(f"the collectives did not come to an end: {outcome.reason or 'no rank reported'}.")
        return judge(json.loads(result_file.read_text()), allreduce_counts(timeline), workers, controller)


def judge(report: dict[str, Any], libraries: dict[str, int], workers: int, controller: str) -> SelfTest:
    """Put the ranks' report and the timeline together; what does not fit is wrong."""
    wrong = list(report["wrong"])
    if report["ranks"] != workers:
        wrong.append(f"the world had {report['ranks']} ranks instead of {workers}")
    expected = report["expected_library"]
    if set(libraries) != {expected}:
        found = ", ".join(f"{name} ({count} times)" for name, count in libraries.items()) or "no library at all"
        wrong.append(f"{expected} should have reduced, but Horovod's timeline shows {found}")
    return SelfTest(
        ranks=report["ranks"],
        hosts=report["hosts"],
        controller=controller,
        device=report["device"],
        operations=tuple(report["operations"]),
        wrong=tuple(wrong),
        libraries=libraries,
        bandwidth=tuple(report["bandwidth"]),
    )
