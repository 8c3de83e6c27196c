"""Real ranks through the harness: figures of each engine, faults of known size, and an interrupted sweep."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from launching import HVDKIT, LIMIT, wait_until
from running import environment

from hvdkit.bench import result_file
from hvdkit.bench.points import IDEAL, Point, SweepSettings
from hvdkit.bench.runners import LocalRunner, RunSpec
from hvdkit.bench.samples import Figures, figures, read_log
from hvdkit.bench.train_words import train_words
from hvdkit.errors import HvdkitError

HERE = Path(__file__).parent
# The ranks need the faults in bench_causes.py, and this checkout wherever the package was installed from.
PYTHONPATH = f"{HERE}:{HERE.parent.parent}"
STEPS, WARMUP, BATCH = 24, 6, 64
SLEEP = 0.6  # seconds: far more than a step takes, also on a machine that is busy with other things
CYCLE = 0.3  # seconds between two looks of Horovod for gradients; a small model's step is short against it, too
# Ranks that mostly rest, so that one on a busy core is not left behind; a run of independent processes that were not at
# work side by side would be refused, rightly.
RESTING = {"model": "bench_causes:small", "env": ("BENCH_REST=0.1",)}
SLOW = {"steps": 6, "warmup_steps": 1}  # enough of steps that long


def measure(folder: Path, engine: str = "horovod", data: str = "synthetic", **changes) -> tuple[Figures, dict]:
    """One run of two ranks, and what its log said."""
    usual = {"steps": STEPS, "warmup_steps": WARMUP, "batch_size": BATCH}
    settings = SweepSettings(workers=(1, 2), **usual | changes)
    point = Point(data=data, engine=engine, workers=2)
    spec = RunSpec(point=point, settings=settings, log=folder / "run.log", timeout=LIMIT)
    found = read_log(LocalRunner().run_point(spec), point)
    return figures(found["ranks"], ideal=engine == IDEAL, warmup=settings.warmup_steps), found


@pytest.fixture(autouse=True)
def as_a_user(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in set(os.environ) - set(environment()):
        monkeypatch.delenv(name)
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)


@pytest.mark.parametrize("engine", ["horovod", "ddp", IDEAL])
def test_two_ranks_of_each_engine(tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the user has settings for jobs, which are not asked; and the user's records of runs stay alone."""
    (tmp_path / "hvdkit.yaml").write_text("version: 1\nslots: 3\ncontroller: gloo\nenv: {PYTHONPATH: /nowhere}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HVDKIT_SLOTS", "2")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    measured, found = measure(tmp_path, engine, **RESTING)
    assert not (tmp_path / "state").exists()
    assert [rank["rank"] for rank in found["ranks"]] == [0, 1]
    assert all(rank["images"] == [BATCH] * STEPS and rank["threads"] == 1 for rank in found["ranks"])
    assert all(rank["peak_memory_bytes"] > 50 * 2**20 for rank in found["ranks"])
    assert found["train"]["engine"] == ("single" if engine == IDEAL else engine)
    assert found["train"]["test_accuracy_percent"] is None  # a benchmark judges nothing
    assert (measured.parts["communication"] is None) == (engine == "ddp")
    assert 0 < measured.parts["compute"] < measured.step_seconds
    assert 0 < measured.cores_used <= os.cpu_count() + 0.5
    counted = [seconds for rank in found["ranks"] for seconds in rank["seconds"]["total"][WARMUP:]]
    assert min(counted) <= measured.step_seconds <= 2 * max(counted)
    ranks = 1 if engine == IDEAL else 2
    every = [seconds for rank in found["ranks"] for seconds in rank["seconds"]["total"]]
    assert min(every) <= ranks * BATCH / found["train"]["images_per_second"] <= 2 * max(every)


def test_independent_processes_without_a_folder_in_common(tmp_path: Path) -> None:
    """As in pods: they meet once through torch.distributed, and each tells for itself."""
    settings = SweepSettings(workers=(1, 2), steps=STEPS, warmup_steps=WARMUP, batch_size=BATCH, **RESTING)
    point = Point(data="synthetic", engine=IDEAL, workers=2)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words = [*torchrun, "-m", "hvdkit.bench.independent", "--count", "2", *train_words(settings, point)]
    env = os.environ | {"OMP_NUM_THREADS": "1"} | dict(word.split("=") for word in RESTING["env"])
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stdout + done.stderr
    found = read_log(done.stdout.splitlines(), point)
    assert [rank["images"] for rank in found["ranks"]] == [[BATCH] * STEPS] * 2
    begun = [rank["began"] for rank in found["ranks"]]
    assert abs(begun[0] - begun[1]) < sum(found["ranks"][0]["seconds"]["total"])  # side by side, not by turns
    assert figures(found["ranks"], ideal=True, warmup=WARMUP).images_per_second > 0


def test_a_rank_that_sleeps_is_a_straggler_and_costs_what_it_sleeps(tmp_path: Path) -> None:
    measured, _ = measure(tmp_path, model="bench_causes:small", env=(f"BENCH_DOZE={SLEEP}",), **SLOW)
    (fast, slow), parts = measured.own_seconds, measured.parts
    assert slow >= SLEEP and slow > fast
    # One of two ranks waits for the other; a busy machine may now and then have made the other one wait, too.
    assert 0.9 * (slow - fast) / 2 <= parts["straggling"] <= slow / 2
    assert parts["straggling"] > parts["communication"]


def test_a_loader_that_sleeps_is_data_wait(tmp_path: Path) -> None:
    measured, _ = measure(
        tmp_path,
        data="bench_causes:sluggish",
        env=(f"BENCH_SLUGGISH={SLEEP / BATCH}",),
        train_args=("--loader-workers", "0"),
        **SLOW,
    )
    assert measured.parts["data"] >= SLEEP
    assert measured.parts["data"] > measured.parts["compute"]


def test_a_slow_allreduce_is_communication(tmp_path: Path) -> None:
    """Horovod looks for gradients more rarely than a step takes."""
    slow = (f"HOROVOD_CYCLE_TIME={1000 * CYCLE:g}",)
    measured, _ = measure(tmp_path, env=slow, **SLOW | {"batch_size": 8})
    parts = measured.parts
    assert parts["communication"] > parts["compute"] + parts["straggling"] + parts["data"]
    assert measured.step_seconds > 0.8 * CYCLE  # at least a cycle; now and then it is two


def test_a_run_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(HvdkitError, match=r"exit code \d+; .*run\.log ends with: .*no_such_module"):
        measure(tmp_path, model="no_such_module:model")


def test_a_run_that_hangs_is_ended(tmp_path: Path) -> None:
    settings = SweepSettings(workers=(1,), steps=20, warmup_steps=5)
    point = Point(data="synthetic", engine="horovod", workers=1)
    spec = RunSpec(point=point, settings=settings, log=tmp_path / "run.log", timeout=0.5)
    with pytest.raises(HvdkitError, match=r"not done after 0\.5 s"):
        LocalRunner().run_point(spec)


SWEEP = ["bench", "scaling", "--workers", "1", "--no-ideal", "--steps", "12", "--warmup-steps", "3"]
SWEEP += ["--output", "sweep"]


def test_a_sweep_from_the_command_line(tmp_path: Path) -> None:
    """Interrupted after its first run, it goes on; JSON, page and plots are there in the end, Pushgateway or not."""
    env = environment(PYTHONPATH=PYTHONPATH)
    with (tmp_path / "first.log").open("w") as log:
        first = subprocess.Popen([*HVDKIT, *SWEEP], cwd=tmp_path, env=env, stdout=log, stderr=log)
    results = tmp_path / "sweep" / "results.json"
    try:
        wait_until(results.exists, lambda: f"a first run; {(tmp_path / 'first.log').read_text()}")
        first.send_signal(signal.SIGINT)
        assert first.wait(LIMIT) == 130
    finally:
        first.kill()
        first.wait()
    done_before = {run.repeat for run in result_file.load(results).runs if run.problem is None}
    assert 1 <= len(done_before) < 5

    dead = ["--pushgateway", "127.0.0.1:9"]
    second = subprocess.run(
        [*HVDKIT, *SWEEP, *dead, "--json"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=3 * LIMIT
    )
    assert second.returncode == 0, second.stderr
    assert second.stderr.count("images/s") == 5 - len(done_before)  # a line a run
    assert second.stderr.count("not pushed to 127.0.0.1:9") == 1
    values = json.loads(second.stdout)
    assert values["summaries"][0]["done"] == 5
    assert values["verdict"][0]["text"].startswith("horovod, synthetic, 1 worker: ")
    jsonschema.validate(json.loads(results.read_text()), result_file.schema())
    for name in ("report.html", "plots/throughput.svg", "plots/breakdown.png"):
        assert (tmp_path / "sweep" / name).stat().st_size > 1000
    assert not list((tmp_path / "sweep" / "logs").iterdir())  # only failures leave a log
