"""A rank of a torch.distributed world, as torchrun and the PyTorchJob operator start it."""

from __future__ import annotations

import contextlib
import os
import socket
import warnings
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from hvdkit.errors import EnvironmentProblem, InputError
from hvdkit.runtime.broadcast import optimizer_state
from hvdkit.runtime.engine import Reduction, pick_device, share_cores

_PATIENCE = timedelta(minutes=30)


class DDPEngine:
    """DistributedDataParallel; NCCL between GPUs, Gloo between CPUs."""

    name = "ddp"

    def __init__(self) -> None:
        self.local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        self.local_size = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        self.device = pick_device(self.local_rank)
        share_cores(self.local_size)
        on_gpu = self.device.type == "cuda"
        try:
            # Also with GPUs a script may reduce what it has on the CPU.
            dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo", timeout=_PATIENCE)
            # Numbers and objects of the loop stay on the CPU, and have a group of their own: DDP never lets go of the
            # one that it reduces with, whose threads may then still hold a tensor of Python's when the interpreter
            # ends, which is SIGABRT. The threads of this one are over when it is destroyed.
            self._numbers = dist.new_group(backend="gloo", timeout=_PATIENCE)
        except (RuntimeError, ValueError) as error:  # a rendezvous that nobody serves, a rank that comes twice
            raise EnvironmentProblem(f"torch.distributed did not start: {str(error).splitlines()[0]}.") from error
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.library = "NCCL" if on_gpu else "Gloo"
        self.hosts = self.gather(socket.gethostname())

    def prepare(self, model: nn.Module, optimizer: Optimizer, reduction: Reduction | None = None) -> DDPPrepared:
        reduction = reduction or Reduction()
        if reduction.op == "adasum":
            raise InputError("--reduction adasum: DDP does not have it; use --engine horovod.")
        if reduction.groups:
            raise InputError("--groups: DDP makes its own buckets; use --engine horovod.")
        self.broadcast_state(model, optimizer)
        with warnings.catch_warnings():
            # With find_unused_parameters DDP keeps its first buckets; else it lays them out anew after the
            # first step, and a resumed run would add up in another order than one that was never interrupted.
            warnings.filterwarnings("ignore", message="find_unused_parameters=True")
            # The new name of it does not exist in every torch that we support.
            warnings.filterwarnings("ignore", message="`broadcast_buffers` is deprecated")
            distributed = DistributedDataParallel(
                model,
                device_ids=[self.device.index] if self.device.type == "cuda" else None,
                broadcast_buffers=False,  # the loop sends rank 0's before each evaluation
                find_unused_parameters=reduction.deterministic,
                gradient_as_bucket_view=True,
            )
        if reduction.compression == "fp16":
            from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

            distributed.register_comm_hook(None, fp16_compress_hook)
        return DDPPrepared(distributed, optimizer, factor=self.size if reduction.op == "sum" else 1)

    def broadcast_state(self, model: nn.Module, optimizer: Optimizer) -> None:
        self.broadcast_tensors(model.state_dict().items())
        optimizer_state(optimizer, self.rank == 0, self.broadcast, self.broadcast_tensors)

    def broadcast_tensors(self, named: Iterable[tuple[str, torch.Tensor]]) -> None:
        for _, tensor in named:
            contiguous = tensor.detach().contiguous()
            group = None if tensor.is_cuda else self._numbers
            dist.broadcast(contiguous.reshape(-1).view(torch.uint8), src=0, group=group)  # bytes: Gloo knows few dtypes
            if not tensor.is_contiguous():
                tensor.detach().copy_(contiguous)

    def broadcast(self, value: Any) -> Any:
        values = [value]
        dist.broadcast_object_list(values, src=0, group=self._numbers, device=torch.device("cpu"))
        return values[0]

    def average(self, values: Mapping[str, float]) -> dict[str, float]:
        tensor = torch.tensor([values[key] for key in sorted(values)], dtype=torch.float64)
        dist.all_reduce(tensor, group=self._numbers)
        return dict(zip(sorted(values), (tensor / self.size).tolist(), strict=True))

    def gather(self, value: Any) -> list[Any]:
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self._numbers)
        return values

    def gather_numbers(self, numbers: Sequence[float]) -> list[list[float]]:
        row = torch.tensor(list(numbers), dtype=torch.float64)
        rows = [torch.empty_like(row) for _ in range(self.size)]
        dist.all_gather(rows, row, group=self._numbers)
        return [gathered.tolist() for gathered in rows]

    def barrier(self) -> None:
        self.gather_numbers([0.0])

    def shutdown(self) -> None:
        del self._numbers
        dist.destroy_process_group()


class DDPPrepared:
    """Gradients are reduced, and waited for, inside the last backward pass of a step."""

    waits = False

    def __init__(self, model: DistributedDataParallel, optimizer: Optimizer, factor: int) -> None:
        self.model = model
        self.optimizer = optimizer
        self._factor = factor  # DDP averages; a sum is that much more

    def backward_pass(self, *, last: bool) -> contextlib.AbstractContextManager:
        return contextlib.nullcontext() if last else self.model.no_sync()

    def synchronize(self) -> None:
        if self._factor != 1:
            for group in self.optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        parameter.grad.mul_(self._factor)

    def step(self, scaler: torch.amp.GradScaler | None = None) -> None:
        if scaler is None:
            self.optimizer.step()
        else:
            scaler.step(self.optimizer)
