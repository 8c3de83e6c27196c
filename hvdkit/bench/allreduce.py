"""`hvdkit bench allreduce`: how fast ranks of this machine add up tensors, by library, size and number of ranks."""

import contextlib
import importlib.util
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from hvdkit.errors import EnvironmentProblem, HvdkitError, InputError
from hvdkit.jobs import local
from hvdkit.jobs.spec import CONTROLLERS, JobSpec
from hvdkit.local.machine import read_machine, usable_cores
from hvdkit.local.supervisor import RunOptions, run

VERSION = 1
KIND = "allreduce"
SIZES = tuple(1 << power for power in range(10, 29, 2))  # 1 KiB ... 256 MiB
BATCHES = 5
BYTES_A_BATCH = 128 << 20  # so many calls in a row as move this much, within bounds
FEWEST_CALLS, MOST_CALLS = 1, 20

# Library → the one that it is held against in the same processes.
HELD_AGAINST = {"horovod-mpi": "mpi4py", "horovod-gloo": "torch-gloo", "horovod-nccl": "torch-nccl"}
FLOORS = {"mpi4py"}  # Horovod makes the same call and more, so it cannot be faster
NOISE = 0.1  # of a time: so much faster it may seem by chance

# A collective that hangs must end the benchmark: warn after the first, give up after the second.
STALL_SECONDS = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "60", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "300"}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One library, size and number of ranks."""

    library: str
    """horovod-mpi, horovod-gloo, horovod-nccl, mpi4py, torch-gloo or torch-nccl."""

    ranks: int
    bytes: int
    seconds: float
    """Of one allreduce, by the slowest rank: the median over batches."""

    fastest: float
    slowest: float
    """Of the batches."""

    calls: int
    """In a batch."""

    algorithm_bytes_per_second: float
    bus_bytes_per_second: float
    """What each link carries by the best algorithm: comparable between numbers of ranks."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Horovod's time over that of the other library, with the same ranks and size, in the same run."""

    library: str
    against: str
    ranks: int
    bytes: int
    ratio: float
    impossible: bool
    """Horovod seems faster than the call that it makes, in all batches and by more than NOISE: do not trust either."""


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What came out."""

    rows: tuple[Row, ...]
    wrong: tuple[str, ...]
    """Sums that were wrong; empty is good."""

    device: str
    cores: int
    created: str

    def comparisons(self) -> list[Comparison]:
        """Of each row that has a counterpart."""
        others = {(row.library, row.ranks, row.bytes): row for row in self.rows}
        pairs = [(row, others.get((HELD_AGAINST.get(row.library, ""), row.ranks, row.bytes))) for row in self.rows]
        return [
            Comparison(
                library=row.library,
                against=other.library,
                ranks=row.ranks,
                bytes=row.bytes,
                ratio=row.seconds / other.seconds,
                impossible=other.library in FLOORS and row.slowest < (1 - NOISE) * other.fastest,
            )
            for row, other in pairs
            if other is not None
        ]

    def to_json(self) -> str:
        """For machines; `hvdkit bench project --allreduce` reads it."""
        compared = [asdict(comparison) for comparison in self.comparisons()]
        return json.dumps({"version": VERSION, "kind": KIND, **asdict(self), "comparisons": compared}, indent=1)


def calls_for(size: int) -> int:
    """How many allreduces of that size make a batch; fixed, because ranks must agree on it."""
    return max(FEWEST_CALLS, min(MOST_CALLS, BYTES_A_BATCH // size))


def bus_factor(ranks: int) -> float:
    """Bytes that each link carries per byte reduced."""
    return 2 * (ranks - 1) / ranks


def make_row(ranks: int, measured: dict[str, Any]) -> Row:
    """From what the ranks report."""
    seconds = statistics.median(measured["batches"])
    rate = measured["bytes"] / seconds
    return Row(
        library=measured["library"],
        ranks=ranks,
        bytes=measured["bytes"],
        seconds=seconds,
        fastest=min(measured["batches"]),
        slowest=max(measured["batches"]),
        calls=measured["calls"],
        algorithm_bytes_per_second=rate,
        bus_bytes_per_second=rate * bus_factor(ranks),
    )


def measure(
    ranks: Sequence[int],
    controllers: Sequence[str],
    sizes: Sequence[int],
    *,
    batches: int = BATCHES,
    say: Callable[[str], None] = lambda text: None,
) -> Measurement:
    """Start real ranks for each number and controller, one after the other."""
    if importlib.util.find_spec("horovod") is None:
        raise EnvironmentProblem("Horovod is not installed; run 'hvdkit horovod install'.")
    rows: list[Row] = []
    wrong: list[str] = []
    device = ""
    for number in ranks:
        for controller in controllers:
            say(f"{number} ranks over {controller} ...")
            report = _run(number, controller, [(size, calls_for(size)) for size in sizes], batches)
            rows += [make_row(number, row) for row in report["rows"]]
            wrong += [f"{text} of {number}" for text in report["wrong"]]
            device = report["device"]
    created = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return Measurement(rows=tuple(rows), wrong=tuple(wrong), device=device, cores=usable_cores(), created=created)


def load(path: Path) -> Measurement:
    """A file that `hvdkit bench allreduce --output` wrote; InputError when it is not one."""
    try:
        values = json.loads(path.read_text())
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise InputError(f"{path} is no JSON ({error}); name a file of `hvdkit bench allreduce`.") from None
    if not isinstance(values, dict) or (values.get("version"), values.get("kind")) != (VERSION, KIND):
        raise InputError(f"{path} is not the result of `hvdkit bench allreduce` of this version.")
    try:
        rows = tuple(Row(**row) for row in values["rows"])
        rest = {name: values[name] for name in ("device", "cores", "created")}
        return Measurement(rows=rows, wrong=tuple(values["wrong"]), **rest)
    except (KeyError, TypeError) as error:
        raise InputError(f"{path} is damaged: {error}.") from None


def check_request(ranks: Sequence[int], controllers: Sequence[str], sizes: Sequence[int]) -> None:
    """InputError for what cannot be measured."""
    if not ranks or min(ranks) < 2:
        raise InputError("--workers: an allreduce needs at least 2 ranks.")
    unknown = [name for name in controllers if name not in CONTROLLERS]
    if not controllers or unknown:
        raise InputError(f"--controllers '{','.join(controllers)}': there are {', '.join(CONTROLLERS)}.")
    if not sizes or min(sizes) < 4:
        raise InputError("--sizes: the smallest message is 4 bytes, one number.")


def _run(ranks: int, controller: str, sizes: list[tuple[int, int]], batches: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="hvdkit-allreduce-") as folder:
        plan_file, result_file = Path(folder) / "plan.json", Path(folder) / "result.json"
        plan = {"controller": controller, "sizes": sizes, "batches": batches, "store": f"{folder}/store"}
        plan_file.write_text(json.dumps(plan))
        command = (sys.executable, "-m", "hvdkit.bench.allreduce_rank", str(plan_file), str(result_file))
        env = {**STALL_SECONDS, "GLOO_SOCKET_IFNAME": "lo"}
        spec = JobSpec(name="allreduce", command=command, workers=ranks, controller=controller, env=env)
        rendered = local.render(spec, read_machine())
        with contextlib.redirect_stdout(sys.stderr):  # what ranks say is for people; stdout is for the result
            outcome = run(rendered, RunOptions())
        if outcome.exit_code != 0 or not result_file.is_file():
            raise HvdkitError(
                f"{ranks} ranks over {controller} did not come to an end: {outcome.reason or 'no rank reported'}."
            )
        return json.loads(result_file.read_text())
