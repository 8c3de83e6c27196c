"""A sweep loses nothing: interrupted it goes on, and a point that fails leaves the others alone.

The runs are made up here (their logs are real HVDKIT_RESULT lines); tests/local runs real ones.
"""

import io
import json
import random
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from bench_samples import World, independent_records, make_results, rank_records
from rich.console import Console

from hvdkit.bench import result_file
from hvdkit.bench.compare import compare
from hvdkit.bench.live import Lines, Screen, clock, eta_seconds, table
from hvdkit.bench.points import IDEAL, Point, SweepSettings
from hvdkit.bench.results import Results
from hvdkit.bench.runners import RunSpec
from hvdkit.bench.summary import summarise
from hvdkit.bench.sweep import GIVE_UP_AFTER, open_results, sweep
from hvdkit.errors import HvdkitError, InputError
from hvdkit.runtime import results as lines_format

SETTINGS = SweepSettings(workers=(1, 2), steps=20, warmup_steps=5, repeats=5)


class Recorded:
    """A backend whose runs are over at once."""

    def __init__(self, *, fails: tuple[Point, ...] = (), interrupted_after: int | None = None) -> None:
        self.fails = fails
        self.interrupted_after = interrupted_after
        self.ran: list[Point] = []
        self.draw = random.Random(1)

    def run_point(self, spec: RunSpec) -> list[str]:
        if len(self.ran) == self.interrupted_after:
            raise KeyboardInterrupt
        self.ran.append(spec.point)
        spec.log.parent.mkdir(exist_ok=True, parents=True)
        spec.log.write_text("the log")
        if spec.point in self.fails:
            raise HvdkitError("exit code 137; out of memory")
        lines: list[str] = []
        if spec.point.engine == IDEAL:
            alone = independent_records(World(), spec.point.ranks, 20, noise=0.05, draw=self.draw)
            groups = [[record | {"rank": 0}] for record in alone]
        else:
            groups = [rank_records(World(), spec.point.ranks, 20, noise=0.05, draw=self.draw)]
        for ranks in groups:
            payload = {"summary": {}, "hosts": ["h"] * len(ranks), "ranks": ranks, "versions": {"torch": "2"}}
            lines_format.emit("train", payload, lines.append)
        return lines


def quiet_watcher() -> Lines:
    return Lines(Console(file=io.StringIO()))


def start(folder: Path, runner: Recorded, settings: SweepSettings = SETTINGS) -> Results:
    return sweep(open_results(settings, folder), runner, folder, quiet_watcher(), timeout=9)


def test_the_file_is_as_the_schema_says(tmp_path: Path) -> None:
    bad = Point(data="synthetic", engine="horovod", workers=2)
    start(tmp_path, Recorded(fails=(bad,)))
    values = json.loads((tmp_path / "results.json").read_text())
    jsonschema.Draft202012Validator.check_schema(result_file.schema())
    jsonschema.validate(values, result_file.schema())
    assert {run["status"] for run in values["runs"]} == {"done", "failed"}
    del values["runs"][0]["ranks"]
    with pytest.raises(jsonschema.ValidationError, match="'ranks' is a required property"):
        jsonschema.validate(values, result_file.schema())


def test_a_file_read_is_the_sweep_that_was_written(tmp_path: Path) -> None:
    written = start(tmp_path, Recorded())
    read = result_file.load(tmp_path / "results.json")
    assert read.settings == written.settings and len(read.runs) == len(written.runs) == 20
    assert [summary.as_json() for summary in summarise(read)] == [summary.as_json() for summary in summarise(written)]
    assert read.name == tmp_path.name


def test_an_interrupted_sweep_goes_on_where_it_stopped(tmp_path: Path) -> None:
    first = Recorded(interrupted_after=7)
    with pytest.raises(KeyboardInterrupt):
        start(tmp_path, first)
    assert len(result_file.load(tmp_path / "results.json").runs) == 7
    second = Recorded()
    done = start(tmp_path, second)
    assert [*first.ran, *second.ran] == [point for _, point in SETTINGS.schedule()]
    assert len(done.runs) == 20
    third = Recorded()
    start(tmp_path, third)
    assert third.ran == []


def test_a_sweep_can_be_run_round_by_round(tmp_path: Path) -> None:
    """So that two of them can take turns."""
    ran: list[Point] = []
    for number in range(1, 6):
        runner = Recorded()
        sweep(open_results(SETTINGS, tmp_path), runner, tmp_path, quiet_watcher(), timeout=9, rounds=1)
        ran += runner.ran
        assert len(ran) == 4 * number
    assert ran == [point for _, point in SETTINGS.schedule()]


def test_more_repeats_add_to_what_is_there(tmp_path: Path) -> None:
    start(tmp_path, Recorded())
    more = Recorded()
    start(tmp_path, more, SweepSettings(workers=(1, 2), steps=20, warmup_steps=5, repeats=6))
    assert len(more.ran) == 4


def test_a_failed_point_does_not_lose_the_others(tmp_path: Path) -> None:
    bad = Point(data="synthetic", engine="horovod", workers=2)
    runner = Recorded(fails=(bad,))
    done = start(tmp_path, runner)
    assert runner.ran.count(bad) == GIVE_UP_AFTER  # five would only cost time
    assert {summary.point: summary.done for summary in summarise(done)} == {
        point: 0 if point == bad else 5 for point in SETTINGS.points()
    }
    assert all("out of memory" in run.problem for run in done.failed(bad))
    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == [
        "horovod-synthetic-2-round0.log",
        "horovod-synthetic-2-round1.log",
    ]


def test_what_failed_is_tried_again_by_the_same_command(tmp_path: Path) -> None:
    bad = Point(data="synthetic", engine="horovod", workers=2)
    start(tmp_path, Recorded(fails=(bad,)))
    again = Recorded()
    done = start(tmp_path, again)
    assert again.ran == [bad] * 5 and not done.failed(bad)


def test_another_sweep_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    start(tmp_path, Recorded())
    with pytest.raises(InputError, match=r"another sweep \(workers 1,2, now 1,2,4\)"):
        open_results(SweepSettings(workers=(1, 2, 4), steps=20, warmup_steps=5), tmp_path)


def test_runs_of_two_machines_do_not_mix(tmp_path: Path) -> None:
    results = start(tmp_path, Recorded())
    results.environment["cores"] = 999
    result_file.save(results, tmp_path / "results.json")
    with pytest.raises(InputError, match="other cores"):
        open_results(SETTINGS, tmp_path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is no JSON"),
        ("{}", "is not the result of `hvdkit bench scaling`"),
        ('{"kind": "scaling", "version": 2}', "has version 2"),
        ('{"kind": "scaling", "version": 1}', "'flags' is missing"),
        ('{"kind": "scaling", "version": 1, "flags": {"workers": [1], "colour": 1}}', "damaged: .*colour"),
    ],
)
def test_a_file_that_is_none_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "results.json"
    path.write_text(text)
    with pytest.raises(InputError, match=said):
        result_file.load(path)


def test_a_run_with_a_missing_rank_is_damage(tmp_path: Path) -> None:
    start(tmp_path, Recorded())
    path = tmp_path / "results.json"
    values = json.loads(path.read_text())
    del values["runs"][0]["ranks"][0]["seconds"]["own"]
    path.write_text(json.dumps(values))
    with pytest.raises(InputError, match="damaged: the field 'own'"):
        result_file.load(path)


def spoil(values: dict[str, Any], place: tuple[str | int, ...], value: Any) -> None:
    *way, last = place
    for step in way:
        values = values[step]
    values[last] = value


OF_RANK = ("runs", 0, "ranks", 0)


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (("environment",), None, "the field 'environment' cannot be null"),
        (("environment", "versions"), [], r"the field 'versions' cannot be \[\]"),
        (("created",), 5, "the field 'created' cannot be 5"),
        (("runs", 0, "began"), None, "the field 'began' cannot be null"),
        (("runs", 0, "versions"), None, "the field 'versions' cannot be null"),
        (("runs", 0, "repeat"), "x", "the field 'repeat' cannot be \"x\""),
        ((*OF_RANK, "images"), [0] * 20, "images or times that do not add up"),
        ((*OF_RANK, "ended"), [0] * 20, "images or times that do not add up"),
        ((*OF_RANK, "seconds", "total"), [0] * 20, "division by zero"),
        ((*OF_RANK, "cores"), None, "not supported"),
    ],
)
def test_json_that_is_no_result_is_damage(tmp_path: Path, place: tuple[str | int, ...], value: Any, said: str) -> None:
    path = tmp_path / "results.json"
    result_file.save(make_results({("horovod", 1): World()}, steps=20), path)
    values = json.loads(path.read_text())
    spoil(values, place, value)
    path.write_text(json.dumps(values))
    with pytest.raises(InputError, match=f"^{path} is damaged: .*{said}"):
        compare(result_file.load(path), result_file.load(path))


def test_efficiency_by_hand() -> None:
    """Without noise: a step of 0.1025 s alone, and of 0.2025 s at 4 workers."""
    slow = World(communication=0.101)
    worlds = {("horovod", 1): World(), ("horovod", 4): slow, (IDEAL, 1): World(), (IDEAL, 4): World()}
    summaries = {str(summary.point): summary for summary in summarise(make_results(worlds, noise=0.0))}
    found = summaries["horovod, synthetic, 4 workers"]
    assert found.speedup.value == pytest.approx(4 * 0.1025 / 0.2025)
    assert found.efficiency.value == pytest.approx(0.1025 / 0.2025)
    assert found.efficiency.low == pytest.approx(found.efficiency.high)
    assert found.of_ideal.value == pytest.approx(0.1015 / 0.2025)  # which does not wait for an allreduce
    assert found.shares["communication"].value == pytest.approx(0.101 / 0.2025)
    assert sum(share.value for share in found.shares.values()) == pytest.approx(1)


def test_a_slow_minute_that_hits_a_whole_round_does_not_widen_the_efficiency() -> None:
    worlds = {("horovod", 1): World(), ("horovod", 2): World(communication=0.02)}
    results = make_results(worlds, noise=0.0)
    for run in results.runs:
        if run.repeat == 2:
            for rank in run.ranks:
                rank["ended"] = [2 * moment for moment in rank["ended"]]
    _, two = summarise(results)
    assert two.images_per_second.high > 1.5 * two.images_per_second.low
    assert two.efficiency.high - two.efficiency.low < 0.01


def test_eta_follows_the_runs_of_the_same_point() -> None:
    results = make_results({("horovod", 1): World(), ("horovod", 2): World()})
    left = [(5, point) for point in results.settings.points()]
    assert eta_seconds(Results(settings=results.settings, environment={}, created=""), left) is None
    assert eta_seconds(results, left) == pytest.approx(20.0)  # each took 10 s
    assert (clock(40), clock(700), clock(11_100)) == ("40 s", "12 min", "3 h 05 min")


def test_live_table_on_a_terminal_and_without_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    results = make_results({("horovod", 1): World(), ("horovod", 2): World()})
    stream = io.StringIO()
    with Screen(Console(file=stream, force_terminal=True, width=150)) as screen:
        screen.before(results.settings.points()[1], 4, results, [(4, results.settings.points()[1])])
    shown = stream.getvalue()
    assert "round 5 of 5; 1 runs to go, about 10 s left" in shown
    assert "\x1b[3" not in shown  # a colour would begin like this


def test_table_has_a_row_for_points_that_have_not_run() -> None:
    results = make_results({("horovod", 1): World(), ("horovod", 2): World()})
    results.runs = [run for run in results.runs if run.point.workers == 1]
    stream = io.StringIO()
    Console(file=stream, width=150).print(table(results, summarise(results)))
    rows = stream.getvalue().splitlines()
    assert len(rows) == 3 and "5/5" in rows[1] and "0/5" in rows[2]
