"""kill -9 of a rank, of its wrapper, of mpirun and of the launcher, at every stage: nothing is left 10 s later."""

import os
import signal
import time
from pathlib import Path

import pytest
from launching import Launch, launching, wait_until

SCRIPT = """
import os, pathlib, subprocess, sys
subprocess.Popen(["sleep", "600"])  # stands for a data loader's worker
print("importing")
import torch
import horovod.torch as hvd
hvd.init()
for step in range(1_000_000):
    hvd.allreduce(torch.ones(1000), name="gradient")
    if step == 5:
        print("training")
"""

VICTIMS = {
    "rank": "python train.py",
    "wrapper": "-m hvdkit.runtime.rank",
    "mpirun": "mpirun -np",
    "launcher": "-m hvdkit launch",
}

BLAMED = {
    "rank": ["was killed by SIGKILL"],
    # Before its first word nothing but mpirun knows of a wrapper.
    "wrapper": ["vanished: its wrapper was killed", "mpirun ended with code 137", "was killed by SIGKILL"],
    "mpirun": ["mpirun was killed by SIGKILL"],
}


def pid_at_stage(run: Launch, stage: str, victim: str) -> int:
    """Wait until the run is at that stage; returns the pid of the victim."""
    if stage != "start":
        run.wait_for({"import": "importing", "training": "training"}[stage], times=2)
    if victim == "launcher":
        if stage == "start":
            run.pid_of("-m hvdkit.runtime")  # it has begun to start others
        return run.process.pid
    pids: list[int] = []

    def found() -> bool:
        pids[:] = [pid for pid, line in run.processes().items() if _is(victim, line)]
        return bool(pids)

    wait_until(found, lambda: f"a {victim} in {run.processes()}\n{run.output()}")
    return pids[-1]


def _is(victim: str, line: str) -> bool:
    # The launcher's and mpirun's command lines end with those of the wrapper and the rank.
    longer = {"rank": ("wrapper", "mpirun", "launcher"), "wrapper": ("mpirun", "launcher"), "mpirun": ("launcher",)}
    return VICTIMS[victim] in line and not any(VICTIMS[other] in line for other in longer[victim])


@pytest.mark.parametrize("stage", ["start", "import", "training"])
@pytest.mark.parametrize(
    ("controller", "victim"),
    [
        *(("mpi", victim) for victim in VICTIMS),
        *(("gloo", victim) for victim in VICTIMS if victim != "mpirun"),
    ],
)
def test_kill_leaves_nothing_behind(controller: str, victim: str, stage: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    arguments = ["--workers", "2", "--controller", controller, "--", "python", "train.py"]
    with launching(tmp_path, *arguments) as run:
        pid = pid_at_stage(run, stage, victim)
        killed = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        run.wait_until_gone(since=killed)  # the launcher too: a zombie until we ask for its code
        code = run.wait()
        if victim == "launcher":
            assert code == -signal.SIGKILL
        else:
            assert code == 128 + signal.SIGKILL, run.output()
            assert any(sentence in run.output() for sentence in BLAMED[victim]), run.output()
