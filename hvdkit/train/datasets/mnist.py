"""MNIST from its IDX files; without them, synthetic digits in its place."""

from collections.abc import Callable
from pathlib import Path

import torch

from hvdkit.errors import InputError
from hvdkit.runtime.engine import Engine
from hvdkit.runtime.session import on_every_rank
from hvdkit.train.datasets import folders, idx, synthetic
from hvdkit.train.datasets.memory import MemorySource
from hvdkit.train.datasets.source import DataSet
from hvdkit.train.settings import TrainSettings

SIDE = 28
_SHIFT = 2
_TRAIN = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
_TEST = ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def load(settings: TrainSettings, engine: Engine, say: Callable[[str], None]) -> DataSet:
    """MNIST on every rank, or synthetic digits on every rank."""
    try:
        folder = folders.locate(_PUBLIC, settings, engine)
    except folders.Unavailable as problem:
        say(
            f"MNIST is not here and cannot be downloaded ({problem}): training on synthetic digits; "
            "--data-dir or HVDKIT_DATA_DIR names a folder with MNIST/raw/*.gz."
        )
        return synthetic.make(settings)
    return on_every_rank(engine, lambda: _read(folder))


def _look(folder: Path) -> folders.Content:
    found = {name: idx.find(folder, name) for name in (*_TRAIN, *_TEST)}
    return folders.Content(
        files=[path for path in found.values() if path is not None],
        missing=[f"MNIST/raw/{name}.gz" for name, path in found.items() if path is None],
    )


def _download(folder: Path) -> Path:
    from torchvision.datasets import MNIST

    MNIST(str(folder), download=True)  # knows the mirrors and checks what they send
    return folder / "MNIST"


_PUBLIC = folders.PublicData(name="MNIST", look=_look, download=_download, top="MNIST")


def _read(folder: Path) -> DataSet:
    return DataSet(
        train=_read_half(folder, *_TRAIN),
        test=_read_half(folder, *_TEST),
        name="MNIST",
        classes=10,
        channels=1,
        image_size=SIDE,
        mean=(synthetic.MEAN,),
        deviation=(synthetic.DEVIATION,),
    )


def _read_half(folder: Path, images_name: str, labels_name: str) -> MemorySource:
    images_path, labels_path = idx.find(folder, images_name), idx.find(folder, labels_name)
    images, labels = idx.read(images_path, dimensions=3), idx.read(labels_path, dimensions=1)
    if images.shape[1:] != (SIDE, SIDE):
        raise InputError(f"{images_path}: its images are {images.shape[1]} x {images.shape[2]}, not 28 x 28.")
    if len(images) != len(labels) or not len(images):
        raise InputError(f"{labels_path} has {len(labels)} labels for {len(images)} images in {images_path}.")
    if labels.max() > 9:
        raise InputError(f"{labels_path} is damaged: it has a label {labels.max()}, but digits end at 9.")
    return MemorySource(
        images=torch.from_numpy(images.copy()).unsqueeze(1),
        labels=torch.from_numpy(labels.astype("int64")),
        shift=_SHIFT,
        flip=False,
    )
