"""Pods that train as one world without an operator: two of them, as processes of this machine, with real ranks."""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from pods import Pod, free_port, pod, rank_script, written

HOROVOD = """
import horovod.torch as hvd, torch
hvd.init()
total = hvd.allreduce(torch.tensor([hvd.rank() + 1.0]), op=hvd.Sum, name="ranks")
place = f"local {hvd.local_rank()} of {hvd.local_size()}, pod {hvd.cross_rank()} of {hvd.cross_size()}"
print(f"rank {hvd.rank()} of {hvd.size()}, {place}: {total.item():.0f}")
"""

DDP = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1, bias=False))
model(torch.full((1, 1), rank + 1.0)).sum().backward()
gradient = model.module.weight.grad.item()
# Horovod's variables must not lead a script, or hvdkit's own engine, to think that Horovod runs.
print(f"rank {rank} of {dist.get_world_size()}: gradient {gradient}, Horovod {'HOROVOD_RANK' in os.environ}")
dist.destroy_process_group()
"""


@contextlib.contextmanager
def two_pods(
    folder: Path, *command: str, engine: str = "horovod", find: str = "index", slots: int = 1, count: int = 2, wait=60
) -> Iterator[list[Pod]]:
    """The pods of one job of two; `count` 1 starts the first one only."""
    names = ["127.0.0.1 train-0.train", "127.0.0.1 train", "127.0.0.2 train"]
    port = free_port()
    flags = ("--workers", "2", "--slots", str(slots), "--service", "train", "--engine", engine, "--port", str(port))
    flags += ("--find", find, "--wait-seconds", str(wait))
    with contextlib.ExitStack() as stack:
        pods = []
        for number in range(count):
            variables = {
                "HVDKIT_NAMES": written(folder, "names", *names),
                "HVDKIT_JOB": "train",
                "JOB_COMPLETION_INDEX": str(number),
                "POD_IP": f"127.0.0.{number + 1}",
            }
            pods.append(stack.enter_context(pod(folder, "pod_rank", *flags, "--", *command, **variables)))
        yield pods


def test_horovod_without_mpi_and_ssh(tmp_path: Path) -> None:
    script = written(tmp_path, "train.py", HOROVOD)
    with two_pods(tmp_path, "python", script, slots=2) as pods:
        assert [one.wait() for one in pods] == [0, 0], [one.output() for one in pods]
        assert sorted(pods[0].output().splitlines()) == [
            "[0] rank 0 of 4, local 0 of 2, pod 0 of 2: 10",
            "[1] rank 1 of 4, local 1 of 2, pod 0 of 2: 10",
        ]
        assert sorted(pods[1].output().splitlines()) == [
            "[2] rank 2 of 4, local 0 of 2, pod 1 of 2: 10",
            "[3] rank 3 of 4, local 1 of 2, pod 1 of 2: 10",
        ]


def test_places_by_address(tmp_path: Path) -> None:
    with two_pods(tmp_path, "python", str(rank_script(tmp_path)), "leave", find="addresses") as pods:
        assert [one.wait() for one in pods] == [0, 0], [one.output() for one in pods]
        assert [one.output() for one in pods] == ["[0] rank 0 is here\n", "[1] rank 1 is here\n"]


def test_torchrun_averages_gradients(tmp_path: Path) -> None:
    with two_pods(tmp_path, "python", written(tmp_path, "train.py", DDP), engine="ddp") as pods:
        assert [one.wait() for one in pods] == [0, 0], [one.output() for one in pods]
        assert [one.output() for one in pods] == [
            f"[{number}] rank {number} of 2: gradient 1.5, Horovod False\n" for number in range(2)
        ]


@pytest.mark.parametrize("engine", ["horovod", "ddp"])
def test_the_first_failing_ranks_code_is_every_pods(tmp_path: Path, engine: str) -> None:
    with two_pods(tmp_path, "python", str(rank_script(tmp_path)), "fail", engine=engine) as pods:
        assert [one.wait() for one in pods] == [7, 7], [one.output() for one in pods]
        own, other = pods[1].termination(), pods[0].termination()
        assert (own["rank"], own["tail"][-1]) == (1, "rank 1 is going to fail")
        assert own["reason"] == other["reason"] == f"rank 1 on {os.uname().nodename} exited with code 7"
        for one in pods:
            one.wait_until_gone()


@pytest.mark.parametrize("asked", [0, 1])
def test_when_one_pod_must_stop_all_ranks_save(tmp_path: Path, asked: int) -> None:
    with two_pods(tmp_path, "python", str(rank_script(tmp_path)), "wait") as pods:
        for one in pods:
            one.wait_for("is here")
        pods[asked].process.terminate()
        assert [one.wait() for one in pods] == [75, 75], [one.output() for one in pods]
        assert all("has saved" in one.output() for one in pods)


@pytest.mark.parametrize("victim", [0, 1])
def test_the_loss_of_a_pod_ends_the_world(tmp_path: Path, victim: int) -> None:
    """75 starts the others again: what happened is not their failure."""
    with two_pods(tmp_path, "python", str(rank_script(tmp_path)), "wait") as pods:
        for one in pods:
            one.wait_for("is here")
        os.kill(pods[victim].process.pid, signal.SIGKILL)
        pods[victim].wait()
        left = pods[1 - victim]
        assert left.wait() == 75, left.output()
        assert f"the pod train-{victim} has gone" in left.termination()["reason"]
        for one in pods:
            one.wait_until_gone()


def test_a_missing_pod_is_named(tmp_path: Path) -> None:
    with two_pods(tmp_path, "true", count=1, wait=1) as [first]:
        assert first.wait() == 75, first.output()  # else the Job would fail for good
        assert "train-1 (has not joined)" in first.termination()["reason"]
    variables = {"JOB_COMPLETION_INDEX": "1", "HVDKIT_JOB": "train"}
    flags = ("--workers", "2", "--slots", "1", "--service", "train", "--wait-seconds", "1")
    with pod(tmp_path, "pod_rank", *flags, "--", "true", **variables) as other:
        assert other.wait() == 75, other.output()
        assert "train-0 (its name train-0.train does not resolve)" in other.output()


def test_a_pod_of_another_size_is_turned_away(tmp_path: Path) -> None:
    """Half of the pods from an older manifest must not become a world."""
    port = str(free_port())
    names = written(tmp_path, "names", "127.0.0.1 train-0.train")
    flags = ("--workers", "2", "--service", "train", "--port", port, "--wait-seconds", "3")
    with contextlib.ExitStack() as stack:
        pods = [
            stack.enter_context(
                pod(
                    tmp_path, "pod_rank", *flags, "--slots", str(number + 1), "--", "true",
                    HVDKIT_NAMES=names, HVDKIT_JOB="train", JOB_COMPLETION_INDEX=str(number),
                )
            )
            for number in range(2)
        ]  # fmt: skip
        assert [one.wait() for one in pods] == [75, 75]  # both may start again; the job ends by its backoff limit
        assert "train-1 (has not joined)" in pods[0].output()
