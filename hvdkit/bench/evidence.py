"""What the runs of a point say about each possible cause, as shares of a step's time, one a run. Pure."""

import statistics
from collections import Counter
from dataclasses import dataclass

from hvdkit.bench.points import IDEAL, Point
from hvdkit.bench.results import Results
from hvdkit.bench.samples import Figures
from hvdkit.bench.statistics import mean

Rounds = dict[int, Figures]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A point, and the points of the same sweep that it is compared with; all by round."""

    point: Point
    strong: bool
    runs: Rounds
    baseline: Rounds
    ideal: Rounds
    ideal_baseline: Rounds
    synthetic: Rounds
    hosts: list[str]
    threads: list[int]
    cores: list[int]
    """Of each rank: its host, its threads, and the cores it may use."""

    @classmethod
    def of(cls, results: Results, point: Point) -> "Case":
        def rounds(*, engine: str = point.engine, data: str = point.data, workers: int = point.workers) -> Rounds:
            return results.done(Point(data=data, engine=engine, workers=workers, slots=point.slots))

        run = next((run for run in results.of(point) if run.problem is None), None)
        return cls(
            point=point,
            strong=results.settings.mode == "strong",
            runs=rounds(),
            baseline=rounds(workers=1),
            ideal=rounds(engine=IDEAL),
            ideal_baseline=rounds(engine=IDEAL, workers=1),
            synthetic=rounds(data="synthetic"),
            hosts=run.hosts if run else [],
            threads=[rank["threads"] for rank in run.ranks] if run else [],
            cores=[rank["cores"] for rank in run.ranks] if run else [],
        )

    def ranks_on_fullest_host(self) -> int:
        return max(Counter(self.hosts).values())

    def threads_and_cores(self) -> tuple[int, int]:
        """Of the host with most ranks."""
        fullest = Counter(self.hosts).most_common(1)[0][0]
        there = [rank for rank, host in enumerate(self.hosts) if host == fullest]
        return sum(self.threads[rank] for rank in there), max(self.cores[rank] for rank in there)

    @property
    def crowded(self) -> bool:
        """More threads than cores on some host."""
        threads, cores = self.threads_and_cores()
        return threads > cores


def input_shares(case: Case) -> list[float]:
    return [run.parts["data"] / run.step_seconds for run in case.runs.values()]


def straggling_shares(case: Case) -> list[float] | None:
    """What the mean rank waits longer than the one that waits least; None when the engine cannot tell."""
    if any(run.parts["straggling"] is None for run in case.runs.values()):
        return None
    return [run.parts["straggling"] / run.step_seconds for run in case.runs.values()]


def communication_shares(case: Case) -> list[float] | None:
    """What the ranks lose to each other's company: three things.

    The least wait for the allreduce; what ranks take longer between steps, where they agree now and then on how they
    are, than independent processes, which do all else there; and the work that communication surely takes from the
    cores that compute. That work shows as computation that takes longer than in independent processes; it counts only
    where its interval is above 0, since waits are measured much more sharply. Together they cost no more than
    independent processes are faster: on crowded cores the fastest of these may have had a core to itself. None when the
    engine cannot tell its waits.
    """
    if any(run.parts["communication"] is None for run in case.runs.values()):
        return None
    between = agreeing_shares(case)
    waits = {
        number: run.parts["communication"] / run.step_seconds + between.get(number, 0.0)
        for number, run in case.runs.items()
    }
    # The fastest rank is asked, since a slow one has reasons of its own.
    work = {
        number: (_fastest_computation(run) - _fastest_computation(case.ideal[number])) / run.step_seconds
        for number, run in case.runs.items()
        if number in case.ideal
    }
    estimate = mean(list(work.values()))
    if estimate is None or estimate.low is None or estimate.low <= 0:
        return list(waits.values())
    gaps = dict(zip(work, gap_to_ideal(case), strict=True))
    return [min(waits[number] + work[number], max(waits[number], gaps[number])) for number in work]


def agreeing_shares(case: Case) -> dict[int, float]:
    """For each run that has independent processes beside it: what it takes longer than they between its steps."""
    return {
        number: max(0.0, run.parts["other"] - case.ideal[number].parts["other"]) / run.step_seconds
        for number, run in case.runs.items()
        if number in case.ideal
    }


def _fastest_computation(run: Figures) -> float:
    return min(own - data for own, data in zip(run.own_seconds, run.data_seconds, strict=True))


def gap_to_ideal(case: Case) -> list[float]:
    """The share of time that would be saved if the ranks were as fast as independent processes."""
    return [
        1 - run.images_per_second / case.ideal[number].images_per_second
        for number, run in case.runs.items()
        if number in case.ideal
    ]


def sharing_shares(case: Case) -> list[float]:
    """What independent processes lose against one alone, as a share of the real step."""
    shares = []
    for number, run in case.runs.items():
        if number in case.ideal and number in case.ideal_baseline:
            together, alone = case.ideal[number], case.ideal_baseline[number]
            efficiency = together.images_per_second / (case.point.workers * alone.images_per_second)
            shares.append((1 - efficiency) * together.step_seconds / run.step_seconds)
    return shares


@dataclass(frozen=True, kw_only=True)
class SlowRank:
    """A rank that is slower than the others in run after run."""

    rank: int
    host: str
    excesses: list[float]
    """For each run, what its own work takes longer than that of the others, as a share of a step."""

    data_part: float
    """How much of that is its wait for data."""


def slow_rank(case: Case, notable: float) -> SlowRank | None:
    """The rank with the longest own work, if it is notably so with confidence, and not by turns."""
    runs = list(case.runs.values())
    if case.point.ranks == 1 or not runs:
        return None
    means = [statistics.fmean(run.own_seconds[rank] for run in runs) for rank in range(case.point.ranks)]
    slowest = means.index(max(means))
    excesses = [_beyond_others(run.own_seconds, slowest) / run.step_seconds for run in runs]
    estimate = mean(excesses)
    if estimate is None or estimate.low is None or estimate.low <= notable:
        return None
    excess = sum(_beyond_others(run.own_seconds, slowest) for run in runs)
    data_part = sum(_beyond_others(run.data_seconds, slowest) for run in runs) / excess
    return SlowRank(rank=slowest, host=case.hosts[slowest], excesses=excesses, data_part=data_part)


def _beyond_others(values: tuple[float, ...], rank: int) -> float:
    others = [value for number, value in enumerate(values) if number != rank]
    return values[rank] - statistics.fmean(others)
