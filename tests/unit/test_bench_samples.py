"""From ranks' records to figures: worked out by hand beside what the code says."""

import random

import pytest
from bench_samples import World, independent_records, rank_records

from hvdkit.bench.points import IDEAL, Point
from hvdkit.bench.samples import PARTS, BadRun, figures, read_log
from hvdkit.runtime import results

QUIET = {"noise": 0.0, "draw": random.Random(1)}


def point(engine: str = "horovod", workers: int = 2) -> Point:
    return Point(data="synthetic", engine=engine, workers=workers)


def log_of(*payloads: dict) -> list[str]:
    lines: list[str] = ["[0] a line that is no result"]
    for number, payload in enumerate(payloads):
        results.emit("train", payload, lambda line, number=number: lines.append(f"[{number}] {line}"))
    return lines


def payload(ranks: list[dict]) -> dict:
    return {"summary": {"engine": "horovod"}, "hosts": ["h"] * len(ranks), "ranks": ranks, "versions": {}}


def test_a_slow_rank_costs_what_it_costs_by_hand() -> None:
    world = World(compute=0.1, data=0.01, communication=0.02, slower={1: 0.05}, between=0.0)
    found = figures(rank_records(world, 2, 40, **QUIET), ideal=False, warmup=5)
    step = 0.01 + 0.15 + 0.02  # both ranks: data, the slower computation, the allreduce
    assert found.step_seconds == pytest.approx(step)
    assert found.images_per_second == pytest.approx(2 * 64 / step)
    assert found.parts["communication"] == pytest.approx(0.02)
    assert found.parts["straggling"] == pytest.approx(0.05 / 2)  # one of two ranks waits 0.05
    assert found.parts["data"] == pytest.approx(0.01)
    assert found.parts["compute"] == pytest.approx((0.1 + 0.15) / 2)
    assert found.own_seconds == (pytest.approx(0.11), pytest.approx(0.16))
    assert found.jitter == pytest.approx(0)


def test_ranks_that_take_turns_are_straggling_and_not_communication() -> None:
    """Over a run every rank waits 0.05 on average; only step by step it shows that the last one never does."""
    world = World(communication=0.01, turns=0.1)
    found = figures(rank_records(world, 2, 45, **QUIET), ideal=False, warmup=5)
    assert found.parts["communication"] == pytest.approx(0.01)
    assert found.parts["straggling"] == pytest.approx(0.05)
    assert found.own_seconds[0] == pytest.approx(found.own_seconds[1])


@pytest.mark.parametrize("hidden", [False, True])
def test_parts_add_up_to_the_step(hidden: bool) -> None:
    world = World(data=0.03, communication=0.02, slower={2: 0.01}, between=0.004, waits_hidden=hidden)
    found = figures(rank_records(world, 3, 40, noise=0.1, draw=random.Random(2)), ideal=False, warmup=5)
    assert set(found.parts) == set(PARTS)
    assert sum(part or 0 for part in found.parts.values()) == pytest.approx(found.step_seconds)
    assert found.parts["other"] == pytest.approx(0.004, rel=1e-6)
    assert (found.parts["communication"] is None) == (found.parts["straggling"] is None) == hidden


def test_warm_up_does_not_count() -> None:
    ranks = rank_records(World(), 2, 40, **QUIET)
    slow = [dict(rank, ended=[moment + 100 for moment in rank["ended"]]) for rank in ranks]
    for rank in slow:
        rank["seconds"] = {name: [99.0] * 5 + values[5:] for name, values in rank["seconds"].items()}
    found, expected = (figures(records, ideal=False, warmup=5) for records in (slow, ranks))
    assert found.images_per_second == pytest.approx(expected.images_per_second)
    assert found.parts == pytest.approx(expected.parts) and found.jitter == expected.jitter


def test_the_slowest_rank_is_the_clock() -> None:
    ranks = rank_records(World(between=0.0, data=0.0), 2, 40, **QUIET)
    ranks[1]["ended"] = [2 * moment for moment in ranks[1]["ended"]]
    found = figures(ranks, ideal=False, warmup=5)
    assert found.images_per_second == pytest.approx(2 * 64 / (2 * 0.101))


def test_independent_processes_count_while_all_work() -> None:
    """The first is faster and stops early: only the time before that counts for the second."""
    fast = independent_records(World(compute=0.08, data=0.0, between=0.0), 1, 40, **QUIET)
    slow = independent_records(World(compute=0.1, data=0.0, between=0.0), 1, 40, **QUIET)
    for step in range(33, 40):  # alone on the machine, which must not count
        slow[0]["ended"][step] = slow[0]["ended"][32] + 0.001 * (step - 32)
    found = figures(fast + slow, ideal=True, warmup=2)
    assert found.images_per_second == pytest.approx(64 / 0.08 + 64 / 0.1)


def test_independent_processes_that_never_met_are_no_ideal() -> None:
    ranks = independent_records(World(), 2, 40, **QUIET)
    ranks[1]["began"] += 3.5  # of the 4 s that 40 steps take
    with pytest.raises(BadRun, match="side by side for"):
        figures(ranks, ideal=True, warmup=5)


def test_ranks_with_different_numbers_of_steps_are_refused() -> None:
    ranks = rank_records(World(), 2, 40, **QUIET)
    ranks[1]["images"] = ranks[1]["images"][:-1]
    with pytest.raises(BadRun, match="39, 40"):
        figures(ranks, ideal=False, warmup=5)


def test_a_log_gives_back_the_ranks() -> None:
    ranks = rank_records(World(), 2, 40, **QUIET)
    found = read_log(log_of(payload(ranks)), point())
    assert found["ranks"] == ranks and found["hosts"] == ["h", "h"]


def test_independent_processes_get_numbers() -> None:
    both = [payload(independent_records(World(batch=batch), 1, 40, **QUIET)) for batch in (64, 65)]
    found = read_log(log_of(*both), point(IDEAL))
    assert [rank["rank"] for rank in found["ranks"]] == [0, 1]


@pytest.mark.parametrize(
    ("lines", "workers", "said"),
    [
        ([], 2, "0 results instead of 1"),
        (["HVDKIT_RESULT v1 train rubbish"], 2, "not whole: a line of it is damaged"),
        (log_of(payload(rank_records(World(), 2, 40, **QUIET))), 4, "2 ranks instead of 4"),
    ],
)
def test_a_log_without_a_whole_result_is_refused(lines: list[str], workers: int, said: str) -> None:
    with pytest.raises(BadRun, match=said):
        read_log(lines, point(workers=workers))


def test_a_cut_log_is_refused() -> None:
    lines = log_of(payload(rank_records(World(), 4, 400, noise=0.1, draw=random.Random(1))))
    assert len(lines) > 3
    with pytest.raises(BadRun, match="lost or damaged"):
        read_log(lines[:-1], point(workers=4))
