"""Data sets in memory: where the files come from, and which rank sees which sample."""

import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from hvdkit.errors import InputError
from hvdkit.runtime.engine import Engine
from hvdkit.runtime.session import on_every_rank
from hvdkit.train import digits, idx
from hvdkit.train.settings import TrainSettings

_NETWORK_SECONDS = 15  # torchvision downloads without a time limit of its own
_FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}


class Samples(NamedTuple):
    """Images (uint8, count x 28 x 28) and labels (int64), index by index."""

    images: torch.Tensor
    labels: torch.Tensor


@dataclass(frozen=True)
class DataSet:
    """What a model learns from and what it is judged by."""

    train: Samples
    test: Samples
    name: str
    """What the images are, for people: 'MNIST' or 'synthetic digits'."""


def load(settings: TrainSettings, engine: Engine, say: Callable[[str], None]) -> DataSet:
    """The data set on every rank, the same one everywhere."""
    if settings.data == "synthetic":
        return _synthetic(settings.seed)
    folder = on_every_rank(engine, lambda: _named_folder(settings) or _usual_folder())
    # Found on some hosts only, it must be fetched on the others, so that all ranks train on the same.
    if not all(engine.gather(folder is not None)):
        folder, problem = _download(engine)
        problems = [found for found in engine.gather(problem) if found]
        if problems:
            say(
                f"MNIST is not here and cannot be downloaded ({problems[0]}): training on synthetic digits; "
                "--data-dir or HVDKIT_DATA_DIR names a folder with MNIST/raw/*.gz."
            )
            return _synthetic(settings.seed)
    return on_every_rank(engine, lambda: _read_mnist(folder))


def training_batches(
    count: int, per_rank: int, epoch: int, seed: int, rank: int, size: int
) -> Iterator[tuple[torch.Tensor, int]]:
    """For each step the indices of this rank's samples, and how many the whole world has in that step.

    Every sample comes once an epoch, on one rank. In the last step the ranks may have fewer, even none.
    """
    random = torch.Generator().manual_seed((seed + epoch) % 2**63)
    order = torch.randperm(count, generator=random)  # the same on every rank
    for first in range(0, count, per_rank * size):
        world_batch = order[first : first + per_rank * size]
        yield world_batch[rank::size], len(world_batch)


def evaluation_batches(count: int, per_rank: int, rank: int, size: int) -> Iterator[torch.Tensor]:
    """The indices of this rank's share of the samples, each of which is on exactly one rank."""
    yield from torch.arange(count)[rank::size].split(per_rank)


def _synthetic(seed: int) -> DataSet:
    train_seed, test_seed = 2 * seed % 2**63, (2 * seed + 1) % 2**63
    train, test = digits.make(60_000, train_seed), digits.make(10_000, test_seed)  # as many as MNIST has
    return DataSet(Samples(*train), Samples(*test), "synthetic digits")


def _named_folder(settings: TrainSettings) -> Path | None:
    """The folder that the user names: there the files must be."""
    if settings.data_dir is not None:
        folder, origin = settings.data_dir, "--data-dir"
    elif os.environ.get("HVDKIT_DATA_DIR"):
        folder, origin = Path(os.environ["HVDKIT_DATA_DIR"]), "HVDKIT_DATA_DIR"
    else:
        return None
    missing = _missing(folder)
    if missing:
        raise InputError(
            f"{origin}: {folder} on {socket.gethostname()} lacks MNIST/raw/{missing[0]}.gz"
            f"{f' and {len(missing) - 1} more' if len(missing) > 1 else ''}; name a folder that has it, or "
            "train with --data synthetic."
        )
    return folder


def _usual_folder() -> Path | None:
    folders = (Path("../shared/data"), _cache_folder())
    return next((folder for folder in folders if not _missing(folder)), None)


def _missing(folder: Path) -> list[str]:
    return [name for pair in _FILES.values() for name in pair if idx.find(folder, name) is None]


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "hvdkit" / "data"


def _download(engine: Engine) -> tuple[Path, str | None]:
    """Fetch MNIST into the cache folder of this host, by one rank; the folder, and what went wrong."""
    problem = None
    if engine.local_rank == 0 and _missing(_cache_folder()):
        try:
            _fetch(_cache_folder())
        except (OSError, RuntimeError, ImportError) as error:
            problem = str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
    engine.barrier()
    return _cache_folder(), problem


def _fetch(folder: Path) -> None:
    from torchvision.datasets import MNIST

    folder.mkdir(parents=True, exist_ok=True)
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_NETWORK_SECONDS)
    # Beside the target and renamed when whole: a download that breaks off is never taken for the data.
    temporary = Path(tempfile.mkdtemp(prefix="download-", dir=folder))
    try:
        MNIST(str(temporary), download=True)  # knows the mirrors and checks what they send
        try:
            (temporary / "MNIST").rename(folder / "MNIST")
        except OSError:
            if _missing(folder):  # else another job of this user was faster
                raise
    finally:
        socket.setdefaulttimeout(before)
        shutil.rmtree(temporary, ignore_errors=True)


def _read_mnist(folder: Path) -> DataSet:
    return DataSet(_read_samples(folder, "train"), _read_samples(folder, "test"), "MNIST")


def _read_samples(folder: Path, part: str) -> Samples:
    images_path, labels_path = (idx.find(folder, name) for name in _FILES[part])
    images, labels = idx.read(images_path, dimensions=3), idx.read(labels_path, dimensions=1)
    if images.shape[1:] != (digits.SIDE, digits.SIDE):
        raise InputError(f"{images_path}: its images are {images.shape[1]} x {images.shape[2]}, not 28 x 28.")
    if len(images) != len(labels) or not len(images):
        raise InputError(f"{labels_path} has {len(labels)} labels for {len(images)} images in {images_path}.")
    if labels.max() > 9:
        raise InputError(f"{labels_path} is damaged: it has a label {labels.max()}, but digits end at 9.")
    return Samples(torch.from_numpy(images.copy()), torch.from_numpy(labels.astype("int64")))
