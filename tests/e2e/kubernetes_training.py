"""A place to train on a cluster: a user in a `restricted` namespace, and a volume that its pods and the tests share."""

import contextlib
import json
import os
import secrets
import shutil
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cluster.cluster import Cluster
from kubernetes_jobs import User

from hvdkit import __version__
from hvdkit.train.datasets import digits, idx

IMAGE = f"hvdkit-worker:{__version__}"  # as `hvdkit image build` calls it
WITH_MONARCH = f"{IMAGE}-monarch"  # has the client of Kubernetes too, which Monarch's controller needs
LIMIT = 900
# `slow` is so as long as the file is there, so that a test has time to do something to the job; the file may say by how
# many seconds a step.
NETS = """
import contextlib, pathlib, time
from torch import nn
class Slow(nn.Sequential):
    def forward(self, images):
        if self.training:
            with contextlib.suppress(FileNotFoundError):
                time.sleep(float(pathlib.Path("/shared/slow").read_text() or 0.05))
        return super().forward(images)
def slow(classes):
    return Slow(nn.Flatten(), nn.Linear(784, classes))
def of_cifar(classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(3072, classes))
"""


@dataclass(frozen=True)
class Place:
    """Where a test trains; pods see the folder as /shared."""

    user: User
    shared: Path

    @property
    def cluster(self) -> Cluster:
        return self.user.cluster

    def launch(self, name: str, backend: str, *flags: str, workers: int = 2) -> list[str]:
        """The words of a launch whose pods have the volume; one thread a rank, for they share this machine's cores."""
        words = ["launch", "--backend", backend, "--name", name, "--workers", str(workers), "--image", IMAGE]
        return [*words, "--threads", "1", "--pvc", "shared:/shared", *flags]

    def history(self, run: str) -> list[dict]:
        """What a run wrote down."""
        return [json.loads(line) for line in (self.shared / run / "metrics.jsonl").read_text().splitlines()]

    def accuracy(self, run: str) -> float:
        """Of the last evaluation of a run."""
        return [one for one in self.history(run) if one["kind"] == "evaluation"][-1]["accuracy_percent"]

    def launchers(self, name: str) -> list[dict]:
        """The launcher pods that a job has had."""
        return [pod for pod in self.user.json("status", name)["pods"] if pod["launcher"]]


def training(run: str, *flags: str, data: str = "mnist") -> list[str]:
    """The command of a job that trains on the volume."""
    words = ["hvdkit", "train", "--data", data, "--data-dir", "/shared/data", "--epochs", "1"]
    return ["--", *words, "--output", f"/shared/{run}", *flags]


@contextlib.contextmanager
def place_to_train(cluster: Cluster, folder: Path) -> Iterator[Place]:
    """A namespace of its own with a volume that holds MNIST, and after that nothing of it."""
    namespace = cluster.namespace(f"train-{secrets.token_hex(3)}", "restricted")
    shared = cluster.volume(namespace, "shared")
    put_mnist(shared / "data" / "MNIST" / "raw")
    (shared / "nets.py").write_text(NETS)
    try:
        yield Place(User(cluster, namespace, folder), shared)
    finally:
        cluster.kubectl("delete", "namespace", namespace, "--wait=false")


def put_mnist(folder: Path) -> None:
    """MNIST where the machine has it, else drawn digits in its place: a cluster of ours has no way to the network."""
    project = Path(__file__).parents[2]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "hvdkit" / "data"
    for source in (os.environ.get("HVDKIT_DATA_DIR"), project.parent / "shared" / "data", cache):
        found = idx.find(Path(source), "train-images-idx3-ubyte") if source else None
        if found is not None:
            shutil.copytree(found.parent, folder)
            return
    folder.mkdir(parents=True)
    for seed, (part, count) in enumerate((("train", 60_000), ("t10k", 10_000))):
        images, labels = digits.make(count, seed)
        shape = struct.pack(">IIII", 0x803, count, 28, 28)
        (folder / f"{part}-images-idx3-ubyte").write_bytes(shape + images.numpy().tobytes())
        labelled = struct.pack(">II", 0x801, count) + labels.byte().numpy().tobytes()
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(labelled)
