"""DDP on a real Monarch mesh of two processes on this machine."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from launching import Launch
from pods import pod, rank_script, written

TRAIN = """
import os, torch, torch.distributed as dist
torch.manual_seed(0)
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(rank)
data = torch.randn(64, 4)
target = data @ torch.tensor([[1.0], [-2.0], [3.0], [0.5]])

model = torch.nn.Linear(4, 1, bias=False)  # another start on each rank: DDP sends rank 0's weights
ddp = torch.nn.parallel.DistributedDataParallel(model)
own = torch.nn.Linear(4, 1, bias=False)
own.load_state_dict(model.state_dict())
torch.nn.functional.mse_loss(own(data), target).backward()
mean = own.weight.grad.clone()
dist.all_reduce(mean)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
for step in range(60):
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(ddp(data), target)
    loss.backward()
    if step == 0:
        averaged = torch.allclose(model.weight.grad, mean / size) and not torch.allclose(mean / size, own.weight.grad)
    optimizer.step()
weights = [torch.empty_like(model.weight) for _ in range(size)]
dist.all_gather(weights, model.weight.detach())
same = all(torch.equal(weights[0], other) for other in weights)
place = f"rank {rank} of {size}, local {os.environ['LOCAL_RANK']}"
print(f"{place}: averaged {averaged}, same {same}, learnt {loss < 0.01}")
dist.destroy_process_group()
"""


def controller(folder: Path, *command: str):
    flags = ("--mesh", "train", "--hosts", "2", "--procs", "1", "--local")
    return pod(folder, "monarch_controller", *flags, "--", *command)


def test_ddp_on_a_mesh(tmp_path: Path) -> None:
    with controller(tmp_path, "python", written(tmp_path, "train.py", TRAIN)) as run:
        assert run.wait() == 0, run.output()
        assert sorted(run.output().splitlines()) == [
            f"[{rank}] rank {rank} of 2, local {rank}: averaged True, same True, learnt True" for rank in range(2)
        ]
        run.wait_until_gone()


def test_the_failing_ranks_code_and_last_lines_stay(tmp_path: Path) -> None:
    with controller(tmp_path, "python", str(rank_script(tmp_path)), "fail") as run:
        assert run.wait() == 7, run.output()
        message = run.termination()
        assert (message["exit_code"], message["rank"]) == (7, 1)
        assert message["tail"][-1] == "rank 1 is going to fail"
        run.wait_until_gone()


def test_sigterm_lets_the_ranks_save(tmp_path: Path) -> None:
    with controller(tmp_path, "python", str(rank_script(tmp_path)), "wait") as run:
        run.wait_for("is here", times=2)
        run.process.terminate()
        assert run.wait() == 75, run.output()
        assert run.output().count("has saved") == 2


def test_nothing_is_left_after_kill_and_ctrl_c(tmp_path: Path) -> None:
    for signum, code in ((signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130)):
        with controller(tmp_path, "python", str(rank_script(tmp_path)), "wait") as run:
            run.wait_for("is here", times=2)
            os.kill(run.process.pid, signum)
            assert run.wait() == code, run.output()
            run.wait_until_gone()


def test_without_a_cluster_it_says_what_to_do(tmp_path: Path) -> None:
    flags = ("--mesh", "train", "--hosts", "2", "--procs", "1")
    with pod(tmp_path, "monarch_controller", *flags, "--", "true") as run:
        assert run.wait() == 3, run.output()
        assert "--local" in run.output() and "Traceback" not in run.output()


@pytest.fixture
def no_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a user who has no kubeconfig."""
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


@contextmanager
def launch(folder: Path, *arguments: str) -> Iterator[Launch]:
    """`hvdkit launch --backend monarch` of two ranks on this machine."""
    started = Launch(folder, "--backend", "monarch", "--workers", "2", *arguments)  # the last --backend wins
    try:
        yield started
    finally:
        started.kill_all()


@pytest.mark.usefixtures("no_cluster")
class TestLaunch:
    def test_hvdkit_train_is_ddp(self, tmp_path: Path) -> None:
        train = ["hvdkit", "train", "--data", "synthetic", "--synthetic-images", "64", "--batch-size", "8"]
        with launch(tmp_path, "--name", "mesh", "--", *train, "--max-steps", "3", "--output", "out") as run:
            assert run.wait() == 0, run.output()
            run.wait_until_gone()
        first, *others = run.output().splitlines()
        assert first.startswith("hvdkit: mesh: 2 ranks by monarch, ")
        assert first.endswith("; backend monarch on this machine (as asked; no cluster is configured)")
        assert others and all(line.startswith("[0] ") for line in others), run.output()
        start, *_, summary = map(json.loads, (tmp_path / "out" / "metrics.jsonl").read_text().splitlines())
        assert (start["world"]["engine"], start["world"]["ranks"]) == ("ddp", 2)
        assert summary["kind"] == "summary"

    def test_env_exit_code_and_last_lines(self, tmp_path: Path) -> None:
        code = (
            "import os, sys, time; rank = int(os.environ['RANK']); print(os.environ['GREETING'], rank, flush=True)\n"
            "rank == 1 and sys.exit(7)\ntime.sleep(600)"
        )
        with launch(tmp_path, "--env", "GREETING=it's $HOME", "--json", "--", "python", "-c", code) as run:
            assert run.wait() == 7, run.output()
            outcome = json.loads(run.output().splitlines()[-1])
            assert (outcome["exit_code"], outcome["rank"], outcome["tail"]) == (7, 1, ["it's $HOME 1"])
            run.wait_until_gone()

    def test_signals(self, tmp_path: Path) -> None:
        """SIGTERM lets the ranks save; Ctrl-C and kill -9 leave no process."""
        for signum, code in ((signal.SIGTERM, 75), (signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)):
            with launch(tmp_path, "--", "python", str(rank_script(tmp_path)), "wait") as run:
                run.wait_for("is here", times=2)
                os.kill(run.process.pid, signum)
                assert run.wait() == code, run.output()
                if signum == signal.SIGTERM:
                    assert run.output().count("has saved") == 2
                run.wait_until_gone()
