"""The verdict names what was put in, names nothing where nothing was, and never more than the data carry."""

import gzip
import re
from dataclasses import replace
from pathlib import Path

import pytest
from bench_samples import World, make_results

from hvdkit.bench.evidence import Case, agreeing_shares, communication_shares, gap_to_ideal
from hvdkit.bench.points import IDEAL, Point
from hvdkit.bench.result_file import load
from hvdkit.bench.results import Results
from hvdkit.bench.statistics import mean
from hvdkit.bench.verdict import NOTABLE, Judgement, diagnose

RECORDED = Path(__file__).with_name("recorded_sweep.json.gz")  # of mnist-cnn on 1, 2 and 4 workers and two cores
MODELS = {"small": 0.02, "large": 0.4}  # seconds of computation a step
STRENGTHS = {"weak": 0.2, "middle": 0.5, "strong": 1.5}  # of the computation


def healthy(compute: float, **changes) -> dict[tuple[str, int], World]:
    """One and four workers on four cores; `changes` to what four Horovod ranks do."""
    own = {"compute": compute, "data": compute / 100, "communication": compute / 100}
    base = World(**own)
    return {
        ("horovod", 1): base,
        ("horovod", 4): World(**{**own, **changes}),
        (IDEAL, 1): base,
        (IDEAL, 4): base,
    }


def judge(results: Results) -> Judgement:
    (judgement,) = diagnose(results).judgements
    return judgement


def causes(judgement: Judgement) -> list[str]:
    return [finding.cause for finding in judgement.limits]


@pytest.mark.parametrize("strength", STRENGTHS.values(), ids=STRENGTHS.keys())
@pytest.mark.parametrize("compute", MODELS.values(), ids=MODELS.keys())
class TestFourCauses:
    def test_communication(self, compute: float, strength: float) -> None:
        found = judge(make_results(healthy(compute, communication=strength * compute)))
        assert causes(found) == ["communication"]
        assert found.limits[0].share.value == pytest.approx(strength / (1.01 + strength), rel=0.15)
        assert "waits least" in found.limits[0].evidence[0]

    def test_input(self, compute: float, strength: float) -> None:
        worlds = healthy(compute, data=strength * compute)
        worlds["horovod", 1] = World(compute=compute, data=strength * compute)
        found = judge(make_results(worlds))
        assert causes(found) == ["input"]
        assert "loader" in found.limits[0].advice

    def test_a_slow_rank(self, compute: float, strength: float) -> None:
        found = judge(make_results(healthy(compute, slower={2: strength * compute})))
        assert causes(found) == ["stragglers"]
        assert any("rank 2 on host-0" in sentence for sentence in found.limits[0].evidence)
        # By hand: without the slow rank all would be faster by `strength`, in a step of 1 + 0.02 + strength.
        assert found.limits[0].share.value == pytest.approx(strength / (1.02 + strength), rel=0.2)
        assert "the other" not in found.text, "that explains all that is lost"
        assert found.efficiency.value == pytest.approx(1 / (1 + strength), rel=0.1)

    def test_too_many_ranks_for_the_cores(self, compute: float, strength: float) -> None:
        slower = compute * (1 + strength)
        crowded = World(compute=slower, data=compute / 100, communication=compute / 100, cores=2)
        alone = World(compute=compute, data=compute / 100, communication=compute / 100, cores=2)
        worlds = {("horovod", 1): alone, ("horovod", 4): crowded, (IDEAL, 1): alone, (IDEAL, 4): crowded}
        found = judge(make_results(worlds))
        assert causes(found) == ["oversubscription"]
        assert "4 threads share 2 cores" in found.limits[0].evidence


@pytest.mark.parametrize("noise", [0.0, 0.02, 0.08])
@pytest.mark.parametrize("compute", MODELS.values(), ids=MODELS.keys())
def test_healthy_runs_have_no_cause(compute: float, noise: float) -> None:
    for seed in range(5):
        found = judge(make_results(healthy(compute), noise=noise, seed=seed))
        assert causes(found) == [], found.text
        assert found.limits == []


def test_healthy_and_quiet_is_said_in_words() -> None:
    assert judge(make_results(healthy(0.1))).text.endswith("nothing limits it notably.")


def test_what_is_lost_without_a_known_cause_is_not_blamed_on_one() -> None:
    """The ranks compute more slowly than alone, and nobody ran the ideal: it could be anything."""
    worlds = {("horovod", 1): World(compute=0.1), ("horovod", 4): World(compute=0.15)}
    found = judge(make_results(worlds))
    assert causes(found) == [] and "these data do not say to what" in found.text


def test_what_the_named_causes_leave_open_is_said() -> None:
    """Half of the loss is a measured wait; for the other nobody ran the ideal."""
    worlds = {("horovod", 1): World(), ("horovod", 2): World(compute=0.15, communication=0.06)}
    found = judge(make_results(worlds))
    assert causes(found) == ["communication"]
    assert re.search(r"; these data do not say what the other \d\d% are lost to\.$", found.text), found.text
    named = {("horovod", 1): World(), ("horovod", 2): World(communication=0.06)}
    assert "the other" not in judge(make_results(named)).text


def test_a_cause_that_noise_could_explain_is_not_named() -> None:
    """A mean share above the limit whose interval reaches below it."""
    results = make_results(healthy(0.1))
    runs = [run for run in results.runs if run.point.workers == 4 and run.point.engine != IDEAL]
    for wait, run in zip((0.0, 0.0, 0.0, 0.0, 0.2), runs, strict=True):
        for rank in run.ranks:
            rank["seconds"]["allreduce_wait"] = [own + wait for own in rank["seconds"]["allreduce_wait"]]
            rank["seconds"]["total"] = [own + wait for own in rank["seconds"]["total"]]
            rank["ended"] = [moment + (step + 1) * wait for step, moment in enumerate(rank["ended"])]
    shares = [run.figures.parts["communication"] / run.figures.step_seconds for run in runs]
    assert sum(shares) / len(shares) > NOTABLE
    found = judge(results)
    assert causes(found) == [] and "these data do not decide" in found.text  # nor is it said to be nothing


def test_scattered_input_is_not_called_nothing_because_one_worker_has_it_too() -> None:
    """Efficiency is perfect, since every run waits for data as long at one worker as at four."""
    results = make_results(healthy(0.1), noise=0.0)
    for run in results.runs:
        late = 0.2 if run.repeat == 0 else 0.0
        for rank in run.ranks:
            for series in ("data_wait", "total", "own"):
                rank["seconds"][series] = [value + late for value in rank["seconds"][series]]
            rank["ended"] = [moment + late * (step + 1) for step, moment in enumerate(rank["ended"])]
    found = judge(results)
    assert found.efficiency.low > 1 - NOTABLE
    assert causes(found) == [] and "these data do not decide" in found.text


def test_causes_that_are_small_each_suffice_where_efficiency_scatters() -> None:
    """The baseline is noisy, four ranks and the independent processes are not."""
    results = make_results(healthy(0.1), noise=0.0)
    for run in results.runs:
        if run.point.workers == 1 and run.point.engine != IDEAL:
            for rank in run.ranks:
                rank["ended"] = [moment * (1 + run.repeat % 2 / 2) for moment in rank["ended"]]
    found = judge(results)
    assert found.efficiency.low < 1 - NOTABLE
    assert found.text.endswith("nothing limits it notably.")


@pytest.mark.parametrize(("wait", "said"), [(0.1, "limited by communication"), (0.001, "these data do not decide")])
def test_a_lost_baseline_is_told(wait: float, said: str) -> None:
    results = make_results(healthy(0.1, communication=wait))
    results.runs = [run for run in results.runs if run.point.workers != 1]
    text = judge(results).text
    assert "4 workers: efficiency unknown: no baseline; " in text and said in text
    results = make_results({("horovod", 1): World()})
    assert judge(results).text == "horovod, synthetic, 1 worker: the baseline alone; nothing limits it notably."


def test_too_few_runs_give_no_verdict() -> None:
    results = make_results(healthy(0.1, communication=0.3))
    results.runs = [run for run in results.runs if run.repeat < 4]
    found = judge(results)
    assert found.limits == [] and "too few for a verdict" in found.text


def test_a_point_that_failed_leaves_the_verdict_to_the_one_below() -> None:
    worlds = healthy(0.1) | {("horovod", 2): World(compute=0.1, communication=0.05), (IDEAL, 2): World(compute=0.1)}
    results = make_results(worlds)
    results.runs = [run for run in results.runs if run.point.workers != 4]
    found = judge(results)
    assert (found.workers, causes(found)) == (2, ["communication"])


def test_ranks_by_turns_are_jitter_and_no_rank_is_accused() -> None:
    found = judge(make_results(healthy(0.1, turns=0.05)))
    assert causes(found) == ["jitter"]
    assert any("take turns" in sentence for sentence in found.limits[0].evidence)


def test_turns_on_crowded_cores_are_not_blamed_on_the_ranks() -> None:
    alone = World(cores=2)
    crowded, ideal = World(compute=0.2, turns=0.1, cores=2), World(compute=0.2, cores=2)
    worlds = {("horovod", 1): alone, ("horovod", 4): crowded, (IDEAL, 1): alone, (IDEAL, 4): ideal}
    assert causes(judge(make_results(worlds))) == ["oversubscription"]


def test_a_process_alone_is_asked_for_its_whole_step(tmp_path: Path) -> None:
    """A recorded sweep, in which independent processes noted only their forward passes as their own work.

    Against those alone ranks seemed to compute twice as long, and communication was blamed for all that they lost.
    """
    (tmp_path / "results.json").write_bytes(gzip.decompress(RECORDED.read_bytes()))
    results = load(tmp_path / "results.json")
    case = Case.of(results, Point(data="synthetic", engine="horovod", workers=4))
    for run in case.ideal.values():
        assert sum(run.own_seconds) / 4 == pytest.approx(run.step_seconds, rel=0.05)
    between = agreeing_shares(case)
    waits = [run.parts["communication"] / run.step_seconds + between[number] for number, run in case.runs.items()]
    assert communication_shares(case) == waits  # the computation takes no longer for sure
    assert max(between.values()) < 0.02  # an agreement a second costs next to nothing
    first, second = judge(results).limits
    assert (first.cause, second.cause) == ("oversubscription", "communication")
    assert first.share.value > 0.4 and second.share.value < 0.08


def test_agreements_that_are_slow_are_communication_too() -> None:
    """Ranks agree between steps; where each message takes long, that is most of what they lose."""
    slow = World(communication=0.004, between=0.06)
    worlds = {("horovod", 1): World(), ("horovod", 2): slow, (IDEAL, 1): World(), (IDEAL, 2): World()}
    judged = judge(make_results(worlds))
    assert causes(judged) == ["communication"]
    (found,) = judged.limits
    assert found.share.value == pytest.approx(0.064 / 0.166, rel=0.1)
    assert any("between steps take" in text for text in found.evidence)
    without_ideal = {where: world for where, world in worlds.items() if where[0] != IDEAL}
    assert causes(judge(make_results(without_ideal))) == []  # nothing then tells agreements from bookkeeping


def test_communication_costs_no_more_than_independent_processes_are_faster() -> None:
    """One of four processes on two cores had a core to itself, and is no measure for all."""
    alone = World(cores=2)
    worlds = {("horovod", 1): alone, ("horovod", 4): World(compute=0.2, cores=2)}
    worlds |= {(IDEAL, 1): alone, (IDEAL, 4): World(compute=0.12, slower=dict.fromkeys(range(1, 4), 0.07), cores=2)}
    case = Case.of(make_results(worlds, noise=0.0), Point(data="synthetic", engine="horovod", workers=4))
    assert communication_shares(case) == pytest.approx(gap_to_ideal(case))
    assert mean(communication_shares(case)).value < 0.2 < (0.2 - 0.12) / 0.2


def test_crowded_cores_without_the_ideal_are_not_blamed_on_communication() -> None:
    worlds = {("horovod", 1): World(cores=2), ("horovod", 4): World(communication=0.1, turns=0.1, cores=2)}
    assert causes(judge(make_results(worlds))) == []


def test_too_many_threads() -> None:
    alone, both = World(cores=4, threads=4), World(compute=0.2, cores=4, threads=4)
    worlds = {("horovod", 1): alone, ("horovod", 2): both, (IDEAL, 1): alone, (IDEAL, 2): both}
    found = judge(make_results(worlds, threads=4))
    assert causes(found) == ["threads"] and "--threads" in found.limits[0].advice


def test_cores_of_several_hosts_are_counted_by_host() -> None:
    """Four ranks with one thread each on two hosts of two cores are not crowded."""
    worlds = {key: World(cores=2) for key in healthy(0.1)}
    assert causes(judge(make_results(worlds, ranks_a_host=2))) == []


def test_a_machine_that_slows_down_by_itself_is_not_the_networks_fault() -> None:
    worlds = healthy(0.1) | {("horovod", 4): World(compute=0.15), (IDEAL, 4): World(compute=0.15)}
    assert causes(judge(make_results(worlds))) == ["shared machine"]
    assert causes(judge(make_results(worlds, mode="strong"))) == ["small batches"]


def test_work_of_the_allreduce_on_the_computing_cores_is_communication() -> None:
    worlds = healthy(0.1) | {("horovod", 4): World(compute=0.15)}
    assert causes(judge(make_results(worlds))) == ["communication"]


def test_a_slow_rank_whose_data_are_late_says_so() -> None:
    results = make_results(healthy(0.1, slower={1: 0.1}))
    for run in results.runs:
        if run.point.workers == 4 and run.point.engine != IDEAL:
            waits = run.ranks[1]["seconds"]
            waits["data_wait"] = [wait + 0.1 for wait in waits["data_wait"]]
    found = judge(results)
    (stragglers,) = [finding for finding in found.limits if finding.cause == "stragglers"]
    assert any("wait for data" in sentence for sentence in stragglers.evidence)
    lost = sum(finding.share.value for finding in found.limits)
    assert lost + found.efficiency.value == pytest.approx(1, abs=0.05), "no time is counted twice"


def test_a_slow_rank_does_not_hide_that_ranks_also_wait_by_turns() -> None:
    found = judge(make_results(healthy(0.1, turns=0.1, slower={2: 0.02})))
    (stragglers,) = [finding for finding in found.limits if finding.cause == "stragglers"]
    assert stragglers.share.value > 0.3 and found.limits[0] is stragglers


class TestEngineThatHidesItsWaits:
    def worlds(self, **changes) -> dict[tuple[str, int], World]:
        base = World(compute=0.1, waits_hidden=True)
        return {
            ("ddp", 1): base,
            ("ddp", 4): World(compute=0.1, waits_hidden=True, **changes),
            (IDEAL, 1): World(compute=0.1),
            (IDEAL, 4): World(compute=0.1),
        }

    @pytest.mark.parametrize("why", ["communication", "turns"])
    def test_the_gap_to_the_ideal_is_the_network_or_ranks_that_wait(self, why: str) -> None:
        """Both give the same records, and the same answer."""
        found = judge(make_results(self.worlds(**{why: 0.05})))
        assert causes(found) == ["working together"]
        assert "limited by working together: the network, or ranks that wait for each other (" in found.text
        assert any("does not tell" in sentence for sentence in found.limits[0].evidence)
        assert "network" in found.limits[0].advice and "ranks that wait" in found.limits[0].advice

    def test_on_crowded_cores_the_gap_is_no_cause_of_its_own(self) -> None:
        worlds = {
            key: replace(world, cores=2, compute=0.2 if key[1] == 4 else 0.1)
            for key, world in self.worlds(turns=0.1).items()
        }
        assert causes(judge(make_results(worlds))) == ["oversubscription"]

    def test_without_the_ideal_nothing_is_known(self) -> None:
        worlds = {key: world for key, world in self.worlds(communication=0.05).items() if key[0] == "ddp"}
        found = judge(make_results(worlds))
        assert causes(found) == [] and "do not say to what" in found.text

    def test_a_slow_rank_is_not_called_communication(self) -> None:
        found = judge(make_results(self.worlds(slower={3: 0.1}), noise=0.0))
        assert causes(found) == ["stragglers"]
        # By hand: all that is seen of the slow one is a third of its 0.1 s, in steps of 0.2025.
        assert found.limits[0].share.value == pytest.approx(0.1 / 3 / 0.2025, rel=0.02)
        waits, works = found.limits[0].evidence
        assert waits == "the mean rank waits at least 12 % (12 … 12) of each step for slower ones"
        assert works.startswith("rank 3 on host-0 works at least 16 % (16 … 16) of a step longer")


def test_real_data_beside_synthetic_is_evidence() -> None:
    results = make_results(healthy(0.1), data=("synthetic", "mnist"))
    for run in results.runs:
        if run.point.data == "mnist":
            for rank in run.ranks:
                for series in ("data_wait", "total", "own"):
                    rank["seconds"][series] = [value + 0.1 for value in rank["seconds"][series]]
                rank["ended"] = [moment + 0.1 * (step + 1) for step, moment in enumerate(rank["ended"])]
    synthetic, real = diagnose(results).judgements
    assert causes(synthetic) == [] and causes(real) == ["input"]
    assert any("of that with synthetic data" in sentence for sentence in real.limits[0].evidence)


def test_a_measured_wait_is_named_also_where_the_computation_is_noisy() -> None:
    """The ideal computes a little longer than the ranks, by chance; the wait for the allreduce is there."""
    worlds = healthy(0.1, communication=0.03) | {(IDEAL, 4): World(compute=0.11)}
    found = judge(make_results(worlds, noise=0.05))
    assert "communication" in causes(found)
