"""Rank 0's weights and optimizer state to all ranks, bit for bit, in every dtype and layout.

Horovod's own broadcast_parameters refuses bfloat16, bool and channels_last tensors. Its
broadcast_optimizer_state takes a step with zero gradients to learn what the state looks like, which
applies weight decay once and leaves Adam's step count at 1, so that ranks that start fresh no longer
equal one process. Here the shape of the state travels first, and nothing is stepped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

# A broadcast does not compute, so any dtype may travel as the integer of its width.
_INTEGER_OF_WIDTH = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def broadcast_parameters(
    parameters: Mapping[str, torch.Tensor] | Iterable[tuple[str, torch.Tensor]], root_rank: int = 0
) -> None:
    """Overwrites, on all other ranks, each tensor with the root's.

    Takes `model.state_dict()` (which has the buffers too) or `model.named_parameters()`.
    """
    named = parameters.items() if isinstance(parameters, Mapping) else parameters
    broadcast_in_place([(f"hvdkit.parameter.{name}", tensor) for name, tensor in named], root_rank)


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int = 0) -> None:
    """Loads, on all other ranks, the root's optimizer state and options such as the learning rate."""
    import horovod.torch as hvd

    optimizer_state(
        optimizer,
        hvd.rank() == root_rank,
        lambda outline: hvd.broadcast_object(outline, root_rank, name="hvdkit.optimizer.outline"),
        lambda named: broadcast_in_place(named, root_rank),
    )


def optimizer_state(
    optimizer: torch.optim.Optimizer,
    is_root: bool,
    broadcast_object: Callable[[Any], Any],
    broadcast_tensors: Callable[[list[tuple[str, torch.Tensor]]], None],
) -> None:
    """The root's optimizer state on all ranks, over whichever library the two functions send with."""
    tensors: list[torch.Tensor] = []

    def remember(tensor: torch.Tensor) -> _Blank:
        tensors.append(tensor)
        return _Blank(tensor.shape, tensor.dtype, tensor.device.type)

    def allocate(blank: _Blank) -> torch.Tensor:
        tensors.append(torch.empty(blank.shape, dtype=blank.dtype, device=blank.device_type))
        return tensors[-1]

    # Horovod's broadcast_object pickles into one tensor whose length is an int32, too small for the state of
    # a large model: it carries only the outline.
    outline = _replace(optimizer.state_dict(), torch.Tensor, remember) if is_root else None
    outline = broadcast_object(outline)
    state = None if is_root else _replace(outline, _Blank, allocate)
    broadcast_tensors([(f"hvdkit.optimizer.{index}", tensor) for index, tensor in enumerate(tensors)])
    if state is not None:
        optimizer.load_state_dict(state)


@dataclass(frozen=True)
class _Blank:
    """Stands for a tensor in the outline of a state."""

    shape: torch.Size
    dtype: torch.dtype
    device_type: str  # without its index: each rank has its own GPU


def _replace(value: Any, kind: type, replacement: Callable[[Any], Any]) -> Any:
    """The nested dicts and lists of `value`, with every object of `kind` replaced, in a fixed order."""
    if isinstance(value, kind):
        return replacement(value)
    if isinstance(value, dict):
        return {key: _replace(item, kind, replacement) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_replace(item, kind, replacement) for item in value)
    return value


def broadcast_in_place(named: Iterable[tuple[str, torch.Tensor]], root_rank: int) -> None:
    """Overwrite, on all other ranks of the Horovod world, each tensor with the root's."""
    import horovod.torch as hvd

    under_way = []
    for name, tensor in named:
        contiguous = tensor.detach().contiguous()  # the tensor's own memory, unless it is laid out otherwise
        handle = hvd.broadcast_async_(_bits(contiguous), root_rank, name)
        under_way.append((handle, tensor, contiguous))
    for handle, tensor, contiguous in under_way:
        hvd.synchronize(handle)
        if not tensor.is_contiguous():
            tensor.detach().copy_(contiguous)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as integers."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    return tensor.view(_INTEGER_OF_WIDTH[tensor.element_size()])
