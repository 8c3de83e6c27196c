"""The types that a model computes and is stored in."""

import contextlib

import torch
from torch import nn

from hvdkit.train.settings import TrainSettings

_AUTOCAST = {"amp-bf16": torch.bfloat16, "amp-fp16": torch.float16}


class Precision:
    """What --precision means for a model, its images and its loss."""

    def __init__(self, settings: TrainSettings, device: torch.device) -> None:
        self._device_type = device.type
        self._autocast = _AUTOCAST.get(settings.precision)
        self.weights = torch.bfloat16 if settings.precision == "bf16" else torch.float32
        self.scaler = None
        if settings.precision == "amp-fp16":
            # fp16 ends at 65504 below and 6e-8 above zero: gradients are kept in range by scaling the loss.
            self.scaler = torch.amp.GradScaler(device.type, init_scale=settings.loss_scale)

    def convert(self, model: nn.Module) -> nn.Module:
        """The model with weights of the right type."""
        return model.to(self.weights) if self.weights is not torch.float32 else model

    def autocast(self) -> contextlib.AbstractContextManager:
        """Around a forward pass."""
        if self._autocast is None:
            return contextlib.nullcontext()
        return torch.autocast(self._device_type, dtype=self._autocast)

    def backward(self, loss: torch.Tensor) -> None:
        """The gradients of the loss, times the scale where there is one."""
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide the gradients by the scale: only what all ranks have reduced may be, so that they all skip alike."""
        if self.scaler is not None:
            self.scaler.unscale_(optimizer)

    def update(self) -> None:
        """After a step: a smaller scale if gradients overflowed, after many good steps a larger one."""
        if self.scaler is not None:
            self.scaler.update()
