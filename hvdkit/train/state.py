"""What a training run is made of, and what of it goes into a checkpoint.

Everything that the next step depends on is here: weights and buffers, the optimizer's momentum, the loss scale, each
rank's random state, and how far the run has come. The learning rate, the order of samples and their augmentation
follow from the progress and the settings.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from hvdkit.errors import HvdkitError, InputError
from hvdkit.runtime import random_state
from hvdkit.runtime.engine import Engine
from hvdkit.train.precision import Precision
from hvdkit.train.settings import TrainSettings

VERSION = 1
_NAMED = 5  # tensors that an error lists by name
# Settings without which the samples that are left would be others than those of the run that is resumed.
_SAME_RUN = ("data", "seed", "augment", "image_size", "synthetic_images")
# Those that may change, and are said to have.
_SAID = ("epochs", "learning_rate", "lr_scaling", "schedule", "warmup", "batch_size", "accumulate", "precision")
_SAID += ("momentum", "weight_decay", "label_smoothing", "clip", "reduction", "compression", "groups", "deterministic")


@dataclass
class Progress:
    """How far a run has come."""

    epoch: int = 0
    """Whole epochs done."""

    position: int = 0
    """Samples of the current epoch that are done, in the epoch's order."""

    step: int = 0
    """Steps done in all."""

    def share(self, samples: int, epochs: int) -> float:
        """How much of the training is done, from 0 to 1."""
        return (self.epoch * samples + self.position) / (epochs * samples)


class TrainState:
    """A run between two steps."""

    def __init__(
        self, settings: TrainSettings, engine: Engine, model: nn.Module, data: dict[str, Any] | None = None
    ) -> None:
        self.settings = settings
        self.engine = engine
        self.data = data or {}
        """What tells the data set from another one."""

        self.precision = Precision(settings, engine.device)
        self.model = self.precision.convert(model)
        """The model itself, without what an engine or compiler wraps around it."""

        self.optimizer: Optimizer = torch.optim.SGD(
            self.model.parameters(),
            lr=settings.learning_rate,
            **_recipe(settings),
        )
        self.progress = Progress()

    def capture(self) -> dict[str, Any]:
        """All of it, as a checkpoint has it; tensors are the live ones. Every rank must call this."""
        scaler = self.precision.scaler
        return {
            "version": VERSION,
            "settings": _plain(self.settings),
            "data": self.data,
            "world_size": self.engine.size,
            "progress": asdict(self.progress),
            "model": dict(self.model.state_dict()),
            "optimizer": self.optimizer.state_dict(),
            "scaler": scaler.state_dict() if scaler is not None else None,
            "random": self.engine.gather(random_state.capture(self.engine.device)),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """The opposite of `capture`, on a rank that has a checkpoint; HvdkitError when it belongs to another model."""
        check_tensors(dict(self.model.state_dict()), state["model"])
        self.model.load_state_dict(state["model"])
        _load_optimizer(self.optimizer, state["optimizer"])
        for group in self.optimizer.param_groups:
            group.update(_recipe(self.settings))  # the flags of today; the checkpoint brought those of then
        self.restore_small(state)

    def restore_small(self, state: dict[str, Any]) -> None:
        """What is left beside the tensors of model and optimizer, which the engine sends to all ranks."""
        self.progress = Progress(**state["progress"])
        if self.precision.scaler is not None and state["scaler"]:
            self.precision.scaler.load_state_dict(state["scaler"])
        if self.engine.rank < len(state["random"]) and state["world_size"] == self.engine.size:
            random_state.restore(state["random"][self.engine.rank], self.engine.device)
        else:  # other ranks than before: nobody's place to go on from, so new numbers that no rank has drawn yet
            random_state.seed_rank(self.settings.seed + 7919 * self.progress.step, self.engine.rank)

    def check_weights(self) -> None:
        """HvdkitError when a weight is not finite: such a checkpoint must not push out a good one."""
        weights = [parameter.detach() for parameter in self.model.parameters()]
        norms = torch._foreach_norm(weights)
        if not all(torch.isfinite(torch.stack([norm.float() for norm in norms])).tolist()):
            raise HvdkitError(f"weights are not finite after step {self.progress.step}")


def differences(ours: TrainState, state: dict[str, Any]) -> list[str]:
    """Sentences about what is not as it was when the checkpoint was written; InputError for what cannot go on."""
    _check_version(state)
    settings, engine = ours.settings, ours.engine
    before, now = state["settings"], _plain(settings)
    for name in _SAME_RUN:
        if before.get(name) != now[name]:
            raise InputError(
                f"{_flag(name)} is {now[name]}, but the checkpoint comes from a run with "
                f"{before.get(name)}; use the same, or start anew with --resume never and another --output."
            )
    said = _data_differences(ours.data, state)
    said += [
        f"{_flag(name)} is now {now[name]} (was {before.get(name)})" for name in _SAID if before.get(name) != now[name]
    ]
    if state["world_size"] != engine.size:
        said.append(f"the world has now {engine.size} ranks (had {state['world_size']})")
    if settings.reduction == "adasum" and engine.size > 1:
        said.append("with Adasum each rank has a momentum, and a checkpoint holds rank 0's: not the same bit for bit")
    return said


def _data_differences(ours: dict[str, Any], state: dict[str, Any]) -> list[str]:
    """Other images are another run; other files in the same folder change the order of what is left of an epoch."""
    theirs = state["data"]
    if ours == theirs:
        return []
    now, then = (f"{data['name']} ({data['images']:,} training images)" for data in (ours, theirs))
    within_an_epoch = 0 < state["progress"]["position"] < theirs["images"]
    if ours["name"] != theirs["name"] or within_an_epoch:
        raise InputError(
            f"--data is {now}, but the checkpoint is from {'the middle of an epoch of ' * within_an_epoch}{then}, of "
            "other files; give it those, or start anew with --resume never and another --output."
        )
    return [f"the data are now {now} (were {then}, of other files)"]


def _recipe(settings: TrainSettings) -> dict[str, Any]:
    """What the optimizer is told beside the learning rate."""
    return {
        "momentum": settings.momentum,
        "weight_decay": settings.weight_decay,
        "nesterov": settings.momentum > 0,  # looks where momentum leads before it steps: better at the same price
    }


def _flag(field: str) -> str:
    return "--lr" if field == "learning_rate" else f"--{field.replace('_', '-')}"


def _plain(settings: TrainSettings) -> dict[str, Any]:
    values = asdict(settings)
    return {name: values[name] for name in (*_SAME_RUN, *_SAID, "model")}


def _check_version(state: dict[str, Any]) -> None:
    if not isinstance(state, dict) or state.get("version") != VERSION:
        found = state.get("version") if isinstance(state, dict) else type(state).__name__
        raise InputError(f"--resume: the checkpoint has version {found}, and this hvdkit reads version {VERSION}.")


def check_tensors(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    """Say which tensors differ, for a person who resumed with another --model."""
    problems = [
        f"{name} is {_shape(theirs[name])}, the model has {_shape(tensor)}"
        for name, tensor in ours.items()
        if name in theirs and (theirs[name].shape, theirs[name].dtype) != (tensor.shape, tensor.dtype)
    ]
    problems += [f"{name} is missing" for name in ours if name not in theirs]
    problems += [f"{name} is not in the model" for name in theirs if name not in ours]
    if problems:
        more = f" and {len(problems) - _NAMED} more" if len(problems) > _NAMED else ""
        raise InputError(
            f"--resume: the checkpoint is of another model: {'; '.join(problems[:_NAMED])}{more}; use the same --model "
            "and --precision, or start anew with --resume never and another --output."
        )


def _shape(tensor: torch.Tensor) -> str:
    return f"{' x '.join(map(str, tensor.shape)) or 'a number'} ({str(tensor.dtype).removeprefix('torch.')})"


def _load_optimizer(optimizer: Optimizer, state: dict[str, Any]) -> None:
    try:
        optimizer.load_state_dict(state)
    except ValueError as error:
        raise InputError(f"--resume: the checkpoint's optimizer does not fit the model: {error}.") from None
