"""The record of runs on this machine, and the commands that read it."""

import json
import signal
import subprocess
import sys

import pytest
from click.testing import CliRunner

from hvdkit.cli import cli
from hvdkit.errors import InputError
from hvdkit.jobs.spec import JobSpec
from hvdkit.local import record


@pytest.fixture(autouse=True)
def own_state(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.chdir(tmp_path)


def spec(name: str = "train-a") -> JobSpec:
    return JobSpec(name=name, command=("python", "train.py"), workers=2)


def hvdkit(*words: str) -> str:
    result = CliRunner().invoke(cli, words, standalone_mode=False, catch_exceptions=False)
    return result.output


def finished(name: str = "train-a", code: int = 1) -> record.LocalRun:
    recorder = record.begin(spec(name))
    assert recorder.log_dir is not None
    recorder.log_dir.mkdir()
    for rank in (0, 1):
        (recorder.log_dir / f"rank-{rank}.log").write_text(f"hello from {rank}\n")
    recorder.end(exit_code=code, reason="rank 1 on vm raised an exception" if code else "", rank=1, tail=["ValueError"])
    run = record.find_run(name)
    assert run is not None
    return run


def test_a_run_from_its_begin_to_its_end() -> None:
    recorder = record.begin(spec())
    run = record.find_run("train-a")
    assert run is not None and run.alive and record.state_of(run).phase == "Running"
    with pytest.raises(InputError, match="a run 'train-a' is at work here already"):
        record.begin(spec())
    recorder.end(exit_code=0, reason="", rank=None, tail=[])
    run = record.find_run("train-a")
    assert run is not None and not run.alive and record.state_of(run).phase == "Succeeded"
    record.begin(spec())  # the name is free again


def test_a_launcher_that_was_killed_is_noticed() -> None:
    code = (
        "import os, signal\nfrom hvdkit.jobs.spec import JobSpec\nfrom hvdkit.local.record import begin\n"
        "begin(JobSpec(name='train-a', command=('true',)))\nos.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == -signal.SIGKILL
    run = record.find_run("train-a")
    assert run is not None and not run.alive
    assert (record.state_of(run).phase, record.state_of(run).reason) == ("Failed", "Lost")
    assert "it was killed" in hvdkit("why", "train-a")
    assert hvdkit("list").rstrip().endswith(" -"), "nobody knows how long it ran"


def test_the_number_of_another_process_is_no_life(monkeypatch) -> None:
    record.begin(spec())
    run = record.find_run("train-a")
    assert run is not None and run.alive
    monkeypatch.setattr(record, "_started_at", lambda pid: "other")
    assert not run.alive


def test_only_so_many_are_kept(monkeypatch) -> None:
    monkeypatch.setattr(record, "MOST_RUNS", 3)
    for number in range(5):
        finished(f"train-{number}")
    assert len(record.all_runs()) == 3


def test_a_place_that_cannot_be_written_keeps_nobody_from_training(tmp_path, monkeypatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    recorder = record.begin(spec())
    assert recorder.log_dir is None
    recorder.end(exit_code=0, reason="", rank=None, tail=[])
    assert record.all_runs() == []


def test_a_broken_record_is_passed_over() -> None:
    run = finished()
    (run.place / "run.json").write_text("{")
    assert record.find_run("train-a") is None and record.all_runs() == []
    assert record.find_run("../train-a") is None


@pytest.mark.parametrize(
    ("code", "rank", "word"),
    [(1, 1, "Failed"), (130, 1, "Failed"), (75, None, "Stopped"), (143, None, "Stopped"), (130, None, "Interrupted")],
)
def test_a_run_that_was_asked_to_end_is_not_listed_as_failed(code: int, rank: int | None, word: str) -> None:
    record.begin(spec()).end(exit_code=code, reason="", rank=rank, tail=[])
    (row,) = hvdkit("list").splitlines()[1:]
    assert f" {word} " in row


def test_the_commands_speak_of_local_runs_as_of_jobs() -> None:
    finished()
    assert "Failed, 0 of 2 workers ready: RankFailed: rank 1 on vm raised an exception" in hvdkit("status", "train-a")
    assert json.loads(hvdkit("status", "--json"))["exit_code"] == 1  # the newest
    assert "train-a" in hvdkit("list") and json.loads(hvdkit("list", "--json"))["jobs"][0]["phase"] == "Failed"
    assert hvdkit("logs", "train-a") == "[0] hello from 0\n[1] hello from 1\n"
    assert hvdkit("logs", "train-a", "--rank", "1") == "[1] hello from 1\n"
    why = hvdkit("why", "train-a")
    assert "rank 1 on vm raised an exception; exit code 1." in why and "  ValueError" in why
    result = CliRunner().invoke(cli, ["wait", "train-a"], standalone_mode=False)
    assert result.return_value == 1
    assert hvdkit("delete", "train-a") == "train-a deleted.\n"
    assert record.all_runs() == []


@pytest.mark.parametrize("verb", ["suspend", "resume", "exec", "scale"])
def test_what_only_a_cluster_can_do(verb: str) -> None:
    finished()
    further = {"exec": ["--", "true"], "scale": ["--workers", "3"]}.get(verb, [])
    with pytest.raises(InputError, match=f"{verb}: not for backend local"):
        CliRunner().invoke(cli, [verb, "train-a", *further], standalone_mode=False, catch_exceptions=False)


def test_delete_asks_a_run_to_stop() -> None:
    code = (
        "import signal\nfrom hvdkit.jobs.spec import JobSpec\nfrom hvdkit.local.record import begin\n"
        "recorder = begin(JobSpec(name='train-a', command=('true',)))\nprint('ready', flush=True)\n"
        "signal.sigwait({signal.SIGTERM})\nrecorder.end(exit_code=75, reason='stopped', rank=None, tail=[])"
    )
    blocked = f"import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, {{signal.SIGTERM}})\n{code}"
    with subprocess.Popen([sys.executable, "-c", blocked], stdout=subprocess.PIPE) as launcher:
        assert launcher.stdout is not None and launcher.stdout.readline() == b"ready\n"
        assert hvdkit("delete", "train-a") == "train-a deleted.\n"
        assert launcher.wait(30) == 0
    assert record.find_run("train-a") is None


def test_an_unknown_name() -> None:
    with pytest.raises(InputError, match="there is no run 'nothing' on this machine"):
        CliRunner().invoke(cli, ["status", "nothing"], standalone_mode=False, catch_exceptions=False)
