"""The data of `hvdkit train`: which samples there are, who sees which one when, and how they are read."""

from collections.abc import Callable

import torch

from hvdkit.errors import EXIT_USAGE, InputError
from hvdkit.runtime.engine import Engine
from hvdkit.runtime.session import AllRanksLeave, on_every_rank
from hvdkit.train.datasets import cifar10, imagefolder, mnist, synthetic, user
from hvdkit.train.datasets.source import DataSet, Source
from hvdkit.train.settings import TrainSettings, is_own

__all__ = ["DataSet", "Source", "augments", "first_image", "load"]


def load(settings: TrainSettings, engine: Engine, say: Callable[[str], None]) -> DataSet:
    """The data set on every rank, the same one everywhere."""
    on_every_rank(engine, lambda: _check_settings(settings))
    if settings.cache_dir is not None and (settings.data == "synthetic" or is_own(settings.data)):
        say(f"--cache-dir has no effect on --data {settings.data}: hvdkit reads no files for it.")
    data = _load(settings, engine, say)
    on_every_rank(engine, lambda: _check_count(data, engine.size))
    _check_same(data, engine)
    return data


def augments(settings: TrainSettings) -> bool:
    """Whether training images are augmented; a user's own data set always gets draws, for its own transforms."""
    if settings.augment == "auto":
        return settings.data in ("cifar10", "imagefolder") or is_own(settings.data)
    return settings.augment == "standard"


def first_image(data: DataSet) -> torch.Tensor:
    """One training image as floats, to try a model with."""
    images, _ = data.train.batch(torch.tensor([0]), None)
    return images.float()


def _load(settings: TrainSettings, engine: Engine, say: Callable[[str], None]) -> DataSet:
    if is_own(settings.data):
        return user.load(settings, engine, say)
    if settings.data == "synthetic":
        return synthetic.make(settings)
    by_name = {"mnist": mnist.load, "cifar10": cifar10.load, "imagefolder": imagefolder.load}
    return by_name[settings.data](settings, engine, say)


def _check_settings(settings: TrainSettings) -> None:
    side = {"mnist": mnist.SIDE, "cifar10": cifar10.SIDE}.get(settings.data)
    if side is not None and settings.image_size not in (None, side):
        raise InputError(f"--image-size is {settings.image_size}, but images of {settings.data} are {side} x {side}.")


def _check_count(data: DataSet, size: int) -> None:
    if len(data.train) < 2 * size:
        raise InputError(
            f"--data: {len(data.train)} training image{'s' * (len(data.train) > 1)} for {size} rank{'s' * (size > 1)}; "
            "every rank needs at least 2: take more images or fewer ranks."
        )


def _check_same(data: DataSet, engine: Engine) -> None:
    """Each rank takes its share by index, which is right only if all of them mean the same by an index."""
    halves = (data.train, data.test)
    seen = engine.gather((data.name, data.classes, *((len(half), half.fingerprint()) for half in halves)))
    other = next((rank for rank, found in enumerate(seen) if found != seen[0]), None)
    if other is not None:
        counts = " and ".join(f"{seen[rank][2][0]:,} + {seen[rank][3][0]:,}" for rank in (0, other))
        raise AllRanksLeave(
            f"--data: rank 0 on {engine.hosts[0]} and rank {other} on {engine.hosts[other]} see different files "
            f"({counts} images for training and testing); give all ranks the same.",
            EXIT_USAGE,
        )
