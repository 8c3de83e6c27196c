"""One run of a point: every rank's steps, and the figures that follow from them. Pure."""

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from hvdkit.bench.points import IDEAL, Point
from hvdkit.errors import HvdkitError
from hvdkit.runtime import results

SERIES = ("total", "data_wait", "allreduce_wait", "own")
PARTS = ("compute", "data", "communication", "straggling", "other")
"""Where a step's time goes; `other` is what the loop does between steps, such as agreeing on losses."""


class BadRun(HvdkitError):
    """A run whose log does not hold what was expected; the message says what is missing."""


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What one run gives."""

    images_per_second: float
    """Of all ranks, by the clock of the slowest one, warm-up left out."""

    step_seconds: float
    """Mean seconds from the end of one step of the world to the end of the next."""

    jitter: float
    """95th percentile of the world's step times over their median, minus 1; a step of the world is its slowest
    rank's."""

    parts: dict[str, float | None]
    """Seconds a step for each of PARTS, mean over ranks; they add up to step_seconds. None: the engine cannot tell."""

    own_seconds: tuple[float, ...]
    """Each rank's own work in a step, waiting for data included; where the wait for gradients hides in the backward
    pass, as with DDP, only what comes before that."""

    data_seconds: tuple[float, ...]
    """Each rank's wait for data in a step."""

    peak_memory_bytes: int
    """Of the rank that took most."""

    cores_used: float
    """Processor seconds of all ranks in a second."""


def read_log(lines: Iterable[str], point: Point) -> dict[str, Any]:
    """What a run's log says: {hosts, ranks, train, versions}. BadRun when it is not whole."""
    found = [result for result in results.collect(lines) if result.kind in ("train", "unknown")]
    for result in found:
        if result.problem is not None:
            raise BadRun(f"the result in the log is not whole: {result.problem}")
    expected = point.ranks if point.engine == IDEAL else 1
    if len(found) != expected:
        raise BadRun(f"the log holds {len(found)} results instead of {expected}; did the training get to its end?")
    payloads = [result.payload for result in found]
    ranks = [dict(rank) for payload in payloads for rank in payload["ranks"]]
    if len(ranks) != point.ranks:
        raise BadRun(f"the result tells of {len(ranks)} ranks instead of {point.ranks}")
    if point.engine == IDEAL:  # each of them believes to be rank 0
        for number, rank in enumerate(ranks):
            rank["rank"] = number
    hosts = [host for payload in payloads for host in payload["hosts"]]
    # To Horovod a pod is a host; what ranks share is the machine below.
    nodes = [rank.pop("node", None) for rank in ranks]
    return {
        "hosts": [node or host for node, host in zip(nodes, hosts, strict=True)],
        "ranks": ranks,
        "train": payloads[0]["summary"],
        "versions": payloads[0]["versions"],
    }


def figures(ranks: list[dict[str, Any]], *, ideal: bool, warmup: int) -> Figures:
    """The figures of a run from its ranks' records; BadRun when they do not belong together."""
    lengths = {len(values) for rank in ranks for values in (*rank["seconds"].values(), rank["images"], rank["ended"])}
    if len(lengths) != 1:
        raise BadRun(f"the ranks recorded different numbers of steps: {', '.join(map(str, sorted(lengths)))}")
    if lengths.pop() < 2 * warmup:
        raise BadRun(f"fewer than {2 * warmup} steps were recorded, of which {warmup} are warm-up")
    windows = _common_steps(ranks, warmup) if ideal else [range(warmup, len(rank["images"])) for rank in ranks]
    walls = [rank["ended"][steps[-1]] - rank["ended"][steps[0] - 1] for rank, steps in zip(ranks, windows, strict=True)]
    images = [sum(rank["images"][step] for step in steps) for rank, steps in zip(ranks, windows, strict=True)]
    cpu = [rank["cpu"][steps[-1]] - rank["cpu"][steps[0] - 1] for rank, steps in zip(ranks, windows, strict=True)]
    if min(walls) <= 0 or min(images) <= 0:
        raise BadRun("a rank has images or times that do not add up to more than 0")
    if ideal:  # they wait for nobody: each at its own pace
        pace = sum(count / wall for count, wall in zip(images, walls, strict=True))
        step_seconds = statistics.fmean(wall / len(steps) for wall, steps in zip(walls, windows, strict=True))
        pairs = zip(ranks, windows, strict=True)
        world_steps = [rank["seconds"]["total"][step] for rank, steps in pairs for step in steps]
    else:
        pace = sum(images) / max(walls)
        step_seconds = max(walls) / len(windows[0])
        world_steps = [max(rank["seconds"]["total"][step] for rank in ranks) for step in windows[0]]
    means = {name: _means(ranks, windows, name) for name in SERIES}
    return Figures(
        images_per_second=pace,
        step_seconds=step_seconds,
        jitter=_percentile(world_steps, 0.95) / statistics.median(world_steps) - 1,
        parts=_parts(ranks, windows, means, step_seconds, ideal=ideal),
        # A process alone records only what comes before its backward pass, as DDP does, but nothing hides in there.
        own_seconds=tuple(means["total" if ideal else "own"]),
        data_seconds=tuple(means["data_wait"]),
        peak_memory_bytes=max(rank["peak_memory_bytes"] for rank in ranks),
        cores_used=sum(seconds / wall for seconds, wall in zip(cpu, walls, strict=True)),
    )


def _common_steps(ranks: list[dict[str, Any]], warmup: int) -> list[range]:
    """For each independent process the steps that it took while all others were at work, too."""
    begin = max(rank["began"] + rank["ended"][warmup - 1] for rank in ranks)
    end = min(rank["began"] + rank["ended"][-1] for rank in ranks)
    windows = []
    for rank in ranks:
        moments = [rank["began"] + moment for moment in rank["ended"]]
        inside = [step for step in range(1, len(moments)) if moments[step - 1] >= begin and moments[step] <= end]
        if 2 * len(inside) < len(moments) - warmup:
            raise BadRun(
                f"the independent processes worked side by side for {len(inside)} of {len(moments) - warmup} steps only"
            )
        windows.append(range(inside[0], inside[-1] + 1))
    return windows


def _means(ranks: list[dict[str, Any]], windows: list[range], name: str) -> list[float]:
    return [
        statistics.fmean(rank["seconds"][name][steps.start : steps.stop])
        for rank, steps in zip(ranks, windows, strict=True)
    ]


def _parts(
    ranks: list[dict[str, Any]],
    windows: list[range],
    means: dict[str, list[float]],
    step_seconds: float,
    *,
    ideal: bool,
) -> dict[str, float | None]:
    """Where the step's time goes.

    All ranks wait for the last one, which itself waits only for the allreduce: in each step the least wait is
    communication, what the others wait longer is straggling. An engine that waits inside the backward pass shows no
    wait at all; then both are unknown and hide in `compute`.
    """
    data, total = statistics.fmean(means["data_wait"]), statistics.fmean(means["total"])
    communication = straggling = 0.0
    if not ideal:
        waits = [rank["seconds"]["allreduce_wait"][windows[0].start :] for rank in ranks]
        communication = statistics.fmean(map(min, zip(*waits, strict=True)))
        straggling = statistics.fmean(means["allreduce_wait"]) - communication
    known = ideal or any(means["allreduce_wait"])
    return {
        "compute": total - data - communication - straggling,
        "data": data,
        "communication": communication if known else None,
        "straggling": straggling if known else None,
        "other": max(0.0, step_seconds - total),
    }


def _percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]
