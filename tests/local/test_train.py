"""`hvdkit train` with real Horovod ranks, under each launcher and alone."""

import gzip
import json
import os
import re
import signal
import struct
import sys
from pathlib import Path

import psutil
import pytest
from running import LAUNCHERS, MPIRUN, SECONDS, run, started

from hvdkit.train.datasets import digits, idx
from hvdkit.train.history import read


@pytest.fixture(scope="session")
def small_data(tmp_path_factory):
    """A data folder as MNIST's, gzipped, with few images; 301 and 601 leave uneven shares."""
    folder = tmp_path_factory.mktemp("data")
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for part, count, seed in (("train", 601, 11), ("t10k", 301, 12)):
        images, labels = digits.make(count, seed)
        for name, content in (
            ("images-idx3", struct.pack(">IIII", 0x803, count, 28, 28) + images.numpy().tobytes()),
            ("labels-idx1", struct.pack(">II", 0x801, count) + labels.byte().numpy().tobytes()),
        ):
            (raw / f"{part}-{name}-ubyte.gz").write_bytes(gzip.compress(content, 1))
    return folder


@pytest.mark.parametrize(
    ("launcher", "library"),
    [
        ("mpirun", "MPI"),
        ("horovodrun-mpi", "MPI"),
        ("horovodrun-gloo", "Gloo"),
        ("hvdkit-gloo", "Gloo"),
    ],
)
def test_the_same_command_runs_under_every_launcher(launcher, library, small_data, tmp_path):
    """The other two are in the next test."""
    done = run(*LAUNCHERS[launcher], "hvdkit", "train", f"--data-dir={small_data}", f"--output={tmp_path}")
    assert done.returncode == 0, done.stdout + done.stderr
    check_what_was_told(tmp_path, ranks=2, engine="horovod", library=library, test_images=301)


def check_what_was_told(output, *, ranks, engine, library, test_images):
    """From the file: stock launchers may mix the lines of ranks."""
    start, *_, evaluation, summary = read(output / "metrics.jsonl")
    assert start["world"] == {"ranks": ranks, "engine": engine, "library": library, "hosts": start["world"]["hosts"]}
    assert len(start["world"]["hosts"]) == ranks
    assert evaluation["images"] == summary["test_images"] == test_images
    assert (summary["ranks"], summary["hosts"], summary["library"]) == (ranks, 1, library)
    assert summary["images_per_second"] > 0
    assert (summary["allreduce_wait_percent"] is not None) == (engine == "horovod")


@pytest.mark.parametrize(
    ("launcher", "engine", "library"), [("hvdkit-mpi", "horovod", "MPI"), ("torchrun", "ddp", "Gloo")]
)
def test_an_epoch_of_mnist_on_four_ranks_learns(launcher, engine, library, tmp_path):
    """On MNIST where it is, else on synthetic digits: the recipe reaches 97 % on both."""
    launch = [word if word != "2" else "4" for word in LAUNCHERS[launcher]]
    command = ("-m", "hvdkit.train") if launcher == "torchrun" else ("hvdkit", "train")
    nowhere = "http://127.0.0.1:1"  # so that it downloads nothing
    done = run(*launch, *command, f"--output={tmp_path}", http_proxy=nowhere, https_proxy=nowhere)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = read(tmp_path / "metrics.jsonl")[-1]
    mnist_is_here = idx.find(Path("../shared/data"), "train-images-idx3-ubyte") is not None
    assert summary["data"] == ("MNIST" if mnist_is_here else "synthetic digits")
    assert summary["test_accuracy_percent"] >= 97
    check_what_was_told(tmp_path, ranks=4, engine=engine, library=library, test_images=10_000)


ALONE_WITHOUT_MPI = """
import runpy, sys
sys.argv[1:1] = ["train"]
try:
    runpy.run_module("hvdkit", run_name="__main__")
except SystemExit as leaving:
    assert not leaving.code, leaving.code
assert "horovod" not in sys.modules and "torch._dynamo" not in sys.modules
assert "libmpi" not in open("/proc/self/maps").read()
"""


def test_alone_it_is_one_process_that_touches_neither_mpi_nor_a_compiler(small_data):
    done = run(sys.executable, "-c", ALONE_WITHOUT_MPI, f"--data-dir={small_data}", "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["ranks"], summary["library"]) == (1, "none")
    assert re.search(r"^0 +\S+ +cpu +none$", done.stderr, re.MULTILINE), "the table of ranks"


@pytest.mark.parametrize("precision", ["bf16", "amp-bf16"])
def test_bfloat16_trains_on_any_processor(precision, small_data):
    """Also on one that claims AMX and cannot run it, where torch's own first product is the end."""
    done = run("hvdkit", "train", f"--precision={precision}", "--max-steps=2", f"--data-dir={small_data}", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["steps"] == 2


def test_alone_with_horovod_is_a_world_of_one(small_data):
    done = run(sys.executable, "-m", "hvdkit.train", "--engine=horovod", f"--data-dir={small_data}", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ranks"] == 1


SMALL_EATER = """
from torch import nn
class Net(nn.Sequential):
    def forward(self, images):
        assert len(images) <= 8, f"{len(images)} images at once"
        return super().forward(images)
def make(classes, image_size):
    return Net(nn.Flatten(), nn.Linear(image_size**2, classes))
"""


def test_evaluation_takes_no_more_memory_than_training(tmp_path):
    """A model whose step of 8 images just fits must not fail in the evaluation after it."""
    (tmp_path / "small_eater.py").write_text(SMALL_EATER)
    small = ("--model=small_eater:make", "--data=synthetic", "--synthetic-images=100", "--batch-size=8")
    done = run(sys.executable, "-m", "hvdkit.train", *small, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["test_images"] == 100


ENGINE = """
import torch
from hvdkit.runtime.engine import Reduction
from hvdkit.runtime.session import session
with session("auto") as engine:
    assert engine.size == 2 and len(engine.hosts) == 2
    assert engine.gather(f"rank {engine.rank}") == ["rank 0", "rank 1"]
    # A value that one rank has and the other has not must not hang: Horovod names objects by type.
    assert engine.gather(None if engine.rank else "only here") == ["only here", None]
    assert engine.average({"b": 10.0 * engine.rank, "a": 2 ** 53 - engine.rank}) == {"a": 2**53 - 0.5, "b": 5.0}
    torch.manual_seed(engine.rank)
    model = torch.nn.Linear(3, 1, bias=False)
    assert engine.gather_numbers([engine.rank, 2.5]) == [[0.0, 2.5], [1.0, 2.5]]
    assert engine.broadcast({"from": engine.rank}) == {"from": 0}
    sgd = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5)
    if engine.rank == 0:  # as after a checkpoint, which rank 0 reads
        sgd.state[model.weight]["momentum_buffer"] = torch.ones(1, 3)
    prepared = engine.prepare(model, sgd, Reduction())
    before = model.weight.tolist()
    assert engine.gather(before) == [before, before], "rank 0's weights on all ranks"
    with prepared.backward_pass(last=True):
        (prepared.model(torch.full((1, 3), float(1 + engine.rank))).sum()).backward()
    prepared.synchronize()
    assert model.weight.grad.tolist() == [[1.5] * 3], "the mean of gradients 1 and 2"
    prepared.step()
    expected = (torch.tensor(before) - (1.5 + 0.5)).tolist()
    assert model.weight.tolist() == expected, "and half of rank 0's momentum"
    engine.barrier()
    open(f"kept by rank {engine.rank}", "w").close()  # stock launchers may mix the lines of ranks
    if engine.rank == 1:
        raise RuntimeError("rank 1 has had enough")
    while True:
        engine.average({"waiting": 1.0})
"""


@pytest.mark.parametrize("launcher", ["mpirun", "horovodrun-gloo", "hvdkit-mpi", "hvdkit-gloo", "torchrun"])
def test_the_engine_keeps_its_promises_and_an_exception_on_one_rank_ends_all_and_is_shown_once(launcher, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(ENGINE)
    done = run(*LAUNCHERS[launcher], *(() if launcher == "torchrun" else (sys.executable,)), str(script), cwd=tmp_path)
    assert "AssertionError" not in done.stderr, done.stderr
    assert all((tmp_path / f"kept by rank {rank}").exists() for rank in (0, 1)), done.stdout + done.stderr
    assert done.returncode == 1
    # hvdkit launch repeats the last lines of the rank that failed; that is no second traceback.
    own_output = done.stderr.split("the last lines of rank")[0]
    assert own_output.count("RuntimeError: rank 1 has had enough") == 1
    assert "HorovodInternalError" not in own_output


def test_a_loss_that_is_not_finite_stops_the_job_with_one_sentence(small_data):
    done = run(*MPIRUN, "hvdkit", "train", "--lr=1e30", f"--data-dir={small_data}")
    assert done.returncode == 1
    assert len(re.findall(r"hvdkit: the loss is (nan|inf) at step \d+;", done.stderr)) == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("to", ["hvdkit launch", "mpirun", "one rank"])
def test_asked_to_stop_all_ranks_leave_with_75(to, small_data):
    launcher = LAUNCHERS["hvdkit-mpi"] if to == "hvdkit launch" else MPIRUN
    command = ("hvdkit", "train", "--epochs=1000", "--report-seconds=0.2", f"--data-dir={small_data}")
    with started(*launcher, *command) as job:
        for line in job.stdout:
            if re.search(r"step \d+/", line):
                break
        if to == "hvdkit launch":
            job.send_signal(signal.SIGTERM)
        elif to == "mpirun":
            job.send_signal(signal.SIGUSR1)  # which mpirun hands on; after a SIGTERM it kills its ranks
        else:
            ranks = [child for child in psutil.Process(job.pid).children() if "train" in child.cmdline()]
            ranks[-1].send_signal(signal.SIGTERM)
        _, stderr = job.communicate(timeout=SECONDS)
    assert job.returncode == 75, stderr
    assert len(re.findall(r"hvdkit: stopped after step \d+, as asked; nothing was saved", stderr)) == 1


def test_a_signal_shows_the_stacks_and_training_goes_on(small_data):
    with started("hvdkit", "train", "--epochs=9999", "--report-seconds=0.2", f"--data-dir={small_data}") as job:
        for number, _ in enumerate(line for line in job.stdout if line.startswith("step")):
            if number == 0:
                os.kill(job.pid, signal.SIGQUIT)
            if number == 5:  # it goes on
                os.kill(job.pid, signal.SIGTERM)
                break
        _, stderr = job.communicate(timeout=SECONDS)
    assert job.returncode == 75
    assert "most recent call first" in stderr
    assert "loop.py" in stderr


@pytest.mark.parametrize("launcher", ["alone", "mpirun"])
def test_a_data_folder_without_the_files_is_an_error_said_once(launcher, tmp_path):
    done = run(*LAUNCHERS.get(launcher, ()), "hvdkit", "train", f"--data-dir={tmp_path}")
    assert done.returncode == 2
    assert done.stderr.count("hvdkit: --data-dir:") == 1
    assert str(tmp_path) in done.stderr
    assert "Traceback" not in done.stderr


def test_a_damaged_file_is_named(small_data, tmp_path):
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for path in (small_data / "MNIST" / "raw").iterdir():
        (raw / path.name).write_bytes(path.read_bytes()[: -20 if path.name.startswith("t10k-images") else None])
    done = run("hvdkit", "train", HVDKIT_DATA_DIR=str(tmp_path))
    assert done.returncode == 2
    assert f"hvdkit: {raw / 't10k-images-idx3-ubyte.gz'} is damaged" in done.stderr


def test_an_output_folder_that_cannot_be_is_said_before_training(small_data, tmp_path):
    (tmp_path / "file").touch()
    done = run(*MPIRUN, "hvdkit", "train", f"--data-dir={small_data}", f"--output={tmp_path / 'file' / 'x'}")
    assert done.returncode == 2
    assert done.stderr.count("hvdkit: --output:") == 1
    assert "step" not in done.stdout


@pytest.mark.parametrize(
    ("engine", "announced"), [("auto", {"HVDKIT_WORLD_SIZE": "3"}), ("single", {"HVDKIT_WORLD_SIZE": "2"})]
)
def test_another_world_than_the_launched_one_fails(engine, announced, small_data):
    done = run(*MPIRUN, "hvdkit", "train", f"--engine={engine}", f"--data-dir={small_data}", **announced)
    assert done.returncode == 1
    assert "HVDKIT_WORLD_SIZE" in done.stderr or "Horovod sees 2 ranks" in done.stderr
    assert "Traceback" not in done.stderr
    assert "test accuracy" not in done.stdout
