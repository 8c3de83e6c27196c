"""The launcher's decisions before it starts anything: hostfile, Open MPI's version, mpirun's command line."""

import argparse
import subprocess
import sys
from pathlib import Path

import pytest

from hvdkit.errors import EnvironmentProblem, InputError
from hvdkit.jobs.spec import Host
from hvdkit.local.machine import find_mpirun
from hvdkit.runtime import mpijob_launcher
from hvdkit.runtime.mpijob_elastic import horovodrun
from hvdkit.runtime.mpijob_launcher import check_open_mpi, parse, plan_for, read_hostfile

NAMES = ("train-worker-0.train.team.svc", "train-worker-1.train.team.svc")


def test_flags_and_the_command_are_told_apart() -> None:
    words = ["--slots", "2", "--workers", "3", "--mpi-arg=--mca", "--mpi-arg=btl ^openib", "--", "python", "--", "-x"]
    options, command = parse(words)
    assert (options.slots, options.workers, options.wait_seconds) == (2, 3, 600)
    assert options.mpi_arg == ["--mca", "btl ^openib"]
    assert command == ["python", "--", "-x"]
    with pytest.raises(InputError, match="nothing to run"):
        parse(["--slots", "1", "--workers", "1", "--"])


def options_for(workers: int, *, launcher_as_worker: bool = False) -> argparse.Namespace:
    return argparse.Namespace(workers=workers, slots=4, launcher_as_worker=launcher_as_worker)


@pytest.mark.parametrize("text", [f"{NAMES[0]} slots=4\n{NAMES[1]} slots=4\n", f"{NAMES[0]}:4\n{NAMES[1]}:4\n\n"])
def test_hostfile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("HVDKIT_HOSTFILE", str(tmp_path / "hostfile"))
    (tmp_path / "hostfile").write_text(text)
    expected = tuple(Host(name=name, slots=4) for name in NAMES)
    assert read_hostfile(options_for(2)) == expected
    assert read_hostfile(options_for(1, launcher_as_worker=True)) == expected
    with pytest.raises(EnvironmentProblem, match="lists 2 hosts, but the job has 3"):
        read_hostfile(options_for(3))


def test_a_missing_hostfile_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HVDKIT_HOSTFILE", str(tmp_path / "hostfile"))
    with pytest.raises(EnvironmentProblem, match=r"hostfile cannot be read \(No such file"):
        read_hostfile(options_for(1))


def test_the_installed_open_mpi_is_accepted() -> None:
    check_open_mpi(find_mpirun()[0])


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("mpirun (Open MPI) 5.0.7", "Open MPI 5.0.7, which does not read the OMPI_MCA_orte_"),
        ("mpirun (Open MPI) 10.1", "Open MPI 10.1"),
        ("HYDRA build details:", "is not Open MPI's"),
    ],
)
def test_another_mpi_is_refused(tmp_path: Path, version: str, said: str) -> None:
    # Only its answer is played: the real ones are what nobody should install here.
    mpirun = tmp_path / "mpirun"
    mpirun.write_text(f"#!/bin/sh\necho '{version}'\n")
    mpirun.chmod(0o755)
    with pytest.raises(EnvironmentProblem, match=said):
        check_open_mpi(str(mpirun))


def test_no_mpirun_at_all() -> None:
    with pytest.raises(EnvironmentProblem, match="no mpirun"):
        check_open_mpi(None)


def plan_words(monkeypatch: pytest.MonkeyPatch, **environ: str) -> tuple[list[str], dict[str, str]]:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for name, value in {"HVDKIT_JOB": "train", **environ}.items():
        monkeypatch.setenv(name, value)
    hosts = tuple(Host(name=name, slots=2) for name in NAMES)
    plan = plan_for(hosts, ["python", "train.py"], ["--tag-output"], Path("/tmp/ssh/config"))
    assert (plan.world_size, plan.host_count) == (4, 2)
    return list(plan.processes[0].argv), dict(plan.processes[0].env)


def test_mpirun_reaches_the_workers_with_the_jobs_own_ssh(monkeypatch: pytest.MonkeyPatch) -> None:
    argv, env = plan_words(monkeypatch, HOROVOD_CYCLE_TIME="3.5", NCCL_DEBUG="INFO", HVDKIT_WORLD_SIZE="4")
    assert argv[argv.index("-H") + 1] == f"{NAMES[0]}:2,{NAMES[1]}:2"
    assert argv[argv.index("plm_rsh_args") + 1] == "-F /tmp/ssh/config"
    assert argv[argv.index("plm_rsh_no_tree_spawn") + 1] == "1"
    assert "--prefix" in argv
    assert argv.index("--tag-output") < argv.index("hvdkit.runtime.pod_wrapper")
    for name, value in {"HOROVOD_CYCLE_TIME": "3.5", "NCCL_DEBUG": "INFO", "HVDKIT_WORLD_SIZE": "4"}.items():
        assert env[name] == value
        assert argv[argv.index(name) - 1] == "-x"


def test_a_parameter_of_the_users_takes_the_place_of_ours() -> None:
    own = ["--mca", "plm_rsh_no_tree_spawn", "0", "-mca", "pml", "cm"]
    argv = plan_for((Host(name="a"),), ["true"], own, Path("/tmp/ssh/config")).processes[0].argv
    for name, value in {"plm_rsh_no_tree_spawn": "0", "pml": "cm", "plm_rsh_args": "-F /tmp/ssh/config"}.items():
        assert argv.count(name) == 1 and argv[argv.index(name) + 1] == value


def test_an_elastic_world_takes_lost_workers_back(tmp_path: Path) -> None:
    argv, _ = horovodrun(["127.0.0.1"], 1, 2, 1, ["true"], tmp_path)
    words = argv[argv.index("horovod.runner.launch") + 1 : argv.index("hvdkit.runtime.pod_wrapper") - 2]
    code = "import sys; from horovod.runner.launch import parse_args; print(parse_args().cooldown_range)"
    found = subprocess.run([sys.executable, "-c", code, *words, "true"], capture_output=True, text=True, timeout=120)
    assert found.stdout.strip() == "[10, 300]", found.stderr


def test_a_worker_with_ipv6_only_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "names").write_text("fd00::5 w-0.train\n")
    monkeypatch.setenv("HVDKIT_NAMES", str(tmp_path / "names"))
    with pytest.raises(EnvironmentProblem, match=r"w-0 \(w-0\.train has an IPv6 address only, fd00::5, and ranks meet"):
        mpijob_launcher.wait_for_workers(["w-0.train"], 0)


def test_the_launchers_cores_are_not_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    argv, env = plan_words(monkeypatch)
    assert "OMP_NUM_THREADS" not in argv and "OMP_NUM_THREADS" not in env
    assert "HOROVOD_FUSION_THRESHOLD" not in env  # only the workers know whether they have GPUs
    argv, env = plan_words(monkeypatch, OMP_NUM_THREADS="6")
    assert env["OMP_NUM_THREADS"] == "6" and "OMP_NUM_THREADS" in argv


def test_a_long_list_of_missing_workers_is_cut() -> None:
    with pytest.raises(EnvironmentProblem, match=r"train-worker-0 \(its name does not resolve\).* and 15 more"):
        mpijob_launcher.wait_for_workers([f"train-worker-{number}.nowhere.invalid" for number in range(20)], 0)
