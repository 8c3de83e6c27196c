"""The local renderer: whole plans compared, and any spec either renders or is refused by our own error."""

import os
import subprocess
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdkit.cli.local_plan_text import explanation
from hvdkit.errors import HvdkitError, InputError
from hvdkit.jobs.local import Machine, render
from hvdkit.jobs.spec import Host, JobSpec
from hvdkit.jobs.tuning import TUNED, is_autotuned, leave_to_autotune
from hvdkit.local.machine import read_machine

MACHINE = Machine(
    cores=8,
    python="/venv/bin/python3",
    package="/venv/lib/hvdkit",
    working_folder="/home/user",
    path="/usr/bin",
    mpirun="/venv/bin/mpirun",
    mpi_prefix="/venv",
)


def spec(**fields) -> JobSpec:
    return JobSpec(**({"name": "demo", "command": ("python", "train.py")} | fields))


def test_two_ranks_by_mpi() -> None:
    (process,) = render(spec(workers=2), MACHINE).processes
    assert process.env == {
        "HVDKIT_JOB": "demo",
        "HVDKIT_WORLD_SIZE": "2",
        "HVDKIT_HOSTS": "1",
        "OMP_NUM_THREADS": "4",
        "PATH": "/venv/bin:/usr/bin",
        "PYTHONPATH": "/venv/lib/hvdkit/runtime/site",
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
        "MALLOC_TRIM_THRESHOLD_": "1099511627776",
        "MALLOC_MMAP_THRESHOLD_": "33554432",
        "HOROVOD_CONTROLLER": "mpi",
        "HOROVOD_CPU_OPERATIONS": "mpi",
        "HOROVOD_FUSION_THRESHOLD": "0",
        "HOROVOD_CYCLE_TIME": "5",
        "OPAL_PREFIX": "/venv",
    }
    assert " ".join(process.argv) == (
        "/venv/bin/mpirun -np 2 --bind-to none --oversubscribe"
        " --mca mpi_yield_when_idle 1 --mca pml ob1 --mca btl self,vader --mca plm isolated"
        " -x HVDKIT_JOB -x HVDKIT_WORLD_SIZE -x HVDKIT_HOSTS -x OMP_NUM_THREADS -x PATH -x PYTHONPATH"
        " -x PYTHONUNBUFFERED -x PYTHONFAULTHANDLER -x MALLOC_TRIM_THRESHOLD_ -x MALLOC_MMAP_THRESHOLD_"
        " -x HOROVOD_CONTROLLER -x HOROVOD_CPU_OPERATIONS"
        " -x HOROVOD_FUSION_THRESHOLD -x HOROVOD_CYCLE_TIME -x OPAL_PREFIX"
        " /venv/bin/python3 -m hvdkit.runtime.rank -- /venv/bin/python3 train.py"
    )


def test_ranks_that_fill_the_cores_stay_on_them() -> None:
    hosts = (Host(name="a", slots=16), Host(name="b", slots=16))
    cases = {
        "more": (spec(workers=9), MACHINE),
        "as many": (spec(workers=8), MACHINE),
        "fewer": (spec(workers=7), MACHINE),
        "gloo, which sleeps": (spec(workers=9, controller="gloo"), MACHINE),
        "hosts, whose cores we do not know": (spec(workers=2, hosts=hosts), MACHINE),
        "GPUs": (spec(workers=9), replace(MACHINE, gpus=16)),
        "as the user says": (spec(workers=9, env={"HVDKIT_BIND": "0"}), MACHINE),
    }
    found = {name: render(*case).processes[0].env.get("HVDKIT_BIND") for name, case in cases.items()}
    assert found == dict.fromkeys(cases) | {"more": "1", "as many": "1", "as the user says": "0"}


def test_memory_is_kept_on_cpus_unless_the_user_says_otherwise() -> None:
    names = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")
    with_gpus = render(spec(workers=2), replace(MACHINE, gpus=2)).processes[0].env
    assert not set(names) & with_gpus.keys()
    asked = render(spec(workers=2, env={names[0]: "1"}), MACHINE).processes[0].env
    assert asked[names[0]] == "1"


def test_hosts_with_unequal_slots_by_gloo() -> None:
    hosts = (Host(name="a", slots=2), Host(name="b", slots=1))
    plan = render(spec(workers=2, hosts=hosts, controller="gloo"), MACHINE)
    names = ("HOSTNAME", "RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
    rows = [[process.env[f"HOROVOD_{name}"] for name in names] for process in plan.processes]
    assert rows == [
        ["a", "0", "3", "0", "2", "0", "2"],
        ["a", "1", "3", "1", "2", "0", "1"],
        ["b", "2", "3", "0", "1", "1", "2"],
    ]
    assert [process.host for process in plan.processes] == ["a", "a", "b"]
    assert plan.host_count == 2
    remote = (
        "cd /home/user && exec /venv/bin/python3 -m hvdkit.runtime.rank --env-from-stdin"
        " -- /venv/bin/python3 train.py"
    )
    assert plan.processes[0].argv[0] == "ssh" and plan.processes[0].argv[-2:] == ("a", remote)
    assert all(process.env_on_stdin for process in plan.processes)


def test_with_gpus_horovod_keeps_its_own_defaults() -> None:
    for controller in ("mpi", "gloo"):
        (process, *_) = render(spec(controller=controller), replace(MACHINE, gpus=8)).processes
        assert "HOROVOD_FUSION_THRESHOLD" not in process.env and "HOROVOD_CYCLE_TIME" not in process.env


def test_fusion_is_off_through_shared_memory_only() -> None:
    (process, *_) = render(spec(workers=2, hosts=(Host(name="a", slots=1), Host(name="b", slots=1))), MACHINE).processes
    assert process.env["HOROVOD_FUSION_THRESHOLD"] == "1048576"


@pytest.mark.parametrize("hosts", [(), (Host(name="a", slots=1), Host(name="b", slots=1))])
@pytest.mark.parametrize("controller", ["mpi", "gloo"])
def test_what_horovod_shall_tune_is_left_out(controller: str, hosts: tuple[Host, ...]) -> None:
    common = {"workers": 2, "controller": controller, "hosts": hosts}
    plan = render(spec(autotune=True, **common), MACHINE)
    for process in plan.processes:
        assert process.env["HOROVOD_AUTOTUNE"] == "1" and not set(TUNED) & set(process.env)
    assert not set(TUNED) & {setting.name for setting in plan.settings}
    (said,) = [line for line in explanation(plan).splitlines() if line.startswith("    --autotune")]
    assert all(name in said for name in TUNED)

    by_variable = render(spec(env={"HOROVOD_AUTOTUNE": "1"}, **common), MACHINE).processes[0].env
    by_shell = render(spec(**common), replace(MACHINE, autotune="1")).processes[0].env
    assert not set(TUNED) & set(by_shell)
    assert not set(TUNED) & set(by_variable)
    never = render(spec(autotune=True, env={"HOROVOD_AUTOTUNE": "0"}, **common), MACHINE).processes[0].env
    assert "HOROVOD_CYCLE_TIME" in never
    fixed = render(spec(autotune=True, env={"HOROVOD_CYCLE_TIME": "3"}, **common), MACHINE).processes[0].env
    assert fixed["HOROVOD_CYCLE_TIME"] == "3" and "HOROVOD_FUSION_THRESHOLD" not in fixed


@pytest.mark.parametrize("hosts", [(), (Host(name="a", slots=1), Host(name="b", slots=1))])
@pytest.mark.parametrize("controller", ["mpi", "gloo"])
def test_a_rank_that_asks_for_it_itself_tunes_what_hvdkit_had_set(controller: str, hosts: tuple[Host, ...]) -> None:
    plan = render(spec(workers=2, controller=controller, hosts=hosts), MACHINE)
    rank = dict(plan.processes[0].env)
    leave_to_autotune(rank)
    assert set(plan.processes[0].env) - set(rank) == set(plan.processes[0].env) & set(TUNED) != set()
    own = {**plan.processes[0].env, "HOROVOD_CYCLE_TIME": "3"}
    leave_to_autotune(own)
    assert own["HOROVOD_CYCLE_TIME"] == "3" and "HOROVOD_FUSION_THRESHOLD" not in own
    stock = {"HOROVOD_CONTROLLER": controller, "HOROVOD_CYCLE_TIME": "5", "HOROVOD_FUSION_THRESHOLD": "0"}
    leave_to_autotune(stock)
    assert len(stock) == 3


@pytest.mark.parametrize(("value", "on"), [("1", True), (" 02", True), ("0", False), ("", False), ("yes", False)])
def test_autotune_is_read_as_horovod_reads_it(value: str, on: bool) -> None:
    assert is_autotuned({"HOROVOD_AUTOTUNE": value}) is on
    assert is_autotuned({"HOROVOD_AUTOTUNE": value}, asked=True) is on


def test_what_the_user_sets_wins() -> None:
    own = {"OMP_NUM_THREADS": "7", "HOROVOD_CYCLE_TIME": "3"}
    plan = render(spec(env=own, mpi_args=("--mca", "pml", "ucx")), MACHINE)
    (process,) = plan.processes
    assert process.env["OMP_NUM_THREADS"] == "7" and process.env["HOROVOD_CYCLE_TIME"] == "3"
    words = list(process.argv)
    assert words[words.index("pml") + 1] == "ucx" and words.count("pml") == 1  # mpirun refuses to hear it twice
    assert "ob1" not in [setting.value for setting in plan.settings]
    assert words.count("OMP_NUM_THREADS") == 1


@pytest.mark.parametrize("word", ["--mca", "-mca"])
def test_mpirun_takes_a_parameter_of_the_users_instead_of_ours(word: str) -> None:
    """The real mpirun, on our whole command line but for the ranks' program."""
    machine = read_machine()
    assert machine.mpirun is not None
    (process,) = render(spec(mpi_args=(word, "mpi_yield_when_idle", "0", word, "btl", "self,tcp")), machine).processes
    words = [*process.argv[: process.argv.index(machine.python)], "sh", "-c", 'echo "btl $OMPI_MCA_btl"']
    found = subprocess.run(words, env=os.environ | process.env, capture_output=True, text=True, timeout=120)
    assert (found.returncode, found.stdout) == (0, "btl self,tcp\n"), found.stdout + found.stderr


def test_every_argument_and_variable_has_a_reason() -> None:
    plan = render(spec(workers=2, timeline="/tmp/t.json", autotune=True), MACHINE)
    explained = {setting.name for setting in plan.settings}
    assert set(plan.processes[0].env) <= explained
    assert all(setting.reason for setting in plan.settings)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"command": ()}, "command"),
        ({"workers": 0}, "workers"),
        ({"slots": -1}, "slots"),
        ({"controller": "nccl"}, "controller"),
        ({"backend": "slurm"}, "backend"),
        ({"name": "x" * 64}, "name"),
        ({"env": {"A B": "1"}}, "env"),
        ({"env": {"A": "a\0b"}}, "env"),
        ({"hosts": (Host(name="a"), Host(name="a")), "workers": 2}, "hosts"),
    ],
)
def test_a_wrong_field_is_named(fields: dict, named: str) -> None:
    with pytest.raises(InputError, match=f"^{named}: "):
        spec(**fields)


def test_a_spec_does_not_change_with_the_dictionary_it_was_made_from() -> None:
    env = {"A": "1"}
    made = spec(env=env)
    env["A"] = "2"
    assert made.env == {"A": "1"}


text = st.text(max_size=20)


@given(
    name=text,
    workers=st.integers(-2, 300),
    slots=st.integers(-2, 300),
    controller=st.sampled_from(["mpi", "gloo", "x"]),
    threads=st.none() | st.integers(-1, 9),
    command=st.lists(text, max_size=4).map(tuple),
    env=st.dictionaries(text, text, max_size=3),
)
def test_any_spec_renders_or_is_refused_by_our_error(**fields) -> None:
    try:
        plan = render(JobSpec(**fields), MACHINE)
    except HvdkitError as error:
        assert str(error)
        return
    assert plan.world_size == fields["workers"] * fields["slots"]
    for process in plan.processes:
        program, *arguments = fields["command"]
        assert process.argv[process.argv.index("--") + 1 :] == (program, *arguments)
        assert fields["env"].items() <= process.env.items()
