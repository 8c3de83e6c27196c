"""A user's own data set: 'module:function', called with the data folder, gives the training and the test half."""

import contextlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hvdkit.errors import InputError
from hvdkit.runtime import random_state
from hvdkit.runtime.engine import Engine
from hvdkit.runtime.session import on_every_rank
from hvdkit.train.datasets import folders, sampling
from hvdkit.train.datasets.source import DataSet
from hvdkit.train.own import import_own
from hvdkit.train.settings import TrainSettings


@dataclass(frozen=True)
class UserSource:
    """A map-style data set; its own random transforms follow the sample's draws, so that they can be repeated."""

    samples: Any
    where: str
    """How errors call it: '--data module:function, training half'."""

    classes: int | None
    """None while they are being counted."""

    in_memory = False

    def __len__(self) -> int:
        return len(self.samples)

    def batch(self, indices: torch.Tensor, draws: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        if draws is None:
            draws = sampling.draws(0, 0, indices)  # the same in every evaluation
        seeds = (draws[:, 0] * 2**53).long().tolist()
        with _own_random_state():
            pairs = [self._pair(index, seed) for index, seed in zip(indices.tolist(), seeds, strict=True)]
        if not pairs:  # a rank that has no sample in a step still needs tensors of the right form
            image = self.one()
            return image.new_empty((0, *image.shape)), torch.empty(0, dtype=torch.int64)
        images = [image for image, _ in pairs]
        for index, image in zip(indices.tolist(), images, strict=True):
            if (image.shape, image.dtype) != (images[0].shape, images[0].dtype):
                raise InputError(
                    f"{self.where}: sample {index} is {_form(image)}, another one {_form(images[0])}; all must be one."
                )
        return torch.stack(images), torch.tensor([label for _, label in pairs])

    def fingerprint(self) -> int:
        return len(self)

    def one(self) -> torch.Tensor:
        """The first image, to learn their form from."""
        with _own_random_state():
            return self._pair(0, seed=0)[0]

    def count_classes(self) -> int:
        """One more than the largest label; reads every sample."""
        with _own_random_state():
            return 1 + max(self._pair(index, seed=0)[1] for index in range(len(self)))

    def _pair(self, index: int, seed: int) -> tuple[torch.Tensor, int]:
        random.seed(seed)
        np.random.seed(seed % 2**32)
        torch.default_generator.manual_seed(seed)  # not torch.manual_seed, which would seed GPUs too
        sample = self.samples[index]
        if not isinstance(sample, tuple | list) or len(sample) != 2:
            raise InputError(f"{self.where}: sample {index} is {_form(sample)}, not a pair of image and label.")
        image, label = sample
        if not isinstance(image, torch.Tensor) or image.dim() != 3:
            raise InputError(
                f"{self.where}: the image of sample {index} is {_form(image)}, not a tensor of channels x height x "
                "width; torchvision.transforms.PILToTensor() makes one."
            )
        try:
            label = int(label)
        except (TypeError, ValueError):
            raise InputError(f"{self.where}: the label of sample {index} is {_form(label)}, not a number.") from None
        if label < 0 or (self.classes is not None and label >= self.classes):
            known = "labels begin at 0" if label < 0 else f"there are {self.classes} classes, 0 to {self.classes - 1}"
            raise InputError(f"{self.where}: the label of sample {index} is {label}; {known}.")
        return image, label


def load(settings: TrainSettings, engine: Engine, say: Callable[[str], None]) -> DataSet:
    """Call the user's function: on the first rank of each host before the others, since it may download."""
    made = on_every_rank(engine, lambda: _make(settings) if engine.local_rank == 0 else None)
    made = on_every_rank(engine, lambda: _make(settings) if made is None else made)
    return on_every_rank(engine, lambda: _describe(settings.data, *made, say))


def _make(settings: TrainSettings) -> tuple[Any, Any]:
    function = import_own("data", settings.data)
    named = folders.named(settings)
    made = function(named[0] if named else None)
    if not isinstance(made, tuple | list) or len(made) != 2:
        raise InputError(f"--data {settings.data}: it gave {_form(made)}, not a training and a test data set.")
    for half, samples in zip(("training", "test"), made, strict=True):
        if not hasattr(samples, "__len__") or not hasattr(samples, "__getitem__"):
            raise InputError(
                f"--data {settings.data}: the {half} half is {_form(samples)}, not a data set with a length and with "
                "samples by index."
            )
        if not len(samples):
            raise InputError(f"--data {settings.data}: the {half} half is empty.")
    return tuple(made)


def _describe(name: str, train: Any, test: Any, say: Callable[[str], None]) -> DataSet:
    where = f"--data {name}, training half"
    classes = getattr(train, "classes", None)
    if classes is None:
        say(f"--data {name}: the training half has no attribute 'classes', so its {len(train):,} labels are read.")
        classes = UserSource(train, where, None).count_classes()
    elif not isinstance(classes, int):
        classes = len(classes)
    source = UserSource(train, where, classes)
    image = source.one()
    channels, height, width = image.shape
    # Bytes are brought to -1..1; floats are the user's own and stay as they are.
    mean, deviation = (0.0, 1.0) if image.is_floating_point() else (0.5, 0.5)
    return DataSet(
        train=source,
        test=UserSource(test, f"--data {name}, test half", classes),
        name=name,
        classes=classes,
        channels=channels,
        image_size=max(height, width),
        mean=(mean,) * channels,
        deviation=(deviation,) * channels,
    )


@contextlib.contextmanager
def _own_random_state() -> Iterator[None]:
    """What happens inside draws random numbers of its own: the state outside (dropout's) goes on as if it had not."""
    cpu = torch.device("cpu")
    before = random_state.capture(cpu)
    try:
        yield
    finally:
        random_state.restore(before, cpu)


def _form(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of {str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    return f"a {type(value).__name__}"
