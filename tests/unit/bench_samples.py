"""Sweeps made up from stated times, so that tests know what should come out."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hvdkit.bench.points import IDEAL, Point, SweepSettings
from hvdkit.bench.results import Results, Run

ENVIRONMENT = {
    "processor": "made up",
    "cores": 4,
    "memory_bytes": 2**34,
    "system": "Linux",
    "versions": {"python": "3.11.7", "torch": "2.15.0"},
}


@dataclass(frozen=True, kw_only=True)
class World:
    """What the ranks of a run do in a step, in seconds."""

    compute: float = 0.1
    data: float = 0.001
    communication: float = 0.001
    slower: dict[int, float] = field(default_factory=dict)
    """Rank → what its computation takes longer."""

    turns: float = 0.0
    """What one rank takes longer in each step, another one every time."""

    between: float = 0.0005
    """Bookkeeping between two steps."""

    waits_hidden: bool = False
    """As in DDP: the wait happens inside the backward pass."""

    cores: int = 4
    threads: int = 1
    batch: int = 64


def rank_records(world: World, ranks: int, steps: int, *, noise: float, draw: random.Random) -> list[dict[str, Any]]:
    """Every rank's record of a run whose ranks wait for the slowest in each step."""
    pace = draw.lognormvariate(0, noise)  # the machine's mood, one a run
    times: list[list[tuple[float, float, float]]] = [[] for _ in range(ranks)]  # data, compute, wait
    for step in range(steps):
        computes = [
            pace * draw.lognormvariate(0, noise / 2) * world.compute
            + world.slower.get(rank, 0.0)
            + (world.turns if step % ranks == rank else 0.0)
            for rank in range(ranks)
        ]
        for rank, compute in enumerate(computes):
            times[rank].append((world.data, compute, max(computes) - compute + world.communication))
    return [_record(rank, steps_of_rank, world) for rank, steps_of_rank in enumerate(times)]


def independent_records(world: World, count: int, steps: int, *, noise: float, draw: random.Random) -> list[dict]:
    pace = draw.lognormvariate(0, noise)
    alone = replace(world, waits_hidden=True)  # they wait for nobody, but note the same as DDP

    def seconds(number: int) -> float:
        return pace * draw.lognormvariate(0, noise / 2) * world.compute + world.slower.get(number, 0.0)

    return [
        _record(number, [(world.data, seconds(number), 0.0) for _ in range(steps)], alone) for number in range(count)
    ]


def _record(rank: int, steps: Sequence[tuple[float, float, float]], world: World) -> dict[str, Any]:
    ended, cpu, now = [], [], 0.0
    for number, (data, compute, wait) in enumerate(steps):
        now += data + compute + wait + (world.between if number else 0.0)
        ended.append(now)
        cpu.append((number + 1) * 0.9 * compute)
    hidden = world.waits_hidden
    return {
        "rank": rank,
        "seconds": {
            "total": [sum(parts) for parts in steps],
            "data_wait": [data for data, _, _ in steps],
            "allreduce_wait": [0.0 if hidden else wait for _, _, wait in steps],
            # DDP knows only the forward pass, a third of the computation, as its own.
            "own": [data + (compute / 3 if hidden else compute) for data, compute, _ in steps],
        },
        "images": [world.batch] * len(steps),
        "began": 1_700_000_000.0,
        "ended": ended,
        "cpu": cpu,
        "peak_memory_bytes": 300 * 2**20 + rank,
        "threads": world.threads,
        "cores": world.cores,
    }


def make_results(
    worlds: dict[tuple[str, int], World],
    *,
    data: tuple[str, ...] = ("synthetic",),
    repeats: int = 5,
    steps: int = 40,
    noise: float = 0.02,
    seed: int = 1,
    ranks_a_host: int = 100,
    name: str = "made-up",
    **settings: Any,
) -> Results:
    """A sweep with the given worlds: (engine, workers) → what happens there; the same for all data sets."""
    draw = random.Random(seed)
    workers = tuple(sorted({count for _, count in worlds}))
    engines = tuple(dict.fromkeys(engine for engine, _ in worlds if engine != IDEAL))
    ideal = any(engine == IDEAL for engine, _ in worlds)
    made = SweepSettings(
        workers=workers,
        engines=engines,
        data=data,
        repeats=repeats,
        steps=steps,
        warmup_steps=5,
        ideal=ideal,
        **settings,
    )
    results = Results(settings=made, environment=ENVIRONMENT, created="2026-01-01T00:00:00Z", name=name)
    for repeat, point in made.schedule():
        if (point.engine, point.workers) in worlds:
            results.add(make_run(point, repeat, worlds[point.engine, point.workers], steps, noise, draw, ranks_a_host))
    return results


def make_run(
    point: Point, repeat: int, world: World, steps: int, noise: float, draw: random.Random, ranks_a_host: int = 100
) -> Run:
    make = independent_records if point.engine == IDEAL else rank_records
    return Run(
        point=point,
        repeat=repeat,
        warmup=5,
        began=1_700_000_000.0 + repeat,
        seconds=10.0,
        load_before=0.5,
        hosts=[f"host-{rank // ranks_a_host}" for rank in range(point.ranks)],
        ranks=make(world, point.ranks, steps, noise=noise, draw=draw),
        train={"engine": point.engine},
        versions={"torch": "2.15.0"},
    )
