"""Real ranks, killed or asked to stop in mid-run: the run that goes on ends with the same bits."""

import json
import os
import random
import signal
import time

import psutil
import pytest
from launching import wait_until
from running import LAUNCHERS, SECONDS, run, started

from hvdkit.train.checkpoints import load

# Slow enough that a kill finds it at work, on however fast a machine.
NET = """
import time
from torch import nn
class Net(nn.Sequential):
    def forward(self, images):
        if self.training:
            time.sleep(0.03)
        return super().forward(images)
def make(classes):
    return Net(
        nn.Conv2d(1, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.3),
        nn.Flatten(), nn.Linear(8 * 13 * 13, classes),
    )
"""
TRAIN = (
    "hvdkit",
    "train",
    "--model=killed_net:make",
    "--data=synthetic",
    "--synthetic-images=1300",
    "--augment=standard",
    "--loader-workers=2",
    "--batch-size=16",
    "--epochs=2",
    "--checkpoint-every=2",
    "--keep=2",
    "--report-seconds=0.2",
)
STEPS = 82  # 41 an epoch: 1,300 images in steps of 32, the last of which has 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("killed")
    (folder / "killed_net.py").write_text(NET)
    return folder


@pytest.fixture(scope="module")
def uninterrupted(folder):
    """The model at the end of a run that nobody disturbed."""
    done = run(*LAUNCHERS["hvdkit-mpi"], *TRAIN, "--output=whole", cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return last(folder / "whole")


def last(output):
    (path,) = (output / "checkpoints").glob(f"step-{STEPS:08d}.*")
    return load(path).state


def newest_step(output) -> int:
    names = [path.name for path in output.glob("checkpoints/step-*.pt")]
    return max((int(name[5:13]) for name in names), default=0)


def assert_same(one, other):
    assert one["model"].keys() == other["model"].keys()
    for name, tensor in one["model"].items():
        assert tensor.equal(other["model"][name]), name
    for key, entry in one["optimizer"]["state"].items():
        assert entry["momentum_buffer"].equal(other["optimizer"]["state"][key]["momentum_buffer"])


def ranks(job) -> list[psutil.Process]:
    below = psutil.Process(job.pid).children(recursive=True)
    return [one for one in below if "train" in one.cmdline() and "hvdkit.runtime.rank" not in one.cmdline()]


def test_killed_at_random_moments_the_end_is_the_same(folder, uninterrupted):
    """Three kills: one of rank 0 while it writes a checkpoint, the others whenever it happens to be."""
    output, chance = folder / "killed", random.Random()
    for number in range(3):
        before = newest_step(output)
        with started(*LAUNCHERS["hvdkit-mpi"], *TRAIN, f"--output={output}", cwd=folder) as job:
            wait_until(lambda: newest_step(output) > before, lambda: "a new checkpoint")  # noqa: B023
            if number == 0:
                while not list(output.glob("checkpoints/.writing-*")):
                    assert newest_step(output) < STEPS, "no save was seen under way"
                    time.sleep(0.0005)  # it takes only some milliseconds
            else:
                time.sleep(chance.uniform(0, 0.3))
            victims = [one for one in ranks(job) if one.environ().get("OMPI_COMM_WORLD_RANK") == str(number % 2)]
            victims[0].kill()
            job.communicate(timeout=SECONDS)
        assert job.returncode == 128 + signal.SIGKILL
        assert newest_step(output) < STEPS, "the kill came too late to show anything"
    done = run(*LAUNCHERS["hvdkit-mpi"], *TRAIN, f"--output={output}", cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "resumed from" in done.stdout
    assert_same(last(output), uninterrupted)
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    steps = [line["step"] for line in lines if line["kind"] == "interval"]
    assert steps == sorted(set(steps)), "no interval is told twice"
    assert [line["kind"] for line in lines].count("start") == 4


@pytest.mark.parametrize("to", ["hvdkit-mpi", "hvdkit-gloo"])
def test_asked_to_stop_it_saves_leaves_with_75_and_goes_on(to, folder, uninterrupted):
    output = folder / f"stopped-{to}"
    with started(*LAUNCHERS[to], *TRAIN, "--checkpoint-every=1000", f"--output={output}", cwd=folder) as job:
        for line in job.stdout:
            if " step " in line:
                break
        job.send_signal(signal.SIGTERM)
        stdout, stderr = job.communicate(timeout=SECONDS)
    assert job.returncode == 75, stdout + stderr
    assert stderr.count("as asked; the same command goes on from there") == 1
    assert 0 < newest_step(output) < STEPS
    done = run(*LAUNCHERS[to], *TRAIN, f"--output={output}", cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert_same(last(output), uninterrupted)


def test_three_ranks_are_the_same_in_every_run_when_deterministic(folder):
    """With more than two ranks the order of additions depends on which gradients share a buffer."""
    launcher = ("hvdkit", "launch", "--backend", "local", "--workers", "3", "--")
    same = (word for word in TRAIN[:8] if not word.startswith("--loader-workers"))  # they add nothing up
    flags = (*same, "--deterministic", "--epochs=1", "--checkpoint-every=5", "--keep=100")
    ends = []
    for name in ("first", "second"):
        output = folder / f"deterministic-{name}"
        with started(*launcher, *flags, f"--output={output}", cwd=folder) as job:
            if name == "second":  # this one is killed on the way
                wait_until(lambda: newest_step(output) >= 5, lambda: "a checkpoint")  # noqa: B023
                os.kill(job.pid, signal.SIGKILL)
            job.communicate(timeout=SECONDS)
        if name == "second":
            assert newest_step(output) < 27
            assert run(*launcher, *flags, f"--output={output}", cwd=folder).returncode == 0
        (path,) = (output / "checkpoints").glob("step-00000027.*")
        ends.append(load(path).state)
    assert_same(*ends)
