"""Ranks die and hosts come during a run; what was committed is not lost, and the run ends at its last step."""

import re
import sys

import psutil
from launching import wait_until
from running import SECONDS, started

from hvdkit.train.datasets.sampling import step_bounds
from hvdkit.train.history import read

# Slow as long as the test needs time to do something to it.
NET = """
import pathlib, time
from torch import nn
class Net(nn.Sequential):
    def forward(self, images):
        if self.training and pathlib.Path("slow").exists():
            time.sleep(0.3)
        return super().forward(images)
def make(classes):
    return Net(nn.Flatten(), nn.Linear(784, classes))
"""
# One machine under several names, each of which Horovod takes for a host of its own.
HOSTS = ("localhost", "127.0.0.1", "127.1")
NEW_HOST = "127.0.1"
IMAGES, EPOCHS = 1000, 6  # 200 steps, which take a minute while they are slow


def test_a_rank_is_killed_and_a_host_is_added(tmp_path):
    (tmp_path / "elastic_net.py").write_text(NET)
    (tmp_path / "slow").touch()
    hosts = tmp_path / "hosts"
    hosts.write_text("".join(f"{name}:1\n" for name in HOSTS))
    discover = tmp_path / "discover.sh"
    discover.write_text(f"#!/bin/sh\ncat {hosts}\n")
    discover.chmod(0o755)
    log = tmp_path / "log"
    command = (
        *("horovodrun", "--gloo", "-np", "3", "--min-np", "1", "--max-np", "3", "--network-interfaces", "lo"),
        *("--host-discovery-script", str(discover), sys.executable, "-m", "hvdkit.train", "--elastic"),
        *("--model=elastic_net:make", "--data=synthetic", f"--synthetic-images={IMAGES}", "--batch-size=10"),
        *(f"--epochs={EPOCHS}", "--report-seconds=0.2", "--output=out"),
    )

    def said(pattern: str) -> list[str]:
        return re.findall(pattern, log.read_text(errors="replace"))

    def wait_for(pattern: str, times: int = 1) -> list[str]:
        wait_until(lambda: len(said(pattern)) >= times, lambda: f"{times} x {pattern}:\n{log.read_text()}")
        return said(pattern)

    # With a rank that is gone. And looking for gradients as seldom as under `hvdkit launch` leaves others the cores.
    impatient = {"HOROVOD_GLOO_TIMEOUT_SECONDS": "10", "HOROVOD_CYCLE_TIME": "25"}
    with log.open("w") as stream, started(*command, cwd=tmp_path, output=stream, **impatient) as job:
        wait_for(r"step \d+/\d+ ", times=15)  # some seconds: there are commits
        ranks = [one for one in psutil.Process(job.pid).children(recursive=True) if is_rank(one, HOSTS[2])]
        assert len(ranks) == 1
        ranks[0].kill()
        wait_for("a new world of 2 ranks goes on from step")
        hosts.write_text("".join(f"{name}:1\n" for name in (*HOSTS, NEW_HOST)))
        wait_for("a new world of 3 ranks goes on from step")
        (tmp_path / "slow").unlink()
        job.wait(timeout=SECONDS)
    assert job.returncode == 0, log.read_text()

    first, second = (int(step) for step in wait_for(r"goes on from step (\d+)", times=2))
    assert 0 < first <= second
    lines = read(tmp_path / "out" / "metrics.jsonl")
    assert [line["world"]["ranks"] for line in lines if line["kind"] == "start"] == [3, 2, 3]
    assert [line["step"] for line in lines if line["kind"] == "start"] == [0, first, second]
    steps = [line["step"] for line in lines if line["kind"] == "interval"]
    assert steps == sorted(set(steps)), "no step was lost or told twice"
    assert lines[-1]["kind"] == "summary"
    assert lines[-1]["ranks"] == 3
    assert lines[-1]["steps"] == steps_of([(3, first), (2, second), (3, None)])


def steps_of(worlds: list[tuple[int, int | None]]) -> int:
    """The steps that see every image once an epoch, when each world of so many ranks goes on to that step."""
    step = position = epoch = 0
    for ranks, last in worlds:
        while epoch < EPOCHS and step != last:
            ends = [end for _, end in step_bounds(IMAGES, position, 10 * ranks, ranks)]
            taken = ends if last is None else ends[: last - step]
            step, position = step + len(taken), taken[-1]
            if position == IMAGES:
                epoch, position = epoch + 1, 0
    return step


def is_rank(process: psutil.Process, host: str) -> bool:
    words = process.cmdline()
    return "hvdkit.train" in words and words[0] == sys.executable and process.environ().get("HOROVOD_HOSTNAME") == host
