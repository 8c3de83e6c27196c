"""CIFAR-10 from the public files: the pickled or the binary batches, unpacked or as .tar.gz."""

import gzip
import io
import pickle
import shutil
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from hvdkit.errors import EXIT_USAGE, InputError
from hvdkit.runtime.engine import Engine
from hvdkit.runtime.session import AllRanksLeave, on_every_rank
from hvdkit.train.datasets import cache, folders
from hvdkit.train.datasets.memory import MemorySource
from hvdkit.train.datasets.source import DataSet
from hvdkit.train.settings import TrainSettings

SIDE = 32
_CHANNELS, _CLASSES = 3, 10
_PIXELS = _CHANNELS * SIDE * SIDE
_SHIFT = 4
# Of the public training images.
_MEAN, _DEVIATION = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)

_PICKLED = tuple(f"cifar-10-batches-py/{name}" for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"))
_BINARY = tuple(name.replace("-py/", "-bin/") + ".bin" for name in _PICKLED)
_ARCHIVES = {"cifar-10-python.tar.gz": _PICKLED, "cifar-10-binary.tar.gz": _BINARY}


def load(settings: TrainSettings, engine: Engine, say: Callable[[str], None]) -> DataSet:
    """CIFAR-10 on every rank."""
    try:
        folder = folders.locate(_PUBLIC, settings, engine)
    except folders.Unavailable as problem:
        raise AllRanksLeave(
            f"--data cifar10: it is not here and cannot be downloaded ({problem}); --data-dir or HVDKIT_DATA_DIR names "
            "a folder with cifar-10-batches-py, cifar-10-batches-bin or the .tar.gz of one.",
            EXIT_USAGE,
        ) from None
    folder = on_every_rank(engine, lambda: _unpacked(folder, settings.cache_dir or folders.user_cache(), engine))
    return on_every_rank(engine, lambda: _read(folder))


def _look(folder: Path) -> folders.Content:
    bare = [[Path(name).name for name in names] for names in (_PICKLED, _BINARY)]  # the folder of batches itself
    for names in (_PICKLED, _BINARY, *bare, *([archive] for archive in _ARCHIVES)):
        files = [folder / name for name in names]
        if all(path.is_file() for path in files):
            return folders.Content(files, missing=[])
    begun = next((names for names in (_PICKLED, _BINARY) if (folder / names[0]).parent.is_dir()), _PICKLED)
    return folders.Content(files=[], missing=[name for name in begun if not (folder / name).is_file()])


def _download(folder: Path) -> Path:
    from torchvision.datasets import CIFAR10

    CIFAR10(str(folder), download=True)  # knows the address, and the checksums of the archive and of each batch
    return folder / "cifar-10-batches-py"


_PUBLIC = folders.PublicData(name="CIFAR-10", look=_look, download=_download, top="cifar-10-batches-py")


def _unpacked(folder: Path, cache_dir: Path, engine: Engine) -> Path:
    """The folder itself, or where the archive in it is unpacked to, by one rank of this host."""
    archive = _look(folder).files[0]
    if archive.name not in _ARCHIVES:
        return folder
    found = archive.stat()
    # Another archive of the same name is another folder.
    target = cache.place(archive, cache_dir)
    target = target.with_name(f"{target.name}-{found.st_size:x}-{found.st_mtime_ns:x}")
    if engine.local_rank == 0:
        try:
            cache.make_once(target, target.is_dir, lambda partial: _unpack(archive, partial))
        except OSError as error:
            raise cache.unwritable(target.parent, error) from None
    return target


def _unpack(archive: Path, folder: Path) -> Path:
    """Take the batches out of the archive, and nothing else."""
    names = set(_ARCHIVES[archive.name])
    try:
        with gzip.open(archive) as stream:
            with tarfile.open(fileobj=stream, mode="r|") as members:
                for member in members:
                    if member.isfile() and member.name in names:
                        names.remove(member.name)
                        path = folder / member.name
                        path.parent.mkdir(exist_ok=True)
                        with path.open("wb") as file:
                            shutil.copyfileobj(members.extractfile(member), file)
            while stream.read(1 << 20):
                pass  # gzip compares the checksum at the very end
    except (EOFError, zlib.error, gzip.BadGzipFile, tarfile.TarError) as error:
        raise _damaged(archive, f"it does not unpack: {error}") from None
    if names:
        raise _damaged(archive, f"it lacks {min(names)}")
    return folder


def _read(folder: Path) -> DataSet:
    *training, test = _look(folder).files
    batches = [_read_batch(path) for path in training]
    sizes = [len(labels) for _, labels in batches]
    for path, size in zip(training, sizes, strict=True):
        if size != max(sizes):  # they are made equal, so that a file which was cut short between two images shows
            raise _damaged(path, f"it has {size:,} images, another batch has {max(sizes):,}")
    return DataSet(
        train=_source(*map(np.concatenate, zip(*batches, strict=True))),
        test=_source(*_read_batch(test)),
        name="CIFAR-10",
        classes=_CLASSES,
        channels=_CHANNELS,
        image_size=SIDE,
        mean=_MEAN,
        deviation=_DEVIATION,
    )


def _source(images: np.ndarray, labels: np.ndarray) -> MemorySource:
    return MemorySource(
        images=torch.from_numpy(np.ascontiguousarray(images)).view(-1, _CHANNELS, SIDE, SIDE),
        labels=torch.from_numpy(labels.astype(np.int64)),
        shift=_SHIFT,
        flip=True,
    )


def _read_batch(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images (uint8, n x 3072) and labels of one file."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from None
    images, labels = (_from_binary if path.suffix == ".bin" else _from_pickle)(path, content)
    if not len(labels):
        raise _damaged(path, "it has no images")
    if labels.min() < 0 or labels.max() >= _CLASSES:
        wrong = labels.min() if labels.min() < 0 else labels.max()
        raise _damaged(path, f"it has a label {wrong}, but there are the classes 0 to 9")
    return images, labels


def _from_binary(path: Path, content: bytes) -> tuple[np.ndarray, np.ndarray]:
    if len(content) % (1 + _PIXELS):
        raise _damaged(path, f"{len(content):,} bytes are not whole images of {1 + _PIXELS:,}")
    records = np.frombuffer(content, dtype=np.uint8).reshape(-1, 1 + _PIXELS)
    return records[:, 1:].copy(), records[:, 0]


def _from_pickle(path: Path, content: bytes) -> tuple[np.ndarray, np.ndarray]:
    try:
        batch = _BatchUnpickler(io.BytesIO(content), encoding="bytes").load()
        images, labels = batch[b"data"], np.array(batch[b"labels"])
    except Exception as error:  # bytes that are not a pickle can raise almost anything
        raise _damaged(path, f"it is not a batch of CIFAR-10 ({type(error).__name__}: {error})") from None
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.shape[1:] != (_PIXELS,):
        raise _damaged(path, f"its images are not rows of {_PIXELS:,} bytes")
    if labels.shape != images.shape[:1] or labels.dtype.kind != "i":
        raise _damaged(path, f"it has labels of shape {labels.shape} for {len(images):,} images")
    return images, labels


class _BatchUnpickler(pickle.Unpickler):
    """For arrays of bytes, lists, dicts and strings: a pickle can call whatever it can name, so it may name no more."""

    def find_class(self, module: str, name: str) -> object:
        if module in ("numpy", "numpy.core.multiarray", "numpy._core.multiarray") and name in _NEEDED:
            return _NEEDED[name]
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no batch needs")


def _byte_type(name: str | bytes, *_: object) -> np.dtype:
    if name not in ("u1", b"u1"):
        raise pickle.UnpicklingError(f"its arrays hold {name!r}, not bytes")
    return np.dtype("u1")


_NEEDED = {"_reconstruct": np.empty(0).__reduce__()[0], "ndarray": np.ndarray, "dtype": _byte_type}


def _damaged(path: Path, reason: str) -> InputError:
    return InputError(f"{path} is damaged: {reason}; copy or download it again.")

