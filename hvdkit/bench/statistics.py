"""Intervals and tests over runs. Pure.

The unit is a run: the steps of one are correlated, and a thousand of them are still one draw of the machine's mood.
Throughputs are positive and their noise multiplies, so everything happens on logarithms: a mean is a geometric mean,
a difference is a ratio.

Intervals are Student's t, not a bootstrap: with five runs the percentiles of resampled means hold the true value in
about 83 of 100 cases and not in 95, t's in 95 (tests/unit/test_bench_statistics.py repeats this).

Ratios between points of one sweep are taken within a round, where both ran in the same minutes, and so are those
between two sweeps that were run by turns. Two sweeps that were run one after the other share no minute; then nothing
but the scatter of their runs tells chance from change. Both are permutation tests, which need no assumption about the
shape of the noise.
"""

import itertools
import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

CONFIDENCE = 0.95
LEVEL = 0.05  # of tests: so often they may call identical things different
MOST_SPLITS = 20_000  # up to 8 runs a side the permutation test counts all ways to deal them; beyond that it draws
DRAWN_SPLITS = 2_000  # enough to place p near 0.05 within 0.01


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A value with its 95 % interval; low and high are None where fewer than two runs tell nothing of it."""

    value: float
    low: float | None
    high: float | None
    runs: int

    def as_json(self) -> dict[str, float | int | None]:
        return {"value": self.value, "low": self.low, "high": self.high, "runs": self.runs}

    def scaled(self, factor: float) -> "Estimate":
        bounds = [None if bound is None else bound * factor for bound in (self.low, self.high)]
        return Estimate(value=self.value * factor, low=bounds[0], high=bounds[1], runs=self.runs)


def mean(values: Sequence[float]) -> Estimate | None:
    """The arithmetic mean, for shares and seconds, which may be 0."""
    if not values:
        return None
    centre = statistics.fmean(values)
    if len(values) < 2:
        return Estimate(value=centre, low=None, high=None, runs=len(values))
    reach = t_quantile(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return Estimate(value=centre, low=centre - reach, high=centre + reach, runs=len(values))


def geometric_mean(values: Sequence[float]) -> Estimate | None:
    """The geometric mean of positive values: throughputs, and their ratios within a round."""
    logs = mean([math.log(value) for value in values])
    if logs is None:
        return None
    bounds = [None if bound is None else math.exp(bound) for bound in (logs.low, logs.high)]
    return Estimate(value=math.exp(logs.value), low=bounds[0], high=bounds[1], runs=logs.runs)


@cache
def t_quantile(degrees: int, confidence: float = CONFIDENCE) -> float:
    """How many standard errors an interval of that confidence reaches to either side."""
    low, high = 0.0, 1e4
    for _ in range(100):  # halving: exact enough for any use, and no table to mistype
        middle = (low + high) / 2
        if _t_within(middle, degrees) < confidence:
            low = middle
        else:
            high = middle
    return high


def _t_within(t: float, degrees: int) -> float:
    """The share of Student's distribution between -t and t: a finite sum for whole degrees of freedom."""
    angle = math.atan(t / math.sqrt(degrees))
    cosine, odd = math.cos(angle), degrees % 2
    term = cosine if odd else 1.0
    total = 0.0
    for power in range(1 if odd else 0, degrees - 1, 2):
        if power > odd:
            term *= cosine**2 * (power - 1) / power
        total += term
    if odd:
        return 2 / math.pi * (angle + math.sin(angle) * total)
    return math.sin(angle) * total


def permutation_p(a: Sequence[float], b: Sequence[float]) -> float:
    """How often runs dealt to two sides at random differ in their mean logarithm at least as much as these do.

    Counted over all ways to deal them where these are few, else over random ones, the same in every call.
    """
    logs = [math.log(value) for value in (*a, *b)]
    total, size = math.fsum(logs), len(a)
    # With the sizes given, the sum of one side tells the difference of the means.
    expected = total * size / len(logs)
    observed = abs(math.fsum(logs[:size]) - expected) * (1 - 1e-9)  # equal sums may differ in their last bits
    ways = math.comb(len(logs), size)
    if ways <= MOST_SPLITS:
        sums = (sum(side) for side in itertools.combinations(logs, size))
        return sum(abs(value - expected) >= observed for value in sums) / ways
    generator = random.Random(1)
    hits = sum(abs(sum(generator.sample(logs, size)) - expected) >= observed for _ in range(DRAWN_SPLITS))
    return (hits + 1) / (DRAWN_SPLITS + 1)  # the one that was seen is one of the ways


def paired_p(ratios: Sequence[float]) -> float:
    """How often ratios within rounds are as far from 1 in their mean, when chance says which of a pair is above.

    Counted over all ways to turn them around where these are few, else over random ones, the same in every call.
    """
    logs = [math.log(ratio) for ratio in ratios]
    observed = abs(math.fsum(logs)) - 1e-9 * math.fsum(map(abs, logs))  # equal sums may differ in their last bits
    if 2 ** len(logs) <= MOST_SPLITS:
        sums = (sum(turned) for turned in itertools.product(*((value, -value) for value in logs)))
        return sum(abs(value) >= observed for value in sums) / 2 ** len(logs)
    generator = random.Random(1)
    hits = sum(abs(sum(generator.choice((1, -1)) * value for value in logs)) >= observed for _ in range(DRAWN_SPLITS))
    return (hits + 1) / (DRAWN_SPLITS + 1)


def smallest_p(size_a: int, size_b: int) -> float:
    """The least that the permutation test can give for so many runs."""
    return (2 if size_a == size_b else 1) / math.comb(size_a + size_b, size_a)


def smallest_paired_p(rounds: int) -> float:
    """The same for so many pairs."""
    return 2 / 2**rounds


def ratio_interval(a: Sequence[float], b: Sequence[float]) -> Estimate:
    """B / A of two independent sets of runs: Welch's interval, with its degrees of freedom rounded down."""
    logs_a, logs_b = ([math.log(value) for value in side] for side in (a, b))
    centre = statistics.fmean(logs_b) - statistics.fmean(logs_a)
    runs = min(len(a), len(b))
    if runs < 2:
        return Estimate(value=math.exp(centre), low=None, high=None, runs=runs)
    parts = [statistics.variance(side) / len(side) for side in (logs_a, logs_b)]
    error = math.sqrt(sum(parts))
    if error == 0:
        return Estimate(value=math.exp(centre), low=math.exp(centre), high=math.exp(centre), runs=runs)
    spread = sum(part**2 / (len(side) - 1) for part, side in zip(parts, (logs_a, logs_b), strict=True))
    reach = t_quantile(max(1, math.floor(error**4 / spread))) * error
    return Estimate(value=math.exp(centre), low=math.exp(centre - reach), high=math.exp(centre + reach), runs=runs)


def holm(p_values: Sequence[float], level: float = LEVEL) -> list[bool]:
    """Which of several tests hold when all of them together may err with that probability (Holm's steps)."""
    holds = [False] * len(p_values)
    for place, index in enumerate(sorted(range(len(p_values)), key=lambda index: p_values[index])):
        if p_values[index] > level / (len(p_values) - place):
            break
        holds[index] = True
    return holds
