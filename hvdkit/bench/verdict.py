"""What limits a sweep: causes that its data carry, each with the evidence and what to try. Pure.

A cause is named only when the 95 % interval of its share of a step's time lies above NOTABLE as a whole. Where the
data do not decide, the verdict says so.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from hvdkit.bench.evidence import (
    Case,
    agreeing_shares,
    communication_shares,
    gap_to_ideal,
    input_shares,
    sharing_shares,
    slow_rank,
    straggling_shares,
)
from hvdkit.bench.points import FEWEST_REPEATS
from hvdkit.bench.results import Results
from hvdkit.bench.statistics import Estimate, geometric_mean, mean
from hvdkit.bench.summary import ratios

NOTABLE = 0.05  # of a step's time: less is not worth a word

TOGETHER = "working together"
ADVICE = {
    "communication": "larger batches or --accumulate, --compression fp16, a faster network, or fewer ranks",
    TOGETHER: "--engines horovod,ddp, which tells the two apart; for the network, larger batches or a faster one; for "
    "ranks that wait, leave a core to the system, pin them, and look for other work on the machines",
    "input": "more --loader-workers, --cache-dir on a local disk, smaller files, or data in memory",
    "stragglers": "look at that rank's host: other work, heat, slower hardware or storage; or leave it out",
    "jitter": "leave a core to the system, pin the ranks, and look for other work on the machine",
    "oversubscription": "no more ranks than cores, or more machines; these ranks only take turns",
    "threads": "fewer --threads a rank, so that ranks x threads are not more than the cores",
    "shared machine": "these cores share caches, memory or hyper-threads, or others use them: try other machines",
    "small batches": "a larger batch: in strong mode each rank's share of it has become too small to be efficient",
}


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One cause."""

    cause: str
    share: Estimate
    """Of a step's time that it costs."""

    evidence: list[str]
    advice: str


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What limits one engine on one data set, at its largest point that has enough runs."""

    engine: str
    data: str
    workers: int
    efficiency: Estimate | None
    limits: list[Finding] = field(default_factory=list)
    """The largest first; empty when the data carry no cause."""

    text: str
    """One sentence."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    judgements: list[Judgement]

    def as_json(self) -> list[dict[str, Any]]:
        return [asdict(judgement) for judgement in self.judgements]


def diagnose(results: Results) -> Verdict:
    """A judgement for each engine and data set of the sweep."""
    series = [(engine, data) for data in results.settings.data for engine in results.settings.engines]
    return Verdict(judgements=[_judge(results, engine, data) for engine, data in series])


def _judge(results: Results, engine: str, data: str) -> Judgement:
    case = _largest(results, engine, data)
    if case is None:
        text = f"{engine}, {data}: no point has {FEWEST_REPEATS} runs that succeeded, too few for a verdict."
        return Judgement(engine=engine, data=data, workers=0, efficiency=None, text=text)
    speedup = geometric_mean(ratios(case.runs, case.baseline)) if case.point.workers > 1 else None
    efficiency = speedup and speedup.scaled(1 / case.point.workers)
    looks = [look(case) for look in LOOKS]
    certain = [finding for finding in looks if finding is not None and finding.share.low > NOTABLE]
    limits = sorted(certain, key=lambda finding: finding.share.value, reverse=True)
    return Judgement(
        engine=engine,
        data=data,
        workers=case.point.workers,
        efficiency=efficiency,
        limits=limits,
        text=_sentence(case, efficiency, limits, looks),
    )


def _largest(results: Results, engine: str, data: str) -> Case | None:
    cases = [Case.of(results, point) for point in results.points() if (point.engine, point.data) == (engine, data)]
    enough = [case for case in cases if len(case.runs) >= FEWEST_REPEATS]
    return max(enough, key=lambda case: case.point.workers, default=None)


def _finding(cause: str, shares: list[float], evidence: Callable[[], list[str]]) -> Finding | None:
    """The cause with what it costs, be it next to nothing; None if too few runs tell."""
    share = mean(shares)
    if share is None or share.runs < FEWEST_REPEATS:
        return None
    return Finding(cause=cause, share=share, evidence=evidence(), advice=ADVICE[cause])


def look_for_input(case: Case) -> Finding | None:
    def evidence() -> list[str]:
        said = [f"ranks wait {percent(mean(input_shares(case)))} of each step for data"]
        if case.point.data != "synthetic" and case.synthetic:
            ratio = geometric_mean(ratios(case.runs, case.synthetic))
            said.append(f"throughput is {percent(ratio)} of that with synthetic data in the same rounds")
        return said

    return _finding("input", input_shares(case), evidence)


def look_for_stragglers(case: Case) -> Finding | None:
    slow = slow_rank(case, NOTABLE)
    if case.crowded and slow is None:
        return None  # ranks that share cores take turns, and wait for each other: that is no cause of its own
    waits, at_least = straggling_shares(case), ""
    if waits is None:  # the engine does not tell its waits; a slow rank shows in its own work all the same
        ranks = case.point.ranks
        waits = [excess * (ranks - 1) / ranks for excess in slow.excesses] if slow else []  # all others wait for it
        at_least = "at least "  # of its own work only the forward pass is known

    def evidence() -> list[str]:
        said = [f"the mean rank waits {at_least}{percent(mean(waits))} of each step for slower ones"]
        if slow:
            behind = percent(mean(slow.excesses))
            said.append(f"rank {slow.rank} on {slow.host} works {at_least}{behind} of a step longer than the others")
            if slow.data_part > 0.5:
                said.append("most of that is its wait for data: look at that host's storage first")
        else:
            said.append("no rank is slower than the others in all runs: they take turns")
        return said

    if slow is None:
        return _finding("jitter", waits, evidence)
    # All lose what the slow rank works longer, also that rank itself, which never waits; its wait for data is input's.
    own = 1 - slow.data_part / case.point.ranks
    costs = [max(wait, own * excess) for wait, excess in zip(waits, slow.excesses, strict=True)]
    return _finding("stragglers", costs, evidence)


def look_for_communication(case: Case) -> Finding | None:
    if case.point.ranks == 1 or (case.crowded and not case.ideal):
        return None  # on crowded cores everything takes longer; only the ideal tells how much of it is the machine
    shares = communication_shares(case)
    if shares is None:
        return _look_for_hidden_waits(case)
    waits = [run.parts["communication"] / run.step_seconds for run in case.runs.values()]

    def evidence() -> list[str]:
        said = [f"even the rank that waits least waits {percent(mean(waits))} of each step for the allreduce"]
        agreeing = mean(list(agreeing_shares(case).values()))
        if agreeing is not None and agreeing.value > NOTABLE / 2:
            said.append(f"ranks that agree on their state between steps take {percent(agreeing)} of the time for it")
        if case.ideal:
            gap = mean(gap_to_ideal(case))
            said.append(f"{percent(gap)} slower than {case.point.ranks} independent processes in the same rounds")
        return said

    return _finding("communication", shares, evidence)


def _look_for_hidden_waits(case: Case) -> Finding | None:
    """For an engine that reduces inside the backward pass: what independent processes do not lose, it does."""
    if case.crowded or slow_rank(case, NOTABLE) is not None:
        return None  # ranks that take turns on their cores, or wait for a slow one, have that cause and no other

    def evidence() -> list[str]:
        gap = percent(mean(gap_to_ideal(case)))
        return [
            f"{gap} slower than {case.point.ranks} independent processes in the same rounds",
            f"{case.point.engine} does not tell waiting for the network from waiting for other ranks",
        ]

    return _finding(TOGETHER, gap_to_ideal(case), evidence)


def look_for_sharing(case: Case) -> Finding | None:
    """What even independent processes lose: the machine's doing, not the network's."""
    if case.point.ranks == 1:
        return None
    threads, cores = case.threads_and_cores()
    crowded = case.crowded
    if crowded:
        cause = "oversubscription" if case.ranks_on_fullest_host() > cores else "threads"
    else:
        cause = "small batches" if case.strong else "shared machine"

    def evidence() -> list[str]:
        efficiency = geometric_mean(ratios(case.ideal, case.ideal_baseline)).scaled(1 / case.point.workers)
        said = [f"{case.point.ranks} independent processes without communication reach {percent(efficiency)} a process"]
        if crowded:
            said.append(f"{threads} threads share {cores} core{'' if cores == 1 else 's'}")
        else:
            said.append(f"though their {threads} threads have {cores} cores")
        return said

    return _finding(cause, sharing_shares(case), evidence)


LOOKS = (look_for_input, look_for_stragglers, look_for_communication, look_for_sharing)


def _sentence(case: Case, efficiency: Estimate | None, limits: list[Finding], looks: list[Finding | None]) -> str:
    where = f"{case.point.engine}, {case.point.data}, {case.point.workers} worker{'s'[: case.point.workers > 1]}"
    if efficiency is not None:
        reached = f"efficiency {percent(efficiency)}"
    else:
        reached = "the baseline alone" if case.point.workers == 1 else "efficiency unknown: no baseline"
    if limits:
        causes = [f"{_in_words(finding.cause)} ({percent(finding.share)} of a step)" for finding in limits]
        return f"{where}: {reached}; limited by {', then '.join(causes)}{_remainder(efficiency, limits)}."
    if _nothing_lost(case, efficiency, looks):
        return f"{where}: {reached}; nothing limits it notably."
    if efficiency is not None and efficiency.high is not None and efficiency.high < 1 - NOTABLE:
        open_question = "something is lost, but these data do not say to what"
    else:
        open_question = "these data do not decide whether something limits it"
    return (
        f"{where}: {reached}; {open_question}: no cause is above {NOTABLE:.0%} of a step with confidence. "
        "More --repeats or longer runs (--steps) would narrow it."
    )


def _remainder(efficiency: Estimate | None, limits: list[Finding]) -> str:
    """What is lost beyond the causes that are named; data that come late are late for one worker, too."""
    if efficiency is None or any(finding.cause == "input" for finding in limits):
        return ""
    lost = 1 - efficiency.value - sum(finding.share.value for finding in limits)
    return f"; these data do not say what the other {lost:.0%} are lost to" if lost > 2 * NOTABLE else ""


def _in_words(cause: str) -> str:
    return f"{cause}: the network, or ranks that wait for each other" if cause == TOGETHER else cause


def _nothing_lost(case: Case, efficiency: Estimate | None, looks: list[Finding | None]) -> bool:
    """Whether efficiency, or else every cause by itself, is so good with its whole interval."""
    small = [None if finding is None else finding.share.high < NOTABLE for finding in looks]
    by_input, _, by_communication, by_machine = small  # in the order of LOOKS
    if efficiency is not None and efficiency.low is not None and efficiency.low > 1 - NOTABLE:
        return bool(by_input)  # of which efficiency tells nothing: one worker alone waits for it as well
    if case.point.ranks > 1 and None in (by_communication, by_machine):
        return False
    return False not in small


def percent(estimate: Estimate | None) -> str:
    """`87 % (81 … 93)`."""
    if estimate is None:
        return "unknown"
    if estimate.low is None:
        return f"{100 * estimate.value:.0f} %"
    return f"{100 * estimate.value:.0f} % ({100 * estimate.low:.0f} … {100 * estimate.high:.0f})"
