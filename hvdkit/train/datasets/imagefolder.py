"""Images in folders, one folder a class; decoded batch by batch."""

import io
import math
import os
import socket
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from hvdkit.errors import InputError
from hvdkit.runtime.engine import Engine
from hvdkit.runtime.session import on_every_rank
from hvdkit.train.datasets import cache, folders
from hvdkit.train.datasets.source import DataSet
from hvdkit.train.settings import TrainSettings

_SIDE = 224  # what most torchvision models were made for
_MARGIN = 224 / 256  # share of an image's shorter side that the centre crop of evaluation keeps
_SMALLEST_CROP = 0.08  # of an image's area, in training
_WIDEST_CROP = 4 / 3  # width to height, and the reverse for the narrowest
_TENTH = 10  # one image of so many is for testing where the folder does not say which
_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
# Pillow reads others too, which nobody expects behind these names. (torchvision.io is a little faster on small files,
# but deprecated, and one wrong bit in a PNG file can crash it.)
_FORMATS = ("PNG", "JPEG", "BMP", "WEBP")
_NOT_CLASSES = ("lost+found",)  # an exported file system has it at its top
# Of photographs (ImageNet); the usual choice for images of any kind.
_MEAN, _DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

Classes = dict[str, list[str]]
"""Class → its images, as sorted paths below the data folder."""


@dataclass(frozen=True, kw_only=True)
class FolderSource:
    """Files that are read and decoded when a batch needs them."""

    folder: Path
    copies: Path | None
    """Where files are copied to when they are first read; None: nowhere."""

    files: np.ndarray
    """Paths below the folder, as bytes of equal length: loader workers then share them without copying any."""

    labels: torch.Tensor
    side: int

    in_memory = False

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, indices: torch.Tensor, draws: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        images = np.empty((len(indices), self.side, self.side, 3), dtype=np.uint8)
        rows = [None] * len(indices) if draws is None else draws.tolist()
        for place, (index, numbers) in enumerate(zip(indices.tolist(), rows, strict=True)):
            images[place] = self._image(os.fsdecode(self.files[index]), numbers)
        return torch.from_numpy(images).permute(0, 3, 1, 2).contiguous(), self.labels.index_select(0, indices)

    def fingerprint(self) -> int:
        return zlib.crc32(self.labels.numpy(), zlib.crc32(self.files))

    def _image(self, name: str, draws: list[float] | None) -> torch.Tensor:
        original = f"{self.folder}/{name}"
        copy = f"{self.copies}/{name}" if self.copies is not None else None
        try:
            content = cache.read(original) if copy is None else cache.read_through(original, copy)
        except OSError as error:
            raise InputError(f"{original} cannot be read: {error.strerror}.") from None
        try:
            return _decoded(content, self.side, draws)
        except Exception as error:  # bytes that are not an image can raise almost anything
            if copy is not None:
                Path(copy).unlink(missing_ok=True)  # so that a mended original is read next time
            reason = "it cannot be decoded" if content else "it is empty"
            raise InputError(f"{original} is damaged: {reason} ({error}); replace or remove it.") from None


def load(settings: TrainSettings, engine: Engine, say: Callable[[str], None]) -> DataSet:
    """The folder that the user names, listed on every rank."""
    folder, train, test = on_every_rank(engine, lambda: _find(settings, say))
    copies = None
    if settings.cache_dir is not None:
        copies = cache.place(folder, settings.cache_dir)
        on_every_rank(engine, lambda: cache.prepare(copies))
    side = settings.image_size or _SIDE
    return DataSet(
        train=_source(folder, copies, train, side),
        test=_source(folder, copies, test, side),
        name=folder.resolve().name,
        classes=len(train),
        channels=3,
        image_size=side,
        mean=_MEAN,
        deviation=_DEVIATION,
    )


def _find(settings: TrainSettings, say: Callable[[str], None]) -> tuple[Path, Classes, Classes]:
    named = folders.named(settings)
    if named is None:
        raise InputError(
            "--data imagefolder: --data-dir must name a folder with train/CLASS/*.jpg and val/CLASS/*.jpg, or with "
            "CLASS/*.jpg."
        )
    folder, origin = named
    try:
        if not folder.is_dir():
            raise InputError(f"{origin}: there is no folder {folder} on {socket.gethostname()}.")
        return folder, *_halves(folder, say)
    except OSError as error:
        raise InputError(f"{error.filename} cannot be read: {error.strerror}.") from None


def _halves(folder: Path, say: Callable[[str], None]) -> tuple[Classes, Classes]:
    """What is for training and what for testing."""
    halves = [name for name in ("train", "val", "test") if (folder / name).is_dir() and _subfolders(folder / name)]
    if "train" not in halves:
        return _split(folder, folder, say)
    if halves == ["train"]:
        return _split(folder, folder / "train", say)
    train, test = (_list(folder, folder / name, say) for name in halves[:2])
    if train.keys() != test.keys():
        odd = sorted(train.keys() ^ test.keys())[0]
        has, lacks = halves[:2] if odd in train else reversed(halves[:2])
        raise InputError(f"{folder / has} has a class '{odd}', {folder / lacks} has not; both need the same classes.")
    return train, test


def _split(folder: Path, top: Path, say: Callable[[str], None]) -> tuple[Classes, Classes]:
    """A tenth of the images by the hash of their paths: an image stays in its half when others come or go."""
    everything = _list(folder, top, say)
    train: Classes = {}
    test: Classes = {}
    for name, files in everything.items():
        for file in files:
            half = test if zlib.crc32(os.fsencode(file)) % _TENTH == 0 else train
            half.setdefault(name, []).append(file)
    poor = next((name for name in everything if name not in train or name not in test), None)
    if poor is not None:
        raise InputError(
            f"{top / poor} has too few images ({len(everything[poor])}) to keep a tenth for testing; put the images "
            f"into {folder}/train/CLASS and {folder}/val/CLASS yourself."
        )
    kept = sum(map(len, test.values()))
    say(
        f"{folder} does not say what is for testing: {kept:,} of {kept + sum(map(len, train.values())):,} images are "
        "kept for it, about a tenth, chosen by the hash of their paths."
    )
    return train, test


def _list(folder: Path, top: Path, say: Callable[[str], None]) -> Classes:
    classes: Classes = {}
    others: list[str] = []
    for name in _subfolders(top):
        images = classes[name] = []
        for place, inner, files in os.walk(top / name, onerror=_raise):  # links inside a class may lead in circles
            inner[:] = [one for one in inner if not one.startswith(".")]
            for file in files:
                if not file.startswith("."):
                    (images if file.lower().endswith(_SUFFIXES) else others).append(f"{place}/{file}")
        if not images:
            raise InputError(f"{top / name} has no images ({', '.join(_SUFFIXES)}); fill it or remove it.")
        prefix = len(f"{folder}/")
        images[:] = sorted(path[prefix:] for path in images)
    if not classes:
        raise InputError(f"{top} has no folders of images, one a class.")
    if others:
        say(f"{top}: {len(others):,} files are no images ({', '.join(_SUFFIXES)}) and are left out: {min(others)} …")
    return classes


def _subfolders(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if entry.is_dir()]
    return sorted(name for name in names if not name.startswith(".") and name not in _NOT_CLASSES)


def _source(folder: Path, copies: Path | None, classes: Classes, side: int) -> FolderSource:
    names = sorted(classes)
    counts = torch.tensor([len(classes[name]) for name in names])
    return FolderSource(
        folder=folder,
        copies=copies,
        files=np.array([os.fsencode(file) for name in names for file in classes[name]]),
        labels=torch.arange(len(names)).repeat_interleave(counts),
        side=side,
    )


def _decoded(content: bytes, side: int, draws: list[float] | None) -> np.ndarray:
    """The image (uint8, side x side x 3), cut and resized; by these draws, or the centre if there are none."""
    image = Image.open(io.BytesIO(content), formats=_FORMATS)
    width, height = image.size
    box = _centre(width, height, side) if draws is None else _random_crop(width, height, side, draws)
    if image.size != (side, side):
        # A JPEG file can be decoded to a half, a quarter or an eighth of its size in much less time.
        image.draft("RGB", (math.ceil(width * side / (box[2] - box[0])), math.ceil(height * side / (box[3] - box[1]))))
        across, down = image.width / width, image.height / height
        box = (box[0] * across, box[1] * down, box[2] * across, box[3] * down)
    if image.mode.startswith("I"):  # 16 bits a pixel, of which Pillow's conversion would keep the lower ones
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode != "RGB":
        image = image.convert("RGB")
    if image.size != (side, side):
        image = image.resize((side, side), Image.Resampling.BILINEAR, box)
    pixels = np.asarray(image)
    return pixels[:, ::-1] if draws is not None and draws[4] < 0.5 else pixels


def _centre(width: int, height: int, side: int) -> tuple[float, float, float, float]:
    """Left, top, right and bottom of what evaluation sees."""
    if max(width, height) <= side:
        return 0, 0, width, height  # so small that cutting would lose more than it gains
    kept = min(width, height) * _MARGIN
    left, top = (width - kept) / 2, (height - kept) / 2
    return left, top, left + kept, top + kept


def _random_crop(width: int, height: int, side: int, draws: list[float]) -> tuple[float, float, float, float]:
    """Left, top, right and bottom of a part of random area, shape and place."""
    if max(width, height) <= side:
        return 0, 0, width, height
    area = width * height * (_SMALLEST_CROP + (1 - _SMALLEST_CROP) * draws[0])
    shape = _WIDEST_CROP ** (2 * draws[1] - 1)
    kept_width, kept_height = min(width, math.sqrt(area * shape)), min(height, math.sqrt(area / shape))
    left, top = draws[2] * (width - kept_width), draws[3] * (height - kept_height)
    return left, top, left + kept_width, top + kept_height


def _raise(error: OSError) -> None:
    raise error
