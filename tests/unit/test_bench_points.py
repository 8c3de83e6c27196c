"""What a sweep measures, in which order, and with which commands."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from hvdkit.bench.points import IDEAL, Point, SweepSettings
from hvdkit.bench.runners import local_command, local_environment
from hvdkit.bench.train_words import train_words
from hvdkit.errors import InputError
from hvdkit.local.machine import usable_cores


def settings(**changes) -> SweepSettings:
    return SweepSettings(**{"workers": (1, 2, 4), **changes})


def value_of(flag: str, words: list[str]) -> str:
    return words[words.index(flag) + 1]


def test_every_round_has_every_point_once() -> None:
    made = settings(engines=("horovod", "ddp"), data=("synthetic", "mnist"), repeats=6)
    order = list(made.schedule())
    assert len(order) == 6 * 2 * 3 * 3  # rounds, data sets, engines with the ideal, numbers of workers
    for repeat in range(6):
        assert sorted(point for number, point in order if number == repeat) == sorted(made.points())


def test_rounds_are_interleaved_and_turn_around() -> None:
    order = list(settings().schedule())
    assert [repeat for repeat, _ in order] == sorted(repeat for repeat, _ in order)
    first, second = ([point for repeat, point in order if repeat == number] for number in (0, 1))
    assert second == first[::-1]


def test_without_the_ideal() -> None:
    assert {point.engine for point in settings(ideal=False).points()} == {"horovod"}


def test_settings_survive_json() -> None:
    made = settings(engines=("ddp",), train_args=("--image-size", "64"))
    assert SweepSettings.from_json(made.as_json()) == made


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"workers": (2, 4)}, "workers"),
        ({"workers": (1, 4, 2)}, "workers"),
        ({"slots": 0}, "slots"),
        ({"repeats": 4}, "repeats"),
        ({"steps": 19}, "steps"),
        ({"engines": ("mxnet",)}, "engines"),
        ({"mode": "medium"}, "mode"),
        ({"env": ("NAME",)}, "env"),
        ({"mode": "strong", "batch_size": 6}, "batch-size"),
    ],
)
def test_what_cannot_be_is_refused_by_name(changes: dict, field: str) -> None:
    with pytest.raises(InputError, match=f"^--{field}: "):
        settings(**changes)


def test_weak_keeps_the_batch_of_a_rank_and_strong_that_of_the_world() -> None:
    for workers in (1, 2, 4):
        point = Point(data="synthetic", engine="horovod", workers=workers)
        assert value_of("--batch-size", train_words(settings(), point)) == "64"
        strong = train_words(settings(mode="strong"), point)
        assert int(value_of("--batch-size", strong)) * workers == 64


def test_all_ranks_of_all_points_have_the_same_threads_and_steps() -> None:
    made = settings(threads=3, engines=("horovod", "ddp"))
    for point in made.points():
        words = local_command(made, point, "/barrier")
        assert value_of("--threads", words) == "3" and value_of("--max-steps", words) == "100"
        assert "--skip-evaluation" in words and "--result-lines" in words


def test_the_users_flags_come_last_and_win() -> None:
    words = train_words(settings(train_args=("--lr", "0.5")), Point(data="mnist", engine="horovod", workers=1))
    assert words[-2:] == ["--lr", "0.5"]


def test_as_many_processes_as_ranks_whatever_starts_them() -> None:
    made = settings(slots=2, engines=("horovod", "ddp"))
    horovod, ddp, ideal = (
        local_command(made, Point(data="mnist", engine=engine, workers=2, slots=2), "/barrier")
        for engine in ("horovod", "ddp", IDEAL)
    )
    assert (value_of("--workers", horovod), value_of("--slots", horovod)) == ("2", "2")
    assert value_of("--nproc-per-node", ddp) == "4" and "HVDKIT_WORLD_SIZE=4" in ddp
    assert value_of("--workers", ideal) == "4" == value_of("--count", ideal)


@pytest.mark.parametrize("engine", ["horovod", "ddp", IDEAL])
def test_a_run_obeys_no_settings_that_the_results_do_not_tell(engine: str, tmp_path: Path) -> None:
    """Neither an hvdkit.yaml of the folder nor HVDKIT_* of the shell: asked of a real launch, what it would start."""
    words = local_command(settings(), Point(data="synthetic", engine=engine, workers=2), "/barrier")
    words[words.index("launch") + 1 : words.index("launch") + 1] = ["--dry-run", "--json", "--name", "bench"]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HVDKIT_")}
    job = {"HVDKIT_SLOTS": "3", "HVDKIT_MPI_ARGS": "[--report-bindings]", "HVDKIT_PROFILE": "p", "HVDKIT_CONFIG": "no"}
    spoilt = clean | job | {"HVDKIT_CACHE_DIR": "/cache"}
    plans = []
    for environment in (clean, spoilt):
        made = local_environment(environment, tmp_path / "state")
        done = subprocess.run(words, cwd=tmp_path, env=made, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        plans.append(json.loads(done.stdout))
        (tmp_path / "hvdkit.yaml").write_text("version: 1\nautotune: true\n")
    assert plans[0] == plans[1]
    assert made["HVDKIT_CACHE_DIR"] == "/cache" and made["XDG_STATE_HOME"] == str(tmp_path / "state")


def test_the_ideal_is_bound_to_cores_where_the_ranks_are() -> None:
    """Horovod's ranks are when they fill the cores, DDP's never; the user's word comes last and wins."""
    crowd = usable_cores() + 1
    cases = ((("horovod", "ddp"), crowd, True), (("horovod",), 1, False), (("ddp",), crowd, False))
    for engines, workers, bound in cases:
        made = settings(workers=(1, crowd), engines=engines, env=("HVDKIT_BIND=0",))
        words = local_command(made, Point(data="synthetic", engine=IDEAL, workers=workers), "/barrier")
        assert [word for word in words if "BIND" in word] == ["HVDKIT_BIND=1"] * bound + ["HVDKIT_BIND=0"]
    ranks = local_command(made, Point(data="synthetic", engine="horovod", workers=crowd), "/barrier")
    assert "HVDKIT_BIND=1" not in ranks  # `hvdkit launch` knows by itself


@pytest.mark.parametrize("given", [(), ("--accumulate", "3"), ("--image-size", "64", "--accumulate=3")])
def test_no_run_meets_the_end_of_its_synthetic_data(given: tuple[str, ...]) -> None:
    made = settings(workers=(1, 2, 8), steps=100, batch_size=128, train_args=given)
    for point in made.points():
        words = train_words(made, point)
        assert int(value_of("--synthetic-images", words)) >= 100 * 128 * point.ranks * (3 if given else 1)
