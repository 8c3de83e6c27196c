"""What a pod adds to a rank's environment, what the kernel says about memory, and whom a pod asks to stop."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hvdkit.local.machine import usable_cores
from hvdkit.runtime import memory
from hvdkit.runtime.pod_ranks import ask_ranks_to_stop, rank_wrappers
from hvdkit.runtime.pod_wrapper import add_what_the_pod_knows, with_torch_variables
from hvdkit.runtime.processes import ask_to_stop, descendants


def test_the_pods_own_cores_make_the_threads() -> None:
    environ = {"OMPI_COMM_WORLD_LOCAL_SIZE": "1", "HOROVOD_CONTROLLER": "mpi"}
    add_what_the_pod_knows(environ)
    assert environ["OMP_NUM_THREADS"] == str(usable_cores())
    assert "HOROVOD_FUSION_THRESHOLD" in environ  # there is no GPU on this machine
    assert "MALLOC_TRIM_THRESHOLD_" in environ
    assert environ["PYTHONPATH"].endswith("hvdkit/runtime/site")


def test_nothing_that_was_set_is_overruled() -> None:
    given = {"OMP_NUM_THREADS": "3", "HOROVOD_CONTROLLER": "mpi", "HOROVOD_CYCLE_TIME": "9", "PYTHONPATH": "/mine"}
    given["MALLOC_TRIM_THRESHOLD_"] = "1"
    environ = dict(given)
    add_what_the_pod_knows(environ)
    assert {name: environ[name] for name in given if name != "PYTHONPATH"} == {
        name: value for name, value in given.items() if name != "PYTHONPATH"
    }
    assert environ["PYTHONPATH"].endswith("site:/mine")
    again = dict(environ)
    add_what_the_pod_knows(again)
    assert again == environ


@pytest.mark.parametrize("controller", ["mpi", "gloo"])
def test_what_horovod_shall_tune_stays_unset(controller: str) -> None:
    environ = {"HOROVOD_CONTROLLER": controller, "HOROVOD_AUTOTUNE": "1"}
    add_what_the_pod_knows(environ)
    assert "HOROVOD_FUSION_THRESHOLD" not in environ and "HOROVOD_CYCLE_TIME" not in environ


def test_ranks_of_mpi_may_be_bound_to_cores_unless_the_user_says_no() -> None:
    for given, expected in (({}, "1"), ({"HVDKIT_BIND": "0"}, "0")):
        environ = {"HOROVOD_CONTROLLER": "mpi", **given}
        add_what_the_pod_knows(environ)
        assert environ["HVDKIT_BIND"] == expected
    environ = {"HOROVOD_CONTROLLER": "gloo"}
    add_what_the_pod_knows(environ)
    assert "HVDKIT_BIND" not in environ


def test_horovods_variables_are_hidden_from_torch_scripts() -> None:
    environ = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "2"}
    command = with_torch_variables(["printenv"], "LOCAL_WORLD_SIZE", environ)
    assert (environ["HOROVOD_RANK"], environ["HOROVOD_SIZE"]) == ("5", "2")
    seen = subprocess.run(command, env=os.environ | environ, capture_output=True, text=True).stdout.splitlines()
    assert "RANK=5" in seen
    assert not [line for line in seen if line.startswith(("HOROVOD_RANK", "HOROVOD_SIZE"))]


@pytest.mark.parametrize(
    ("files", "kills", "limit"),
    [
        ({"memory.events": "low 0\noom 4\noom_kill 2\n", "memory.max": "268435456\n"}, 2, 268435456),
        ({"memory.events": "oom_kill 0\n", "memory.max": "max\n"}, 0, None),
        ({"memory/memory.oom_control": "under_oom 0\noom_kill 1\n", "memory/memory.limit_in_bytes": "1024\n"}, 1, 1024),
        ({"memory/memory.limit_in_bytes": "9223372036854771712\n"}, 0, None),
    ],
)
def test_the_kernels_count_in_both_cgroup_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], kills: int, limit: int | None
) -> None:
    # This machine has one version; tests/e2e has a rank that is really killed.
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(memory, "_folders", lambda: [tmp_path / "memory", tmp_path])
    assert memory.oom_kills() == kills
    assert memory.memory_limit() == limit


def test_the_command_is_asked_to_stop_and_not_its_wrapper(tmp_path: Path) -> None:
    script = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(75)); print('ready', flush=True)"
    command = [sys.executable, "-c", f"{script}; signal.pause()"]
    wrapper = subprocess.Popen(
        [sys.executable, "-m", "hvdkit.runtime.pod_wrapper", "--", *command], stdout=subprocess.PIPE, text=True
    )
    bystander = subprocess.Popen(["sleep", "60"])
    try:
        assert wrapper.stdout is not None and wrapper.stdout.readline() == "ready\n"
        assert rank_wrappers(descendants(os.getpid())) == [wrapper.pid]
        assert ask_ranks_to_stop(descendants(os.getpid())) == 1
        assert wrapper.wait(timeout=60) == 75
        assert bystander.poll() is None
    finally:
        for process in (wrapper, bystander):
            process.kill()
            process.communicate()


def test_processes_that_a_python_program_started_are_not_asked_to_stop() -> None:
    """Else a DataLoader raises, because its worker was ended. What a shell started is asked, and so is the shell."""
    script = """if True:
        import signal, subprocess, sys
        helper = subprocess.Popen(['sleep', '60'])
        def stop(*_):
            print(helper.poll())
            helper.kill()
            sys.exit(75)
        signal.signal(signal.SIGTERM, stop)
        print('ready', flush=True)
        signal.pause()
    """
    words = ["sh", "-c", '"$0" -c "$1"; exit', sys.executable, script]
    shell = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        assert shell.stdout is not None and shell.stdout.readline() == "ready\n"
        ask_to_stop(shell.pid)
        assert shell.stdout.readline() == "None\n"
        assert shell.wait(timeout=60) == -signal.SIGTERM
    finally:
        shell.kill()
        shell.communicate()


def test_a_command_that_was_killed_by_hand_is_no_lack_of_memory() -> None:
    wrapper = subprocess.Popen(
        [sys.executable, "-m", "hvdkit.runtime.pod_wrapper", "--", "sleep", "60"], stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while not (below := descendants(wrapper.pid)):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(below[0], signal.SIGKILL)
    assert "memory" not in wrapper.communicate(timeout=60)[1]
    assert wrapper.returncode == 128 + signal.SIGKILL
