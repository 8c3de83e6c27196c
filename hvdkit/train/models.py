"""Models by name: our small one, torchvision's classifiers, and a user's own."""

import inspect
from collections.abc import Callable

import torch
from torch import nn

from hvdkit.errors import InputError
from hvdkit.train.own import import_own
from hvdkit.train.settings import is_own, unknown

MNIST_CNN = "mnist-cnn"


def create(name: str, *, classes: int, channels: int, image_size: int) -> nn.Module:
    """A new model; its weights follow torch's random state."""
    if is_own(name):
        return _own(name, classes=classes, channels=channels, image_size=image_size)
    if name == MNIST_CNN:
        return _mnist_cnn(classes, channels, image_size)
    return _torchvision(name, classes, channels)


@torch.no_grad()
def check(name: str, model: nn.Module, image: torch.Tensor, classes: int) -> None:
    """InputError unless this image (1 x channels x height x width) goes through the model.

    Many models take images of one size only, and say so in words that nobody understands.
    """
    _, channels, height, width = image.shape
    kind = f"--model {name}: images of {channels} x {height} x {width}"
    was_training = model.training
    model.eval()
    try:
        output = model(image)
    except Exception as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise InputError(
            f"{kind} do not go through it ({reason}); take another model, or another --image-size where the data allow."
        ) from error
    finally:
        model.train(was_training)
    if not isinstance(output, torch.Tensor) or output.shape != (1, classes):
        found = tuple(output.shape) if isinstance(output, torch.Tensor) else f"a {type(output).__name__}"
        raise InputError(f"{kind} give {found}, not a row of {classes} numbers, one a class.")


def _mnist_cnn(classes: int, channels: int, image_size: int) -> nn.Module:
    """Two convolutions and two dense layers: small enough for one core."""
    if image_size < 4:
        raise InputError(f"--model {MNIST_CNN}: images of {image_size} x {image_size} are too small; it needs 4 x 4.")
    return nn.Sequential(
        nn.Conv2d(channels, 16, kernel_size=5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, kernel_size=5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * (image_size // 4) ** 2, 128),
        nn.ReLU(),
        nn.Linear(128, classes),
    )


def _torchvision(name: str, classes: int, channels: int) -> nn.Module:
    from torchvision import models

    known = tuple(models.list_models(module=models))
    if name not in known:
        raise unknown("model", name, (MNIST_CNN, *known), own_allowed=True)
    # Their auxiliary outputs need a loss of their own, which no other classifier has.
    options = {"aux_logits": False, "init_weights": True} if name in ("googlenet", "inception_v3") else {}
    model = models.get_model(name, weights=None, num_classes=classes, **options)
    return model if channels == 3 else _GreyAsColour(model)


class _GreyAsColour(nn.Module):
    """Gives a model for colour pictures the one channel of grey ones three times."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.model(images.expand(-1, 3, -1, -1))


def _own(name: str, **facts: int) -> nn.Module:
    """A user's function; it gets those of classes, channels and image_size that it has parameters for."""
    function = import_own("model", name)
    model = function(**_accepted(function, facts))
    if not isinstance(model, nn.Module):
        raise InputError(f"--model {name} returned a {type(model).__name__}; it must return a torch.nn.Module.")
    return model


def _accepted(function: Callable, facts: dict[str, int]) -> dict[str, int]:
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return facts
    return {parameter.name: facts[parameter.name] for parameter in parameters if parameter.name in facts}
