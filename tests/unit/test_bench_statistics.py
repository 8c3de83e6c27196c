"""Intervals hold what they promise, and tests err as seldom as they say."""

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdkit.bench.statistics import (
    CONFIDENCE,
    geometric_mean,
    holm,
    mean,
    paired_p,
    permutation_p,
    ratio_interval,
    smallest_p,
    smallest_paired_p,
    t_quantile,
)


# From printed tables of Student's distribution, two-sided, 95 %.
@pytest.mark.parametrize(
    ("degrees", "expected"),
    [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (5, 2.5706), (9, 2.2622), (14, 2.1448), (30, 2.0423)],
)
def test_t_is_that_of_the_tables(degrees: int, expected: float) -> None:
    assert t_quantile(degrees) == pytest.approx(expected, abs=5e-5)


def test_t_nears_the_normal_distribution() -> None:
    assert t_quantile(2000) == pytest.approx(statistics.NormalDist().inv_cdf((1 + CONFIDENCE) / 2), abs=2e-3)


def test_five_runs_hold_the_truth_as_often_as_promised_and_a_bootstrap_does_not() -> None:
    draw = random.Random(7)
    trials, by_t, by_bootstrap = 1000, 0, 0
    for _ in range(trials):
        runs = [100 * draw.lognormvariate(0, 0.1) for _ in range(5)]
        estimate = geometric_mean(runs)
        by_t += estimate.low <= 100 <= estimate.high
        logs = [math.log(run) for run in runs]
        means = sorted(sum(draw.choices(logs, k=5)) / 5 for _ in range(80))
        by_bootstrap += means[1] <= math.log(100) <= means[-2]
    assert 0.92 <= by_t / trials <= 0.97
    assert by_bootstrap / trials < 0.90  # why it is not used


def test_too_few_runs_have_no_interval() -> None:
    assert mean([]) is None
    assert geometric_mean([]) is None
    one = geometric_mean([3.0])
    assert (one.value, one.low, one.high, one.runs) == (pytest.approx(3.0), None, None, 1)


def test_geometric_mean_by_hand() -> None:
    estimate = geometric_mean([50.0, 200.0])
    assert estimate.value == pytest.approx(100)
    reach = t_quantile(1) * statistics.stdev([math.log(50), math.log(200)]) / math.sqrt(2)
    assert estimate.high == pytest.approx(100 * math.exp(reach))


@given(st.lists(st.floats(0.1, 1000), min_size=2, max_size=10), st.floats(0.01, 100))
def test_intervals_scale_with_their_unit(values: list[float], factor: float) -> None:
    one, other = geometric_mean(values), geometric_mean([factor * value for value in values])
    assert other.value == pytest.approx(one.scaled(factor).value)
    assert other.low == pytest.approx(one.scaled(factor).low) and other.low <= other.value <= other.high


def test_permutation_test_by_counting() -> None:
    # Of the 20 ways to deal 6 runs to two sides of 3, only this one and its mirror image differ so much.
    assert permutation_p([1, 2, 3], [4, 5, 6]) == pytest.approx(2 / 20) == smallest_p(3, 3)
    assert permutation_p([1, 2, 3], [1, 2, 3]) == 1.0
    assert permutation_p([5.0] * 5, [5.0] * 5) == 1.0


@given(st.lists(st.floats(1, 100), min_size=3, max_size=5), st.lists(st.floats(1, 100), min_size=3, max_size=5))
def test_permutation_test_does_not_care_which_side_is_which(a: list[float], b: list[float]) -> None:
    assert permutation_p(a, b) == pytest.approx(permutation_p(b, a))
    assert smallest_p(len(a), len(b)) <= permutation_p(a, b) + 1e-12 <= 1 + 1e-12


def test_many_runs_are_drawn_and_still_found_different() -> None:
    draw = random.Random(3)
    a = [draw.gauss(100, 3) for _ in range(15)]
    assert permutation_p(a, [draw.gauss(110, 3) for _ in range(15)]) < 0.001
    assert permutation_p(a, [draw.gauss(100, 3) for _ in range(15)]) > 0.05


def test_false_alarms_stay_below_the_level() -> None:
    draw = random.Random(11)
    alarms = 0
    for _ in range(400):
        runs = [100 * draw.lognormvariate(0, 0.05) for _ in range(10)]
        alarms += permutation_p(runs[:5], runs[5:]) <= 0.05
    assert alarms / 400 < 0.08


def test_ratio_interval_holds_the_ratio() -> None:
    draw = random.Random(5)
    inside = 0
    for _ in range(1000):
        a = [100 * draw.lognormvariate(0, 0.02) for _ in range(5)]
        b = [90 * draw.lognormvariate(0, 0.08) for _ in range(6)]
        estimate = ratio_interval(a, b)
        inside += estimate.low <= 0.9 <= estimate.high
    assert 0.93 <= inside / 1000 <= 0.985  # degrees of freedom are rounded down, to the safe side


def test_identical_runs_have_a_ratio_of_one() -> None:
    estimate = ratio_interval([5.0, 5.0], [5.0, 5.0])
    assert (estimate.value, estimate.low, estimate.high) == (1.0, 1.0, 1.0)


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == [True, False, False]  # 0.01 <= 0.05/3, then 0.03 > 0.05/2
    assert holm([0.01, 0.02, 0.03]) == [True, True, True]
    assert holm([0.5]) == [False] and holm([]) == []


def test_pairs_by_hand() -> None:
    assert paired_p([1.1, 1.2, 1.3, 1.1, 1.05, 1.2]) == smallest_paired_p(6) == 2 / 64
    assert paired_p([1.1, 1 / 1.1] * 3) == 1
    # Of 8 ways to turn three ratios around, only two bring them nearer to 1: where both small ones face the large one.
    assert paired_p([2.0, 1.1, 1 / 1.1]) == pytest.approx(6 / 8)


@pytest.mark.parametrize("rounds", [8, 20])  # all ways are counted; some are drawn
def test_pairs_of_the_same_thing_differ_as_seldom_as_promised(rounds: int) -> None:
    draw = random.Random(11)
    trials = 200
    wrong = sum(paired_p([draw.lognormvariate(0, 0.2) for _ in range(rounds)]) <= 0.05 for _ in range(trials))
    assert wrong / trials <= 0.09
