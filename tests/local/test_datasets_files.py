"""Where files come from: named and usual folders, a mirror, copies on a local disk; by one process of a node."""

import gzip
import hashlib
import http.server
import json
import pickle
import shutil
import struct
import subprocess
import sys
import tarfile
import threading
from functools import partial

import numpy as np
import pytest
import torch
from running import MPIRUN, environment, run
from torchvision.datasets import CIFAR10, MNIST

from hvdkit.errors import EXIT_USAGE, HvdkitError
from hvdkit.runtime.single_engine import SingleEngine
from hvdkit.train import datasets
from hvdkit.train.datasets import digits
from hvdkit.train.settings import TrainSettings

SECONDS = 120
MNIST_FILES = ["t10k-images-idx3", "t10k-labels-idx1", "train-images-idx3", "train-labels-idx1"]


@pytest.fixture(autouse=True)
def nothing_here(tmp_path, monkeypatch):
    """A user without data: an empty cache, and a working folder without ../shared/data."""
    monkeypatch.delenv("HVDKIT_DATA_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")


def write_mnist(folder, counts=(20, 10)):
    """MNIST's files, smaller; their names and checksums."""
    folder.mkdir(parents=True, exist_ok=True)
    resources = []
    for part, count in zip(("train", "t10k"), counts, strict=True):
        images, labels = digits.make(count, seed=1)
        for name, content in (
            ("images-idx3", struct.pack(">IIII", 0x803, count, 28, 28) + images.numpy().tobytes()),
            ("labels-idx1", struct.pack(">II", 0x801, count) + labels.byte().numpy().tobytes()),
        ):
            packed = gzip.compress(content)
            (folder / f"{part}-{name}-ubyte.gz").write_bytes(packed)
            resources.append((f"{part}-{name}-ubyte.gz", hashlib.md5(packed).hexdigest()))
    return resources


def write_cifar10(folder):
    """The public archive, smaller; the checksums of its files."""
    inner = folder / "cifar-10-batches-py"
    inner.mkdir(parents=True)
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        content = pickle.dumps({"data": np.zeros((4, 3072), dtype=np.uint8), "labels": [1, 2, 3, 4]}, protocol=3)
        for key in (b"data", b"labels"):  # texts of Python 2, as in the public files
            content = content.replace(b"X" + struct.pack("<I", len(key)) + key, b"U" + bytes([len(key)]) + key)
        (inner / name).write_bytes(content)
    (inner / "batches.meta").write_bytes(pickle.dumps({"label_names": ["cat"] * 10}, protocol=2))
    with tarfile.open(folder / "cifar-10-python.tar.gz", "w:gz") as tar:
        tar.add(inner, inner.name)
    sums = {path.name: hashlib.md5(path.read_bytes()).hexdigest() for path in inner.iterdir()}
    shutil.rmtree(inner)
    return sums


class Mirror:
    """A web server on this machine; what was asked of it, and a gate that can hold its answers back."""

    def __init__(self, folder):
        self.asked = []
        self.gate = threading.Event()
        self.gate.set()
        self.reached = threading.Event()
        mirror = self

        class Handler(http.server.SimpleHTTPRequestHandler):
            def do_GET(self):
                mirror.asked.append(self.path.strip("/").removesuffix("-ubyte.gz"))
                if "labels" in self.path and not mirror.gate.is_set():
                    mirror.reached.set()
                    mirror.gate.wait(SECONDS)
                super().do_GET()

            def log_message(self, format, *values):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
        self.address = f"http://127.0.0.1:{self.server.server_address[1]}/"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.gate.set()
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def mirror(tmp_path, monkeypatch):
    """Torchvision's MNIST is pointed at it."""
    resources = write_mnist(tmp_path / "mirror")
    (tmp_path / "resources.json").write_text(json.dumps(resources))
    mirror = Mirror(tmp_path / "mirror")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(MNIST, "mirrors", [mirror.address])
    monkeypatch.setattr(MNIST, "resources", resources)
    yield mirror
    mirror.close()


def load(said=None, **settings):
    return datasets.load(TrainSettings(**settings), SingleEngine(), (said if said is not None else []).append)


def kept(tmp_path):
    """What the user's cache has, hidden files aside."""
    return sorted(path.name for path in (tmp_path / "cache/hvdkit/data").iterdir() if not path.name.startswith("."))


def test_a_download_goes_to_the_cache_and_is_taken_from_there_later(mirror, tmp_path):
    said = []
    data = load(said)
    assert data.name == "MNIST"
    assert (len(data.train), len(data.test)) == (20, 10)
    assert said == []
    assert sorted(set(mirror.asked)) == MNIST_FILES
    mirror.asked.clear()
    assert load(said).name == "MNIST"
    assert mirror.asked == [], "the second run asks nobody"
    assert kept(tmp_path) == ["MNIST"]


def test_a_cache_that_lost_a_file_is_filled_again(mirror, tmp_path):
    load()
    for path in (tmp_path / "cache/hvdkit/data/MNIST/raw").glob("t10k-labels*"):
        path.unlink()
    assert load().name == "MNIST"


def test_a_mirror_that_sends_something_else_is_not_believed(mirror, tmp_path):
    (tmp_path / "mirror" / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(b"something else"))
    said = []
    assert load(said, synthetic_images=10).name == "synthetic digits"
    assert len(said) == 1
    assert kept(tmp_path) == []


def test_without_data_and_network_it_says_so_and_takes_synthetic_digits(monkeypatch):
    monkeypatch.setattr(MNIST, "mirrors", ["http://127.0.0.1:1/"])  # a port where nobody listens
    said = []
    data = load(said)
    assert data.name == "synthetic digits"
    assert len(data.train) == 60_000
    (line,) = said
    assert "cannot be downloaded" in line
    assert "\n" not in line


def test_the_shared_folder_beside_the_project_is_found(mirror, tmp_path):
    write_mnist(tmp_path / "shared" / "data", counts=(30, 10))
    assert len(load().train) == 30
    assert mirror.asked == []


@pytest.fixture
def public_cifar10(tmp_path, monkeypatch):
    sums = write_cifar10(tmp_path / "mirror")
    mirror = Mirror(tmp_path / "mirror")
    archive = tmp_path / "mirror" / "cifar-10-python.tar.gz"
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(CIFAR10, "url", f"{mirror.address}{archive.name}")
    monkeypatch.setattr(CIFAR10, "tgz_md5", hashlib.md5(archive.read_bytes()).hexdigest())
    monkeypatch.setattr(CIFAR10, "train_list", [[f"data_batch_{n}", sums[f"data_batch_{n}"]] for n in range(1, 6)])
    monkeypatch.setattr(CIFAR10, "test_list", [["test_batch", sums["test_batch"]]])
    monkeypatch.setattr(CIFAR10, "meta", {**CIFAR10.meta, "md5": sums["batches.meta"]})
    yield mirror
    mirror.close()


def test_cifar10_is_downloaded_once_too(public_cifar10, tmp_path):
    for _ in range(2):
        data = load(data="cifar10")
        assert (len(data.train), len(data.test)) == (20, 4)
        assert data.train.batch(torch.arange(4), None)[1].tolist() == [1, 2, 3, 4]
    assert len(public_cifar10.asked) <= 2  # torchvision first asks whether the address has moved
    assert kept(tmp_path) == ["cifar-10-batches-py"]


def test_without_cifar10_and_network_it_is_an_input_error(monkeypatch):
    monkeypatch.setattr(CIFAR10, "url", "http://127.0.0.1:1/cifar-10-python.tar.gz")
    with pytest.raises(HvdkitError, match=r"--data cifar10: it is not here and cannot be downloaded") as failure:
        load(data="cifar10")
    assert failure.value.exit_code == EXIT_USAGE
    assert "\n" not in str(failure.value)


def test_copies_on_a_local_disk_serve_when_the_original_is_gone(tmp_path):
    original, disk = tmp_path / "nfs", tmp_path / "disk"
    write_mnist(original, counts=(20, 10))
    settings = {"data_dir": original, "cache_dir": disk}
    assert len(load(**settings).train) == 20
    copies = {path: path.stat() for path in disk.glob("*/*.gz")}
    assert len(copies) == 4
    load(**settings)
    assert {path: path.stat() for path in disk.glob("*/*.gz")} == copies, "not copied again"

    write_mnist(original, counts=(24, 10))
    assert len(load(**settings).train) == 24, "an original that changed is copied again"

    shutil.rmtree(original)
    assert len(load(**settings).train) == 24
    with pytest.raises(HvdkitError, match="--data-dir: "):
        load(data_dir=original)


def test_what_a_broken_copy_left_is_not_taken_for_the_file(tmp_path):
    original, disk = tmp_path / "nfs", tmp_path / "disk"
    write_mnist(original)
    load(data_dir=original, cache_dir=disk)
    (copy,) = disk.glob("*/t10k-images*")
    copy.rename(copy.with_name(f".{copy.name}.partial"))
    copy.with_name(f".{copy.name}.partial").write_bytes(b"half")
    assert len(load(data_dir=original, cache_dir=disk).test) == 10


JOB = """
import json, sys
from pathlib import Path
from torchvision.datasets import MNIST
from hvdkit.runtime.single_engine import SingleEngine
from hvdkit.train import datasets
from hvdkit.train.settings import TrainSettings

MNIST.mirrors, MNIST.resources = [sys.argv[1]], [tuple(one) for one in json.loads(Path(sys.argv[2]).read_text())]
print("ready", flush=True)
sys.stdin.readline()
cache = {"cache_dir": Path(sys.argv[3])} if len(sys.argv) > 3 else {}
said = []
data = datasets.load(TrainSettings(**cache), SingleEngine(), said.append)
print(data.name, len(data.train), *said, flush=True)
"""


@pytest.fixture
def start_job(mirror, tmp_path):
    """Starts a process that loads MNIST when it is told to."""
    script = tmp_path / "job.py"
    script.write_text(JOB)
    jobs = []

    def start(*more):
        job = subprocess.Popen(
            [sys.executable, str(script), mirror.address, str(tmp_path / "resources.json"), *more],
            env=environment(no_proxy="127.0.0.1", XDG_CACHE_HOME=str(tmp_path / "cache")),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        jobs.append(job)
        return job

    yield start
    for job in jobs:
        job.kill()
        job.communicate()


def begin(*jobs):
    for job in jobs:
        assert job.stdout.readline() == "ready\n"
    for job in jobs:
        job.stdin.write("go\n")
        job.stdin.flush()


def test_two_jobs_at_once_download_and_copy_once_and_a_killed_download_is_begun_anew(mirror, tmp_path, start_job):
    mirror.gate.clear()
    killed = start_job()
    begin(killed)
    assert mirror.reached.wait(SECONDS)
    assert list((tmp_path / "cache/hvdkit/data").glob(".MNIST.partial/MNIST/raw/*")), "it is under way"
    killed.kill()
    killed.wait()
    assert kept(tmp_path) == []
    mirror.gate.set()
    mirror.asked.clear()

    jobs = [start_job(str(tmp_path / "disk")), start_job(str(tmp_path / "disk"))]
    begin(*jobs)
    assert [job.stdout.readline() for job in jobs] == ["MNIST 20\n"] * 2
    assert sorted(mirror.asked) == sorted(MNIST_FILES * (len(mirror.asked) // 4))
    assert len(mirror.asked) <= 8  # torchvision asks twice for each file: whether it has moved, and for the file
    assert kept(tmp_path) == ["MNIST"]
    assert not list((tmp_path / "cache/hvdkit/data").glob(".*.partial"))
    assert len(list((tmp_path / "disk").rglob("*-ubyte"))) == 4
    assert not list((tmp_path / "disk").rglob(".*.partial"))


RANKS = """
import json, os, sys
from pathlib import Path
import torch
from torchvision.datasets import MNIST
from hvdkit.runtime.session import AllRanksLeave, session
from hvdkit.train import datasets
from hvdkit.train.datasets.loader import Loader
from hvdkit.train.settings import TrainSettings

address, resources, other, small = sys.argv[1:]
MNIST.mirrors, MNIST.resources = [address], [tuple(one) for one in json.loads(Path(resources).read_text())]
said = []

def attempt(**settings):
    try:
        return datasets.load(TrainSettings(**settings), engine, said.append)
    except AllRanksLeave as reason:
        return [str(reason), reason.exit_code]

with session("horovod") as engine:
    def loader(source):
        return Loader(source, seed=1, augment=False, rank=engine.rank, size=engine.size, workers=engine.rank,
                      world_batch=8, pin_memory=False)

    data = attempt()
    mine = [int(i) for batch in loader(data.train).epoch(0) for i in batch.images.flatten(1).long().sum(1)]
    judged = sum(len(labels) for _, labels in loader(data.test).evaluation(4))
    result = {
        "name": data.name,
        "sums": engine.gather(mine),
        "judged": engine.gather(judged),
        "different": engine.gather(attempt(data_dir=Path(other) if engine.rank else None)),
        "missing": engine.gather(attempt(data_dir=Path("/nowhere") if engine.rank else None)),
        "few": engine.gather(attempt(data_dir=Path(small))),
        "said": said,
    }
    if engine.rank == 0:
        Path("result.json").write_text(json.dumps(result))
"""


def test_two_ranks_download_once_share_every_sample_and_leave_together(mirror, tmp_path):
    (tmp_path / "ranks.py").write_text(RANKS)
    write_mnist(tmp_path / "other", counts=(30, 10))
    write_mnist(tmp_path / "small", counts=(3, 1))
    done = run(
        *MPIRUN,
        sys.executable,
        "ranks.py",
        mirror.address,
        str(tmp_path / "resources.json"),
        str(tmp_path / "other"),
        str(tmp_path / "small"),
        cwd=tmp_path,
        no_proxy="127.0.0.1",
        XDG_CACHE_HOME=str(tmp_path / "cache"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["name"] == "MNIST"
    assert len(mirror.asked) <= 8
    assert [len(sums) for sums in result["sums"]] == [10, 10]
    assert result["judged"] == [5, 5]
    alone = datasets.load(TrainSettings(data_dir=tmp_path / "mirror"), SingleEngine(), print).train
    expected = alone.batch(torch.arange(20), None)[0].flatten(1).long().sum(1)
    assert sorted(one for sums in result["sums"] for one in sums) == sorted(expected.tolist())

    first, second = result["different"]
    assert first == second, "all ranks leave, with the same reason"
    assert first[1] == EXIT_USAGE
    assert "see different files (20 + 10 and 30 + 10 images for training and testing)" in first[0]
    assert result["missing"][0] == result["missing"][1]
    assert "--data-dir: /nowhere on " in result["missing"][0][0]
    assert result["few"][0][0].startswith("--data: 3 training images for 2 ranks; every rank needs at least 2")
    assert result["said"] == []
