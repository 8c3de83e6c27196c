"""Models and data with a fault of known size, for sweeps whose verdict is known beforehand.

Sizes come through the environment: BENCH_DOZE, seconds that rank 1 sleeps in a step, BENCH_REST, seconds that all ranks
do, and BENCH_SLUGGISH, seconds that an image takes to load.
"""

import os
import time
from pathlib import Path

import torch
from torch import nn

from hvdkit.train import models

SLOW_RANK = "1"
IMAGES = 200_000  # more than any run takes
SHORTEST_SLEEP = 0.005  # seconds: the kernel adds some 60 µs to each


class Dozing(nn.Module):
    """A network that sleeps before each forward pass."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        slow = os.environ.get("OMPI_COMM_WORLD_RANK") == SLOW_RANK
        doze, rest = (float(os.environ.get(name, "0")) for name in ("BENCH_DOZE", "BENCH_REST"))
        self.seconds = rest + doze if slow else rest

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        time.sleep(self.seconds)
        return self.network(images)


def small(classes: int, channels: int, image_size: int) -> nn.Module:
    """Mostly convolutions, few weights."""
    return Dozing(models.create(models.MNIST_CNN, classes=classes, channels=channels, image_size=image_size))


def dense(classes: int, channels: int, image_size: int) -> nn.Module:
    """Dense layers only: other work. One of them comes again and again, for much work with few weights."""
    again = [nn.Linear(512, 512), nn.ReLU()]
    layers = [nn.Flatten(), nn.Linear(channels * image_size**2, 512), nn.ReLU(), *again * 8]
    return Dozing(nn.Sequential(*layers, nn.Linear(512, classes)))


class Sluggish(torch.utils.data.Dataset):
    """Images that take their time."""

    classes = 10

    def __init__(self) -> None:
        self.seconds = float(os.environ.get("BENCH_SLUGGISH", "0"))
        self.owed = 0.0

    def __len__(self) -> int:
        return IMAGES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        self.owed += self.seconds
        if self.owed >= SHORTEST_SLEEP:
            time.sleep(self.owed)
            self.owed = 0.0
        return torch.full((1, 28, 28), index % 256, dtype=torch.uint8), index % 10


def sluggish(folder: Path | None) -> tuple[Sluggish, Sluggish]:
    return Sluggish(), Sluggish()
