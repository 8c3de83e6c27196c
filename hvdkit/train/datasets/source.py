"""What every data set gives to the training loop."""

from dataclasses import dataclass
from typing import Any, Protocol

import torch


class Source(Protocol):
    """Images and labels by index, the same on every rank."""

    in_memory: bool
    """Whether a batch costs so little that loader workers would only be in the way."""

    def __len__(self) -> int:
        """How many samples there are."""

    def batch(self, indices: torch.Tensor, draws: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Images (uint8, n x channels x height x width) and labels (int64, n) of these samples.

        `draws` has a row of random numbers for each sample, from which alone its augmentation follows
        (`sampling.draws`); None: no augmentation.
        """

    def fingerprint(self) -> int:
        """Differs between ranks that do not have the same samples in the same order; cheap rather than sure."""


@dataclass(frozen=True)
class DataSet:
    """What a model learns from and what it is judged by."""

    train: Source
    test: Source
    name: str
    """What the images are, for people: 'MNIST', 'synthetic digits', a folder's name."""

    classes: int
    channels: int
    image_size: int
    """Height and width of the images."""

    mean: tuple[float, ...]
    """Of the pixels of each channel, scaled to 0..1; 0 where a user's data set gives floats already."""

    deviation: tuple[float, ...]

    def identity(self) -> dict[str, Any]:
        """What a checkpoint remembers it by."""
        return {"name": self.name, "images": len(self.train), "fingerprint": self.train.fingerprint()}
