"""`hvdkit launch --hosts` over real SSH to machines with a network of their own."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from machines import Machines

sys.path.insert(0, str(Path(__file__).parent.parent / "local"))
from launching import launching, run_hvdkit

SCRIPT = """
import os, socket, sys, time
import horovod.torch as hvd, torch
hvd.init()
total = hvd.allreduce(torch.tensor([float(hvd.rank())]), op=hvd.Sum, name="ranks")
print(f"rank {hvd.rank()} of {hvd.size()} on {socket.gethostname()}: {total.item():.0f}", os.environ["GREETING"])
if "fail" in sys.argv and hvd.rank() == 2:
    sys.exit(43)
if "fail" in sys.argv or "wait" in sys.argv:
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory):
    machines = Machines(["a", "b"], tmp_path_factory.mktemp("machines"))
    yield machines
    machines.stop()


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def test_the_names_of_machines_are_no_files_of_this_one(machines: Machines) -> None:
    """A run that is killed would leave them to the next one, which cannot make them again."""
    names = Path("/run/netns")
    assert {path.name for path in names.iterdir()} == set(machines.names)
    assert names.stat().st_dev != names.parent.stat().st_dev


def launch(controller: str, script: Path, *words: str) -> list[str]:
    arguments = ["--hosts", "a:2,b:1", "--controller", controller, "--env", "GREETING=it's $HOME"]
    return [*arguments, "--", "python", str(script), *words]


@pytest.mark.parametrize("controller", ["mpi", "gloo"])
def test_ranks_on_two_machines_are_one_world(machines: Machines, script: Path, controller: str) -> None:
    result = run_hvdkit("launch", *launch(controller, script), cwd=script.parent)
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.splitlines()) == [
        "[0] rank 0 of 3 on a: 3 it's $HOME",
        "[1] rank 1 of 3 on a: 3 it's $HOME",
        "[2] rank 2 of 3 on b: 3 it's $HOME",
    ]


@pytest.mark.parametrize("controller", ["mpi", "gloo"])
def test_the_exit_code_of_a_remote_rank_comes_back(machines: Machines, script: Path, controller: str) -> None:
    result = run_hvdkit("launch", *launch(controller, script, "fail"), cwd=script.parent)
    assert result.returncode == 43, result.stderr
    assert "rank 2 on b exited with code 43" in result.stderr


@pytest.mark.parametrize("controller", ["mpi", "gloo"])
def test_kill_of_the_launcher_ends_remote_ranks(machines: Machines, script: Path, controller: str) -> None:
    # The machines share our process table, so that remote ranks are seen here, by a variable of their own.
    arguments = launch(controller, script, "wait")
    with launching(script.parent, "--env", "HVDKIT_TEST_MARK=remote", *arguments) as run:
        run.mark = b"HVDKIT_TEST_MARK=remote"
        run.wait_for("of 3 on", times=3)
        ranks = [line for line in run.processes().values() if "train.py wait" in line and "hvdkit" not in line]
        assert len(ranks) == 3
        os.kill(run.process.pid, signal.SIGKILL)
        run.wait()
        run.wait_until_gone()


def test_a_host_that_does_not_let_us_in_is_named(machines: Machines, script: Path) -> None:
    (Path.home() / ".ssh" / "authorized_keys").rename(Path.home() / ".ssh" / "elsewhere")
    try:
        result = run_hvdkit("launch", *launch("gloo", script), cwd=script.parent)
    finally:
        (Path.home() / ".ssh" / "elsewhere").rename(Path.home() / ".ssh" / "authorized_keys")
    assert result.returncode == 3
    assert "Permission denied" in result.stderr and "ssh to " in result.stderr
    assert "Traceback" not in result.stderr
    assert subprocess.run(["ssh", "-o", "BatchMode=yes", "a", "true"]).returncode == 0
