"""The casts on the wire, without ranks. What they do between ranks: tests/local/parity/checks/compression.py."""

import pytest
import torch

from hvdkit.errors import InputError
from hvdkit.runtime.broadcast import _bits, _replace
from hvdkit.runtime.compression import WIRES, compression

REDUCIBLE = (torch.float16, torch.float32, torch.float64, torch.int32, torch.int64)
SMALL_INTEGERS = (torch.int8, torch.uint8, torch.int16)


@pytest.mark.parametrize("dtype", [torch.bfloat16, *SMALL_INTEGERS, *REDUCIBLE])
@pytest.mark.parametrize("wire", WIRES)
def test_every_dtype_comes_back_and_travels_in_one_that_horovod_reduces(wire: str, dtype: torch.dtype) -> None:
    tensor = torch.tensor([[1, 2, 3], [100, 5, 6]]).to(dtype)
    travelling, way_back = compression(wire).compress(tensor)
    assert travelling.dtype in REDUCIBLE
    returned = compression(wire).decompress(travelling, way_back)
    assert returned.dtype == dtype
    assert returned.tolist() == tensor.tolist()


@pytest.mark.parametrize("dtype", REDUCIBLE)
def test_what_horovod_reduces_itself_is_not_even_copied(dtype: torch.dtype) -> None:
    # Horovod reduces gradients in place: a copy would cost memory and time in every fp32 training.
    tensor = torch.ones(3).to(dtype)
    travelling, way_back = compression().compress(tensor)
    assert travelling is tensor
    assert compression().decompress(travelling, way_back) is tensor


def test_every_bfloat16_survives_the_exact_wire() -> None:
    every = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.bfloat16)
    travelling, way_back = compression().compress(every)
    returned = compression().decompress(travelling, way_back)
    assert torch.equal(returned.isnan(), every.isnan())
    numbers = ~every.isnan()
    assert torch.equal(returned.view(torch.int16)[numbers], every.view(torch.int16)[numbers])


def test_fp16_halves_the_bytes_of_all_floating_point() -> None:
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        assert compression("fp16").compress(torch.ones(3, dtype=dtype))[0].dtype == torch.float16


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("shape", "memory_format"),
    [((2, 3, 4, 5), torch.channels_last), ((2, 3, 4, 5, 6), torch.channels_last_3d)],
)
def test_channels_last_travels_contiguous_and_comes_back(shape, memory_format, dtype: torch.dtype) -> None:
    tensor = torch.randn(shape).to(dtype, memory_format=memory_format)
    travelling, way_back = compression().compress(tensor)
    assert travelling.is_contiguous()
    returned = compression().decompress(travelling, way_back)
    assert returned.stride() == tensor.stride()
    assert torch.equal(returned, tensor)


def test_a_transposed_gradient_travels_contiguous() -> None:
    tensor = torch.arange(6.0).view(2, 3).t()
    travelling, way_back = compression().compress(tensor)
    assert travelling.is_contiguous()
    assert torch.equal(compression().decompress(travelling, way_back), tensor)


def test_gradients_flow_through_the_casts() -> None:
    tensor = torch.ones(3, dtype=torch.bfloat16, requires_grad=True)
    travelling, way_back = compression().compress(tensor)
    (compression().decompress(travelling * 2, way_back) * 3).sum().backward()
    assert tensor.grad.tolist() == [6, 6, 6]


def test_an_unknown_wire_is_named() -> None:
    with pytest.raises(InputError, match="wire must be one of exact, fp16, not 'fp8'"):
        compression("fp8")


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(3).bfloat16(),
        torch.randn(3) > 0,
        torch.tensor(2.5, dtype=torch.float64),
        torch.randn(3, dtype=torch.complex128),
        torch.zeros(0, 2),
        torch.randn(4).to(torch.float8_e5m2),
    ],
    ids=lambda tensor: str(tensor.dtype),
)
def test_bits_are_the_same_memory_as_integers(tensor: torch.Tensor) -> None:
    bits = _bits(tensor)
    assert bits.data_ptr() == tensor.data_ptr()
    assert not bits.is_floating_point()
    assert bits.numel() * bits.element_size() == tensor.numel() * tensor.element_size()


def test_replace_keeps_the_order_and_everything_else() -> None:
    groups = [{"lr": 0.1, "betas": (torch.tensor(1), 2)}]
    state = {"state": {0: {"step": torch.tensor(3), "on": True}}, "groups": groups}
    seen: list[int] = []
    replaced = _replace(state, torch.Tensor, lambda tensor: seen.append(int(tensor)) or f"tensor {int(tensor)}")
    assert seen == [3, 1]
    expected = {"state": {0: {"step": "tensor 3", "on": True}}, "groups": [{"lr": 0.1, "betas": ("tensor 1", 2)}]}
    assert replaced == expected
