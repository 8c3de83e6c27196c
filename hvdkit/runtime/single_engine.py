"""One process; touches neither MPI nor Horovod nor torch.distributed."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from hvdkit.runtime.engine import Reduction, pick_device


class SingleEngine:
    """A world of one rank."""

    name = "single"
    library = "none"

    def __init__(self) -> None:
        self.rank = self.local_rank = 0
        self.size = self.local_size = 1
        self.hosts = [socket.gethostname()]
        self.device = pick_device(local_rank=0)

    def prepare(self, model: nn.Module, optimizer: Optimizer, reduction: Reduction | None = None) -> SinglePrepared:
        return SinglePrepared(model, optimizer)

    def broadcast_state(self, model: nn.Module, optimizer: Optimizer) -> None:
        pass

    def broadcast_tensors(self, named: Iterable[tuple[str, torch.Tensor]]) -> None:
        pass

    def broadcast(self, value: Any) -> Any:
        return value

    def average(self, values: Mapping[str, float]) -> dict[str, float]:
        return {key: float(value) for key, value in values.items()}

    def gather(self, value: Any) -> list[Any]:
        return [value]

    def gather_numbers(self, numbers: Sequence[float]) -> list[list[float]]:
        return [[float(number) for number in numbers]]

    def barrier(self) -> None:
        pass

    def shutdown(self) -> None:
        pass


class SinglePrepared:
    """Nothing to reduce: gradients are those of the world as soon as they are there."""

    waits = False

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        self.model = model
        self.optimizer = optimizer

    def backward_pass(self, *, last: bool) -> contextlib.AbstractContextManager:
        return contextlib.nullcontext()

    def synchronize(self) -> None:
        pass

    def step(self, scaler: torch.amp.GradScaler | None = None) -> None:
        if scaler is None:
            self.optimizer.step()
        else:
            scaler.step(self.optimizer)
