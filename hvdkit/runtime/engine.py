"""Engines: what a rank knows of its world, and how gradients are reduced.

The training loop does not know which engine it has.
"""

import os
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from hvdkit.errors import EnvironmentProblem, HvdkitError

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.optim import Optimizer

ENGINES = ("auto", "horovod", "single")

# Each launcher leaves a mark: mpirun, horovodrun (and what hvdkit sets for Gloo), hvdkit launch.
_LAUNCHER_MARKS = ("OMPI_COMM_WORLD_SIZE", "HOROVOD_RANK", "HOROVOD_SIZE", "HVDKIT_WORLD_SIZE")


# Launchers whose ranks no engine here can join: under them `auto` would train as many strangers as there are ranks.
_FOREIGN_MARKS = {"WORLD_SIZE": "torchrun", "PMI_SIZE": "an MPI that is not Open MPI"}


class Engine(Protocol):
    """One rank's view of the world. Every method but `prepare` must be called by all ranks together."""

    rank: int
    size: int
    local_rank: int
    hosts: list[str]
    """The host of each rank; in Kubernetes that is the pod's name."""
    device: "torch.device"
    library: str
    """What reduces the gradients: NCCL, MPI, Gloo, or 'none' with one process."""

    def prepare(self, model: "nn.Module", optimizer: "Optimizer") -> "Optimizer":
        """Give all ranks rank 0's weights; return the optimizer whose step averages gradients over ranks."""

    def average(self, values: Mapping[str, float]) -> dict[str, float]:
        """The mean of each value over all ranks, in double precision; every rank gives the same keys."""

    def gather(self, value: Any) -> list[Any]:
        """The value of each rank, in the order of ranks, on every rank."""

    def barrier(self) -> None:
        """Return when every rank has come here."""

    def shutdown(self) -> None:
        """Leave the world in good order."""


def choose(name: str, environ: Mapping[str, str]) -> str:
    """The engine that `auto` stands for: Horovod when a launcher started us, else one process."""
    if name != "auto":
        return name
    if _launched(environ):
        return "horovod"
    for mark, launcher in _FOREIGN_MARKS.items():
        if environ.get(mark, "1") not in ("", "1"):
            raise EnvironmentProblem(
                f"{launcher} started this as one of {environ[mark]} ranks ({mark}), which no engine can join; start "
                "it with hvdkit launch, horovodrun or Open MPI's mpirun, or say --engine single."
            )
    return "single"


def start(name: str) -> Engine:
    """Join the world with the engine of that name (one of ENGINES)."""
    try:
        import torch  # noqa: F401
    except (ImportError, OSError) as error:  # OSError: one of torch's shared libraries is missing
        raise EnvironmentProblem(
            f"torch cannot be used ({error}); install it with \"pip install 'hvdkit[train]'\"; 'hvdkit doctor' "
            "says more."
        ) from error
    return {"horovod": HorovodEngine, "single": SingleEngine}[choose(name, os.environ)]()


def _launched(environ: Mapping[str, str]) -> bool:
    return any(environ.get(mark) for mark in _LAUNCHER_MARKS)


class SingleEngine:
    """One process; touches neither MPI nor Horovod."""

    def __init__(self) -> None:
        self.rank = self.local_rank = 0
        self.size = 1
        self.hosts = [socket.gethostname()]
        self.device = _pick_device(local_rank=0)
        self.library = "none"

    def prepare(self, model: "nn.Module", optimizer: "Optimizer") -> "Optimizer":
        return optimizer

    def average(self, values: Mapping[str, float]) -> dict[str, float]:
        return {key: float(value) for key, value in values.items()}

    def gather(self, value: Any) -> list[Any]:
        return [value]

    def barrier(self) -> None:
        pass

    def shutdown(self) -> None:
        pass


class HorovodEngine:
    """A rank of a Horovod world, over MPI or Gloo."""

    def __init__(self) -> None:
        if not _launched(os.environ):
            # A world of one through Gloo: MPI_Init without mpirun aborts where Open MPI came as a wheel.
            os.environ.setdefault("HOROVOD_CONTROLLER", "gloo")
            os.environ.setdefault("HOROVOD_CPU_OPERATIONS", "gloo")
        self._hvd = hvd = _import_horovod()
        try:
            hvd.init()
        except RuntimeError as error:
            raise HvdkitError(f"Horovod did not start: {error}.") from error
        self.rank, self.size, self.local_rank = hvd.rank(), hvd.size(), hvd.local_rank()
        self.device = _pick_device(self.local_rank)
        # Horovod tries its libraries in this order, and takes NCCL only for tensors on a GPU.
        if self.device.type == "cuda" and hvd.nccl_built():
            self.library = "NCCL"
        else:
            self.library = "Gloo" if hvd.gloo_enabled() else "MPI"
        self.hosts = self.gather(socket.gethostname())

    def prepare(self, model: "nn.Module", optimizer: "Optimizer") -> "Optimizer":
        from hvdkit.runtime.broadcast import broadcast_optimizer_state, broadcast_parameters
        from hvdkit.runtime.compression import compression

        broadcast_parameters(model.state_dict())
        broadcast_optimizer_state(optimizer)
        return self._hvd.DistributedOptimizer(
            optimizer, named_parameters=model.named_parameters(), compression=compression()
        )

    # Operations carry names: Horovod matches them between ranks by name, and its own numbering can differ.

    def average(self, values: Mapping[str, float]) -> dict[str, float]:
        import torch

        tensor = torch.tensor([values[key] for key in sorted(values)], dtype=torch.float64)
        averaged = self._hvd.allreduce(tensor, op=self._hvd.Average, name="hvdkit.average")
        return dict(zip(sorted(values), averaged.tolist(), strict=True))

    def gather(self, value: Any) -> list[Any]:
        return self._hvd.allgather_object(value, name="hvdkit.gather")

    def barrier(self) -> None:
        self._hvd.barrier()

    def shutdown(self) -> None:
        self._hvd.shutdown()


def _import_horovod() -> Any:
    try:
        import horovod.torch
    except ImportError as error:
        raise EnvironmentProblem(
            f"Horovod cannot be used ({error}); run 'hvdkit horovod install', or train in one process with "
            "--engine single."
        ) from error
    return horovod.torch


def _pick_device(local_rank: int) -> "torch.device":
    import torch

    if not torch.cuda.is_available():
        return torch.device("cpu")
    if local_rank >= torch.cuda.device_count():
        raise EnvironmentProblem(
            f"local rank {local_rank} has no GPU of its own, this host has {torch.cuda.device_count()}; "
            "start no more ranks here than GPUs, or set CUDA_VISIBLE_DEVICES= to train on the CPU."
        )
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device
