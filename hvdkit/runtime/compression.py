"""Gradients in dtypes and layouts that Horovod cannot reduce, carried in ones that it can.

Horovod 0.28 reduces fp16, fp32, fp64, int32 and int64, and only tensors that are contiguous: a
bfloat16 or channels_last model ends in a ValueError at its first backward pass. Its
DistributedOptimizer hands every gradient through an object with `compress` and `decompress`, which
is where the cast belongs:

    from hvdkit.runtime.compression import compression

    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), compression=compression())
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from hvdkit.errors import InputError


@dataclass(frozen=True)
class WireCast:
    """Horovod's compressor interface: casts the dtypes in `wire_dtypes`, passes all others as they are."""

    wire_dtypes: Mapping[torch.dtype, torch.dtype]
    """From a tensor's dtype to the one it is reduced in."""

    def compress(self, tensor: torch.Tensor) -> tuple[torch.Tensor, tuple[torch.dtype, torch.memory_format]]:
        """What goes on the wire (the tensor itself where nothing has to change), and the way back."""
        wire_dtype = self.wire_dtypes.get(tensor.dtype, tensor.dtype)
        way_back = (tensor.dtype, _memory_format(tensor))
        return tensor.to(wire_dtype).contiguous(), way_back

    def decompress(
        self, tensor: torch.Tensor, way_back: tuple[torch.dtype, torch.memory_format]
    ) -> torch.Tensor:
        dtype, memory_format = way_back
        return tensor.to(dtype).contiguous(memory_format=memory_format)


def _memory_format(tensor: torch.Tensor) -> torch.memory_format:
    # Fused and foreach optimizers are fast only where gradient and parameter lie alike in memory,
    # so a channels_last gradient has to come back as one.
    if tensor.is_contiguous():
        return torch.contiguous_format
    if tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last):
        return torch.channels_last
    if tensor.dim() == 5 and tensor.is_contiguous(memory_format=torch.channels_last_3d):
        return torch.channels_last_3d
    return torch.contiguous_format


# float32 holds every bfloat16 exactly: the sum is as good as that of fp32 gradients, and only the
# result is rounded. fp16 would overflow above 65504, far inside bfloat16's range.
EXACT = WireCast(
    {
        torch.bfloat16: torch.float32,
        torch.int8: torch.int32,
        torch.uint8: torch.int32,
        torch.int16: torch.int32,
    }
)

# Half the bytes of fp32, as hvd.Compression.fp16, for networks slower than the cast.
HALF = WireCast(
    {
        **EXACT.wire_dtypes,
        torch.bfloat16: torch.float16,
        torch.float32: torch.float16,
        torch.float64: torch.float16,
    }
)

WIRES = {"exact": EXACT, "fp16": HALF}


def compression(wire: str = "exact") -> WireCast:
    """The `compression=` of hvd.DistributedOptimizer and hvd.allreduce.

    `exact` changes no value that Horovod could have reduced itself; `fp16` sends all floating point
    as 16 bits, which loses precision and turns a sum above 65504 into infinity.
    """
    if wire not in WIRES:
        raise InputError(f"wire must be one of {', '.join(WIRES)}, not {wire!r}.")
    return WIRES[wire]
