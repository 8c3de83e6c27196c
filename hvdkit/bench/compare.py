"""Is B faster than A? A permutation test over runs for each point that both have. Pure.

Sweeps that were run by turns, a round of A and a round of B, are compared round by round: a slow hour hits both alike.
Of sweeps that were run one after the other only the scatter within each is known, and an hour that was slower looks
like code that is slower; the independent processes of both tell whether it was.

All points together may err with probability LEVEL (Holm's correction): identical code is called different in at most
5 of 100 comparisons, however many points there are.
"""

import itertools
import math
import shlex
import statistics
from dataclasses import asdict, dataclass
from typing import Any

from hvdkit.bench.points import FEWEST_REPEATS, IDEAL, Point
from hvdkit.bench.results import Results
from hvdkit.bench.statistics import (
    LEVEL,
    Estimate,
    geometric_mean,
    holm,
    paired_p,
    permutation_p,
    ratio_interval,
    smallest_p,
    smallest_paired_p,
)
from hvdkit.errors import InputError

FASTER, SLOWER, SAME = "faster", "slower", "no difference"

NOTABLE = 0.1  # the slowdown for which the needed number of runs is told
_NINE_IN_TEN = 1.28  # standard errors by which a difference must be beyond the significant one to be found so often
# Flags that change what is measured: results that differ in one of them answer different questions.
MUST_AGREE = ("slots", "mode", "model", "batch_size", "threads")
# Flags that may be what is compared, or a mistake: the reader is told.
SHOULD_BE_KNOWN = {
    "steps": "number of --steps",
    "warmup_steps": "number of --warmup-steps",
    "env": "environment by --env",
    "job": "description of the jobs",
    "train_args": "set of flags for hvdkit train",
}


@dataclass(frozen=True, kw_only=True)
class PointComparison:
    """One point of both results."""

    point: Point
    ratio: Estimate
    """Throughput of B over that of A, with its 95 % interval: Student's over rounds, or Welch's over runs."""

    by_turns: bool
    """Whether rounds were compared, or all runs of one side with all of the other."""

    p: float
    answer: str
    smallest_difference: float | None
    """A ratio this far from 1 would have been found about nine times in ten, given the noise of these runs. None: so
    few runs can show no difference at so many points."""

    runs_needed: int
    """Runs of each side with which a slowdown of NOTABLE would be found about nine times in ten."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """B against A."""

    points: list[PointComparison]
    unjudged: list[Point]
    """Points with enough runs in A and too few in B: whether B is slower there, nobody knows."""

    notes: list[str]
    """What a reader should know before believing it."""

    machine_compared: bool
    """Whether both have enough runs of independent processes at some point, which show a machine that was slower."""

    @property
    def slower(self) -> bool:
        return any(found.answer == SLOWER for found in self.points)

    @property
    def answer(self) -> str:
        """Of all points together; `mixed` when some are faster and some slower."""
        answers = {found.answer for found in self.points} - {SAME}
        return "mixed" if len(answers) == 2 else answers.pop() if answers else SAME

    def as_json(self) -> dict[str, Any]:
        values = {"version": 1, "level": LEVEL, "answer": self.answer}
        return values | asdict(self)


def compare(a: Results, b: Results) -> Comparison:
    """Compare every point that both have; InputError when they answer different questions."""
    for flag in MUST_AGREE:
        first, second = getattr(a.settings, flag), getattr(b.settings, flag)
        if first != second:
            name = flag.replace("_", "-")
            raise InputError(f"--{name}: A was measured with {first} and B with {second}; that is no comparison.")
    of_a, of_b = ([point for point in side.points() if point.engine != IDEAL] for side in (a, b))
    shared = [point for point in of_a if point in of_b]
    tested = [point for point in shared if min(len(side.done(point)) for side in (a, b)) >= FEWEST_REPEATS]
    if not tested:
        raise InputError(f"A and B have no point with {FEWEST_REPEATS} successful runs in common.")
    notes = _notes(a, b)
    for point in shared:
        if point not in tested:
            notes.append(f"{point}: left out, for fewer than {FEWEST_REPEATS} successful runs on a side")
    for side, points in (("A", of_a), ("B", of_b)):
        notes += [f"{point}: left out, for only {side} has it" for point in points if point not in shared]
    sides = [_Sides.of(a, b, point, tests=len(tested)) for point in tested]
    if min(both.smallest_p for both in sides) > LEVEL / len(tested):
        notes.append(f"so few runs cannot show a difference at any of {len(tested)} points; raise --repeats")
    found = zip(tested, sides, holm([both.p for both in sides]), strict=True)
    return Comparison(
        points=[_point(point, both, holds) for point, both, holds in found],
        unjudged=[point for point in of_a if point not in tested and len(a.done(point)) >= FEWEST_REPEATS],
        notes=notes,
        machine_compared=bool(_shared_ideals(a, b)),
    )


def fewest_rounds(tests: int) -> int:
    """With fewer rounds by turns, even B slower in all of them is no difference at any of so many points."""
    return next(rounds for rounds in itertools.count(1) if smallest_paired_p(rounds) <= LEVEL / tests)


@dataclass(frozen=True, kw_only=True)
class _Sides:
    """The throughputs of a point: of each run, and B over A in each round if they were run by turns."""

    a: list[float]
    b: list[float]
    ratios: list[float]
    tests: int
    """Points that are compared together."""

    @classmethod
    def of(cls, a: Results, b: Results, point: Point, *, tests: int) -> "_Sides":
        first, second = ({run.repeat: run for run in side.of(point) if run.problem is None} for side in (a, b))
        rounds = sorted(first.keys() & second.keys())
        turns = [sorted((first[number].began, second[number].began)) for number in rounds]
        by_turns = len(rounds) >= fewest_rounds(tests) and all(
            before[1] < after[0] for before, after in itertools.pairwise(turns)
        )
        paces = [{number: run.figures.images_per_second for number, run in side.items()} for side in (first, second)]
        ratios = [paces[1][number] / paces[0][number] for number in rounds] if by_turns else []
        return cls(a=list(paces[0].values()), b=list(paces[1].values()), ratios=ratios, tests=tests)

    @property
    def p(self) -> float:
        return paired_p(self.ratios) if self.ratios else permutation_p(self.a, self.b)

    @property
    def smallest_p(self) -> float:
        return smallest_paired_p(len(self.ratios)) if self.ratios else smallest_p(len(self.a), len(self.b))

    @property
    def sure(self) -> float:
        """Standard errors of a difference that is significant among so many points, and found nine times in ten."""
        return statistics.NormalDist().inv_cdf(1 - LEVEL / self.tests / 2) + _NINE_IN_TEN

    @property
    def ratio(self) -> Estimate:
        return geometric_mean(self.ratios) if self.ratios else ratio_interval(self.a, self.b)

    @property
    def variance(self) -> float:
        """Of the logarithm of B over A, for one run of each side."""
        if self.ratios:
            return _variance(self.ratios)
        return _variance(self.a) + _variance(self.b)

    @property
    def error(self) -> float:
        """The standard error of the logarithm of the ratio."""
        if self.ratios:
            return math.sqrt(_variance(self.ratios) / len(self.ratios))
        return math.sqrt(_variance(self.a) / len(self.a) + _variance(self.b) / len(self.b))


def _variance(values: list[float]) -> float:
    return statistics.variance([math.log(value) for value in values])


def _paces(results: Results, point: Point) -> list[float]:
    return [figures.images_per_second for figures in results.done(point).values()]


def _point(point: Point, both: _Sides, holds: bool) -> PointComparison:
    ratio = both.ratio
    # The usual formula, and what Student's distribution asks for beyond the normal one.
    needed = math.ceil(both.variance * (both.sure / math.log(1 - NOTABLE)) ** 2) + (2 if both.ratios else 1)
    return PointComparison(
        point=point,
        ratio=ratio,
        by_turns=bool(both.ratios),
        p=both.p,
        answer=(FASTER if ratio.value > 1 else SLOWER) if holds else SAME,
        smallest_difference=1 - math.exp(-both.sure * both.error) if both.smallest_p <= LEVEL / both.tests else None,
        runs_needed=max(fewest_rounds(both.tests), needed),
    )


def _notes(a: Results, b: Results) -> list[str]:
    notes = []
    if a.settings.backend != b.settings.backend:
        notes.append(f"another backend: {a.settings.backend} for A, {b.settings.backend} for B")
    for field, words in SHOULD_BE_KNOWN.items():
        first, second = (getattr(side.settings, field) for side in (a, b))
        if first != second:
            notes.append(f"another {words}: {_text(first)} for A, {_text(second)} for B")
    on_a_cluster = "local" not in (a.settings.backend, b.settings.backend)
    for fact in () if on_a_cluster else ("processor", "cores"):  # of the desk that such a sweep was started from
        if a.environment.get(fact) != b.environment.get(fact):
            notes.append(f"another {fact}: {a.environment.get(fact)} for A, {b.environment.get(fact)} for B")
    of_b = _versions(b)
    for package, version in _versions(a).items():
        if of_b.get(package) != version:
            notes.append(f"another {package}: {version} for A, {of_b.get(package)} for B")
    notes += _machine_notes(a, b)
    return notes


def _text(value: int | tuple[str, ...]) -> str:
    return str(value) if isinstance(value, int) else shlex.join(value) or "none"


def _versions(results: Results) -> dict[str, str]:
    """Of the ranks themselves, which may run in images; before the first run, of the machine that asked."""
    done = next((run for run in results.runs if run.problem is None and run.versions), None)
    return done.versions if done else results.environment.get("versions", {})


def _shared_ideals(a: Results, b: Results) -> list[Point]:
    """Points of independent processes that both sides have measured often enough."""
    ideals = [point for point in a.points() if point.engine == IDEAL]
    return [point for point in ideals if min(len(side.done(point)) for side in (a, b)) >= FEWEST_REPEATS]


def _machine_notes(a: Results, b: Results) -> list[str]:
    """Independent processes know nothing of what is compared: when they differ, the machine was another."""
    pairs = [(point, _paces(a, point), _paces(b, point)) for point in _shared_ideals(a, b)]
    differs = holm([permutation_p(first, second) for _, first, second in pairs])
    return [
        f"the machine itself was {100 * (ratio_interval(first, second).value - 1):+.0f} % at {point.workers} "
        f"independent process{'' if point.workers == 1 else 'es'} of B ({point.data}): this is not all the code's doing"
        for (point, first, second), other in zip(pairs, differs, strict=True)
        if other
    ]
