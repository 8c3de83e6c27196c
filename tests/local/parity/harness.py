"""Runs inside every rank: carries out the checks that FOLDER/work.json lists and records each outcome.

    python harness.py FOLDER

Each item of the list names a phase, a file and a check in it. The phase `real` leaves Horovod alone, and so does
`unfused`, which insists that the launch has turned fusion off; `identity` replaces allreduce by the identity: a file
of checks that still passes then proves nothing (test_parity.py sees to that). Each rank appends a JSON line to
FOLDER/rank-N.jsonl before and after every check, so that after a crash or a hang it is known in which check it came.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import importlib.util
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import horovod.torch as hvd
import torch
from horovod.torch import mpi_ops

# A rank that waits for an operation that the other never starts would wait for ever. The longest check
# compiles C++ and takes a few seconds.
SECONDS_A_CHECK_MAY_HANG = float(os.environ.get("HVDKIT_PARITY_HANG_SECONDS", "120"))

# The model, its data and the learning rate are the same in all files, so that one reference serves all.
FEATURES, CLASSES, BATCH = 6, 4, 5


def has_mpi() -> bool:
    """Whether the ranks talk over MPI; if not, over Gloo."""
    return not hvd.gloo_enabled()


# ---------------------------------------------------------------- inputs, known to all ranks


def values(rank: int, *shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """Small whole numbers of that rank, exact in every dtype, and none of them 0."""
    generator = torch.Generator().manual_seed(1000 * seed + rank + 1)
    sign = torch.randint(0, 2, shape, generator=generator) * 2 - 1
    return (torch.randint(1, 6, shape, generator=generator) * sign).to(dtype)


def values_of_all(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> list[torch.Tensor]:
    """`values` of every rank, made here, without any communication."""
    return [values(rank, *shape, dtype=dtype, seed=seed) for rank in range(hvd.size())]


def batch(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """That rank's inputs and labels at a step."""
    generator = torch.Generator().manual_seed(100 * step + rank + 7)
    inputs = torch.randn(BATCH, FEATURES, generator=generator)
    return inputs, torch.randint(0, CLASSES, (BATCH,), generator=generator)


def make_model(dtype: torch.dtype = torch.float32, seed: int = 3) -> torch.nn.Sequential:
    """The same weights on every rank, unless the seed differs."""
    torch.manual_seed(seed)
    layers = [torch.nn.Linear(FEATURES, 8), torch.nn.Tanh(), torch.nn.Linear(8, CLASSES)]
    return torch.nn.Sequential(*layers).to(dtype)


def loss_of(model: Callable, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    parameter = next(model.parameters())
    return torch.nn.functional.cross_entropy(model(inputs.to(parameter.dtype)), labels)


# ---------------------------------------------------------------- references, without Horovod

OptimizerFactory = Callable[..., torch.optim.Optimizer]


def train_on_joined_batch(
    make_optimizer: OptimizerFactory, steps: int, dtype: torch.dtype = torch.float32
) -> torch.nn.Module:
    """One process that sees the batches of all ranks at once: what data parallelism has to equal."""
    model = make_model(dtype)
    optimizer = make_optimizer(model.parameters())
    for step in range(steps):
        optimizer.zero_grad()
        inputs, labels = zip(*(batch(rank, step) for rank in range(hvd.size())), strict=True)
        loss_of(model, torch.cat(inputs), torch.cat(labels)).backward()
        optimizer.step()
    return model


def set_averaged_gradients(model: torch.nn.Module, loss: Callable[[int], torch.Tensor]) -> None:
    """Gives the model the mean over ranks of the gradients of loss(rank), each worked out here in turn."""
    # In float32 also for bfloat16 weights, as a wire that is exact does it.
    sums = [torch.zeros_like(parameter, dtype=torch.float32) for parameter in model.parameters()]
    for rank in range(hvd.size()):
        gradients = torch.autograd.grad(loss(rank), list(model.parameters()))
        for total, gradient in zip(sums, gradients, strict=True):
            total += gradient
    for parameter, total in zip(model.parameters(), sums, strict=True):
        parameter.grad = (total / hvd.size()).to(parameter.dtype)


def train_with_horovod(
    optimizer: torch.optim.Optimizer, model: torch.nn.Module, steps: int
) -> torch.nn.Module:
    """This rank's share of the training: its own batches only."""
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, *batch(hvd.rank(), step)).backward()
        optimizer.step()
    return model


# ---------------------------------------------------------------- assertions


def assert_equal(actual: torch.Tensor, expected: torch.Tensor, what: str) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, msg=lambda text: f"{what}: {text}")


def assert_same_weights(
    model: torch.nn.Module, reference: torch.nn.Module, tolerance: float = 2e-6
) -> None:
    actual, expected = model.state_dict(), reference.state_dict()
    assert list(actual) == list(expected)
    for name in expected:
        torch.testing.assert_close(
            actual[name].detach(), expected[name], rtol=tolerance, atol=tolerance,
            msg=lambda text, name=name: f"{name}: {text}",
        )  # fmt: skip


def assert_raises(kind: type[Exception], words: str, function: Callable[[], object]) -> None:
    try:
        function()
    except kind as error:
        assert words in str(error), f"expected {words!r} in {error!r}"
    else:
        raise AssertionError(f"expected {kind.__name__} with {words!r}, but nothing was raised")


# ---------------------------------------------------------------- the sabotage


class IdentityAllreduce:
    """Stands before Horovod's C++ library, through which every allreduce passes: hvd.allreduce in all
    its forms and DistributedOptimizer, whatever the options. Gives each rank its own input back."""

    def __init__(self, library: ModuleType) -> None:
        self._library = library
        self._own_handles: set[int] = set()

    def __getattr__(self, name: str) -> Callable:
        function = getattr(self._library, name)  # dtypes that Horovod lacks stay lacking
        if name.startswith("horovod_torch_allreduce_async_"):
            return lambda tensor, output, *_: self._give_back([tensor], [output])
        if name.startswith("horovod_torch_grouped_allreduce_async_"):
            return lambda tensors, outputs, *_: self._give_back(tensors, outputs)
        return function

    def _give_back(self, tensors: list[torch.Tensor], outputs: list[torch.Tensor]) -> int:
        for tensor, output in zip(tensors, outputs, strict=True):
            output.detach().copy_(tensor.detach())
        handle = -2 - len(self._own_handles)  # the library's own are >= 0
        self._own_handles.add(handle)
        return handle

    def horovod_torch_poll(self, handle: int) -> int:
        return 1 if handle in self._own_handles else self._library.horovod_torch_poll(handle)

    def horovod_torch_wait_and_clear(self, handle: int) -> None:
        if handle not in self._own_handles:
            self._library.horovod_torch_wait_and_clear(handle)


@contextlib.contextmanager
def allreduce_as(phase: str) -> Iterator[None]:
    library = mpi_ops.mpi_lib
    if phase == "identity":
        mpi_ops.mpi_lib = IdentityAllreduce(library)
    try:
        yield
    finally:
        mpi_ops.mpi_lib = library


# ---------------------------------------------------------------- running


@functools.cache
def load(path: str) -> ModuleType:
    # By path: names such as compression.py would hide modules of the standard library on sys.path.
    spec = importlib.util.spec_from_file_location(f"parity_{Path(path).stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(phase: str, file: str, check: str) -> dict[str, str]:
    """The outcome of one check on this rank."""
    faulthandler.dump_traceback_later(SECONDS_A_CHECK_MAY_HANG, exit=True)
    try:
        assert phase != "unfused" or os.environ["HOROVOD_FUSION_THRESHOLD"] == "0", "fusion is on"
        with allreduce_as(phase):
            getattr(load(file), check)()
    except Exception as error:
        return {"outcome": "failed", "kind": type(error).__name__, "error": traceback.format_exc()}
    finally:
        faulthandler.cancel_dump_traceback_later()
    return {"outcome": "passed"}


def main(folder: str) -> None:
    work = json.loads((Path(folder) / "work.json").read_text())
    torch.set_num_threads(1)
    # Everything but process_sets.py runs as Horovod starts by default.
    adds_sets = any(Path(file).stem == "process_sets" for _, file, _ in work)
    hvd.init(process_sets="dynamic" if adds_sets else None)
    with (Path(folder) / f"rank-{hvd.rank()}.jsonl").open("a") as lines:
        for item in work:
            print(json.dumps({"item": item, "outcome": "started"}), file=lines, flush=True)
            print(json.dumps({"item": item, **run(*item)}), file=lines, flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    # The files of checks say `from harness import …`: they must get this very module, not a second one.
    sys.modules["harness"] = sys.modules["__main__"]
    main(*sys.argv[1:])
