"""Models by name."""

from torch import nn


def create(name: str, classes: int = 10) -> nn.Module:
    """A new model; its weights follow torch's random state."""
    return {"mnist-cnn": _mnist_cnn}[name](classes)


def _mnist_cnn(classes: int) -> nn.Module:
    """Two convolutions and two dense layers on 28x28 grey images: small enough for one core."""
    return nn.Sequential(
        nn.Conv2d(1, 16, kernel_size=5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, kernel_size=5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 7 * 7, 128),
        nn.ReLU(),
        nn.Linear(128, classes),
    )
