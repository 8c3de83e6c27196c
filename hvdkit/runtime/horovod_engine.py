"""A rank of a Horovod world: NCCL for tensors on GPUs, MPI or Gloo on CPUs."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from hvdkit.errors import EnvironmentProblem, HvdkitError, InputError
from hvdkit.runtime.broadcast import broadcast_in_place, broadcast_optimizer_state, broadcast_parameters
from hvdkit.runtime.compression import compression
from hvdkit.runtime.engine import Reduction, launched_for_horovod, pick_device, share_cores


class HorovodEngine:
    """The world as Horovod knows it. In an elastic run `join` is called again for each new world."""

    name = "horovod"

    def __init__(self) -> None:
        if not launched_for_horovod(os.environ):
            # A world of one through Gloo: MPI_Init without mpirun aborts where Open MPI came as a wheel.
            os.environ.setdefault("HOROVOD_CONTROLLER", "gloo")
            os.environ.setdefault("HOROVOD_CPU_OPERATIONS", "gloo")
        self._hvd = _import_horovod()
        try:
            self._hvd.init()
        except RuntimeError as error:
            raise HvdkitError(f"Horovod did not start: {error}.") from error
        self.join()

    def join(self) -> None:
        """Learn the place in the world that Horovod has just made."""
        hvd = self._hvd
        self.rank, self.size = hvd.rank(), hvd.size()
        self.local_rank, self.local_size = hvd.local_rank(), hvd.local_size()
        self.device = pick_device(self.local_rank)
        share_cores(self.local_size)
        # Horovod tries its libraries in this order, and takes NCCL only for tensors on a GPU.
        if self.device.type == "cuda" and hvd.nccl_built():
            self.library = "NCCL"
        else:
            self.library = "Gloo" if hvd.gloo_enabled() else "MPI"
        self.hosts = self.gather(socket.gethostname())

    def prepare(self, model: nn.Module, optimizer: Optimizer, reduction: Reduction | None = None) -> HorovodPrepared:
        reduction = reduction or Reduction()
        hvd = self._hvd
        operations = {"average": hvd.Average, "sum": hvd.Sum, "adasum": hvd.Adasum}
        if reduction.op == "adasum" and self.library == "Gloo" and self.size > 1:
            raise InputError("--reduction adasum: Horovod has it for MPI and NCCL only; use --controller mpi.")
        if reduction.op == "adasum" and self.size & (self.size - 1):
            raise InputError(f"--reduction adasum: it works on 2, 4, 8, 16 … ranks, not on {self.size}.")
        distributed = hvd.DistributedOptimizer(
            optimizer,
            named_parameters=model.named_parameters(),
            compression=compression("exact" if reduction.compression == "none" else reduction.compression),
            op=operations[reduction.op],
            backward_passes_per_step=reduction.accumulate,
            **({"num_groups": reduction.groups} if reduction.groups else {}),
        )
        # Horovod makes a new optimizer of the parameters alone: momentum from a checkpoint would be lost.
        distributed.load_state_dict(optimizer.state_dict())
        self.broadcast_state(model, distributed)
        return HorovodPrepared(model, distributed, reduces_in_step=reduction.op == "adasum" and self.size > 1)

    def broadcast_state(self, model: nn.Module, optimizer: Optimizer) -> None:
        broadcast_parameters(model.state_dict())
        broadcast_optimizer_state(optimizer)

    # Operations carry names: Horovod matches them between ranks by name, and its own numbering can differ.

    def broadcast_tensors(self, named: Iterable[tuple[str, torch.Tensor]]) -> None:
        broadcast_in_place([(f"hvdkit.tensor.{name}", tensor) for name, tensor in named], root_rank=0)

    def broadcast(self, value: Any) -> Any:
        return self._hvd.broadcast_object(value, root_rank=0, name="hvdkit.broadcast")

    def average(self, values: Mapping[str, float]) -> dict[str, float]:
        tensor = torch.tensor([values[key] for key in sorted(values)], dtype=torch.float64)
        averaged = self._hvd.allreduce(tensor, op=self._hvd.Average, name="hvdkit.average")
        return dict(zip(sorted(values), averaged.tolist(), strict=True))

    def gather(self, value: Any) -> list[Any]:
        return self._hvd.allgather_object(value, name="hvdkit.gather")

    def gather_numbers(self, numbers: Sequence[float]) -> list[list[float]]:
        row = torch.tensor([list(numbers)], dtype=torch.float64)
        return self._hvd.allgather(row, name="hvdkit.numbers").tolist()

    def barrier(self) -> None:
        self._hvd.barrier()

    def shutdown(self) -> None:
        self._hvd.shutdown()


class HorovodPrepared:
    """Gradients leave for the other ranks during the backward pass and are waited for in `synchronize`."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, *, reduces_in_step: bool) -> None:
        self.model = model
        self.optimizer = optimizer
        self._reduces_in_step = reduces_in_step  # Adasum works on the change of the weights, not on gradients
        self.waits = not reduces_in_step

    def backward_pass(self, *, last: bool) -> contextlib.AbstractContextManager:
        return contextlib.nullcontext()  # Horovod counts the backward passes itself

    def synchronize(self) -> None:
        if not self._reduces_in_step:
            self.optimizer.synchronize()

    def step(self, scaler: torch.amp.GradScaler | None = None) -> None:
        # Reduced once already: a second time would undo the clipping and cost another allreduce.
        skip = contextlib.nullcontext() if self._reduces_in_step else self.optimizer.skip_synchronize()
        with skip:
            if scaler is None:
                self.optimizer.step()
            else:
                scaler.step(self.optimizer)


def _import_horovod() -> Any:
    try:
        import horovod.torch
    except ImportError as error:
        raise EnvironmentProblem(
            f"Horovod cannot be used ({error}); run 'hvdkit horovod install', or train in one process with "
            "--engine single."
        ) from error
    return horovod.torch
