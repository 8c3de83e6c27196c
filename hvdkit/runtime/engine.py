"""Engines: what a rank knows of its world, and how gradients are reduced.

The training loop does not know which engine it has.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from hvdkit.errors import EnvironmentProblem

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.optim import Optimizer

ENGINES = ("auto", "horovod", "ddp", "single")

# Each launcher leaves a mark: mpirun, and horovodrun (and what hvdkit sets for Gloo).
_HOROVOD_MARKS = ("OMPI_COMM_WORLD_SIZE", "HOROVOD_RANK", "HOROVOD_SIZE")
# What torch.distributed needs to find its world; torchrun and the PyTorchJob operator set all of them.
_TORCH_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# An MPI whose ranks no engine here can join: under it `auto` would train as many strangers as there are ranks.
_FOREIGN_MARK = "PMI_SIZE"


@dataclass(frozen=True, kw_only=True)
class Reduction:
    """How the gradients of the ranks become one."""

    op: str = "average"
    """average, sum or adasum."""

    compression: str = "none"
    """What gradients travel as: none leaves them as they are, fp16 halves the bytes."""

    accumulate: int = 1
    """Backward passes whose gradients are added up before they are reduced."""

    groups: int = 0
    """Gradients are reduced in so many groups at once; 0: each as it comes."""

    deterministic: bool = False
    """The same order of additions in every run."""


class Prepared(Protocol):
    """A model and an optimizer whose steps are those of the world."""

    model: "nn.Module"
    """Call this one in training."""

    optimizer: "Optimizer"
    waits: bool
    """Whether `synchronize` is where a rank waits for the others; if not, the wait hides in the backward pass."""

    def backward_pass(self, *, last: bool) -> AbstractContextManager:
        """Around a forward and backward pass; gradients are reduced only with the last one of a step."""

    def synchronize(self) -> None:
        """Return when the gradients are those of the world; after it they may be clipped."""

    def step(self, scaler: "torch.amp.GradScaler | None" = None) -> None:
        """Change the weights by the gradients, which `synchronize` has reduced."""


class Engine(Protocol):
    """One rank's view of the world. Every method must be called by all ranks together."""

    name: str
    rank: int
    size: int
    local_rank: int
    local_size: int
    hosts: list[str]
    """The host of each rank; in Kubernetes that is the pod's name."""
    device: "torch.device"
    library: str
    """What reduces the gradients: NCCL, MPI, Gloo, or 'none' with one process."""

    def prepare(self, model: "nn.Module", optimizer: "Optimizer", reduction: Reduction) -> Prepared:
        """Give all ranks rank 0's weights and optimizer state, and reduce gradients from now on."""

    def broadcast_state(self, model: "nn.Module", optimizer: "Optimizer") -> None:
        """Rank 0's weights, buffers and optimizer state on all ranks, bit for bit."""

    def broadcast_tensors(self, named: Iterable[tuple[str, "torch.Tensor"]]) -> None:
        """Overwrite, on all other ranks, each tensor with rank 0's, bit for bit."""

    def broadcast(self, value: Any) -> Any:
        """Rank 0's value, on every rank."""

    def average(self, values: Mapping[str, float]) -> dict[str, float]:
        """The mean of each value over all ranks, in double precision; every rank gives the same keys."""

    def gather(self, value: Any) -> list[Any]:
        """The value of each rank, in the order of ranks, on every rank."""

    def gather_numbers(self, numbers: Sequence[float]) -> list[list[float]]:
        """As `gather`, for equally many numbers of each rank: cheap enough for a training loop."""

    def barrier(self) -> None:
        """Return when every rank has come here."""

    def shutdown(self) -> None:
        """Leave the world in good order."""


def choose(name: str, environ: Mapping[str, str]) -> str:
    """The engine that `auto` stands for: what the launcher that started us is made for, else one process."""
    if name == "ddp" and not has_torch_world(environ):
        raise EnvironmentProblem(
            "--engine ddp: this process does not know its world (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT); start "
            "it with 'torchrun --nproc-per-node N -m hvdkit.train'."
        )
    if name != "auto":
        return name
    if has_torch_world(environ) and "TORCHELASTIC_RUN_ID" in environ:
        return "ddp"  # torchrun, also where mpirun started torchrun
    if launched_for_horovod(environ):
        return "horovod"
    if has_torch_world(environ):
        return "ddp"
    if environ.get("HVDKIT_WORLD_SIZE"):
        return "horovod"  # whose launcher failed to tell it so; the guard of the world size will say what is missing
    if environ.get(_FOREIGN_MARK, "1") not in ("", "1"):
        raise EnvironmentProblem(
            f"an MPI that is not Open MPI started this as one of {environ[_FOREIGN_MARK]} ranks ({_FOREIGN_MARK}), "
            "which no engine can join; start it with hvdkit launch, horovodrun, torchrun or Open MPI's mpirun, or "
            "say --engine single."
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
    from hvdkit.runtime import late_compiler

    late_compiler.put_off()
    chosen = choose(name, os.environ)
    if chosen == "horovod":
        from hvdkit.runtime.horovod_engine import HorovodEngine

        return HorovodEngine()
    if chosen == "ddp":
        from hvdkit.runtime.ddp_engine import DDPEngine

        return DDPEngine()
    from hvdkit.runtime.single_engine import SingleEngine

    return SingleEngine()


def launched_for_horovod(environ: Mapping[str, str]) -> bool:
    """Whether a launcher of Horovod ranks started this process."""
    return any(environ.get(mark) for mark in _HOROVOD_MARKS)


def has_torch_world(environ: Mapping[str, str]) -> bool:
    """Whether this process was told its torch.distributed world."""
    return all(environ.get(variable) for variable in _TORCH_VARIABLES)


def pick_device(local_rank: int) -> "torch.device":
    """The GPU of this local rank, or the CPU where there is none."""
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


def share_cores(local_size: int) -> None:
    """Without a word of the launcher torch starts a thread a core in every rank; share the cores instead."""
    import torch

    if not os.environ.get("OMP_NUM_THREADS"):
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // local_size))
