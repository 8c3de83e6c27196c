"""What `hvdkit bench allreduce` runs in every rank: `python -m hvdkit.bench.allreduce_rank PLAN.json RESULT.json`.

First the library that Horovod is held against, in the same processes: mpi4py where Horovod uses MPI, torch.distributed
where it uses Gloo. Then Horovod, and not in turns: its background thread never rests and would slow the other down.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hvdkit.runtime import stacks
from hvdkit.runtime.session import session

PERIOD = 1003  # of what is added up to check: no multiple of anything, so that chunks of ranks differ


@dataclass(frozen=True, kw_only=True)
class Library:
    """A way to add up tensors over ranks."""

    name: str
    rank: int
    size: int
    device: torch.device
    add: Callable[[torch.Tensor, str], torch.Tensor]
    """The sum of a tensor over ranks, maybe in its place; the text names it."""

    gather: Callable[[Any], list[Any]]
    """The value of each rank; it waits for all of them, too."""


def main(plan_file: Path, result_file: Path) -> None:
    """Check and measure, and let rank 0 write down what came out."""
    stacks.install()
    plan = json.loads(plan_file.read_text())
    reports = [with_mpi4py(plan) if plan["controller"] == "mpi" else with_torch(plan)]
    with session("horovod") as engine:
        import horovod.torch as hvd

        library = Library(
            name=f"horovod-{engine.library.lower()}",
            rank=engine.rank,
            size=engine.size,
            device=engine.device,
            add=lambda tensor, name: hvd.allreduce_(tensor, op=hvd.Sum, name=name),
            gather=engine.gather,
        )
        reports.append(measure_all(library, plan))
        if engine.rank == 0:
            rows = [row for report in reports for row in report["rows"]]
            wrong = [text for report in reports for text in report["wrong"]]
            report = {"ranks": engine.size, "hosts": len(set(engine.hosts)), "device": engine.device.type}
            result_file.write_text(json.dumps(report | {"wrong": wrong, "rows": rows}))


def with_mpi4py(plan: dict[str, Any]) -> dict[str, Any]:
    """Plain MPI_Allreduce between the processors' memories."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD.Dup()
    answers: dict[int, torch.Tensor] = {}

    def add(tensor: torch.Tensor, _: str) -> torch.Tensor:
        if tensor.numel() not in answers:
            answers.clear()  # one at a time: they are large
            answers[tensor.numel()] = torch.empty_like(tensor)
        answer = answers[tensor.numel()]
        world.Allreduce(tensor.numpy(), answer.numpy(), op=MPI.SUM)
        return answer

    library = Library(
        name="mpi4py", rank=world.rank, size=world.size, device=torch.device("cpu"), add=add, gather=world.allgather
    )
    report = measure_all(library, plan)
    world.Free()
    return report


def with_torch(plan: dict[str, Any]) -> dict[str, Any]:
    """torch.distributed, over NCCL where there is a GPU for each rank."""
    import torch.distributed as distributed

    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
    rank, size, local_rank, local_size = (int(os.environ[f"HOROVOD_{name}"]) for name in names)
    on_gpu = has_gpus_for(local_size)
    if on_gpu:
        torch.cuda.set_device(local_rank)
    backend = "nccl" if on_gpu else "gloo"
    distributed.init_process_group(backend, init_method=f"file://{plan['store']}", rank=rank, world_size=size)

    def add(tensor: torch.Tensor, _: str) -> torch.Tensor:
        distributed.all_reduce(tensor)
        return tensor

    def gather(value: Any) -> list[Any]:
        values = [None] * size
        distributed.all_gather_object(values, value)
        return values

    device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")
    library = Library(name=f"torch-{backend}", rank=rank, size=size, device=device, add=add, gather=gather)
    report = measure_all(library, plan)
    distributed.destroy_process_group()
    return report


def has_gpus_for(local_size: int) -> bool:
    """Whether each rank of this host has a GPU. All of them answer alike: a world has one library, and ranks that chose
    another one would wait for each other."""
    return torch.cuda.is_available() and local_size <= torch.cuda.device_count()


def measure_all(library: Library, plan: dict[str, Any]) -> dict[str, Any]:
    """One row a size, and the ranks and sizes whose sums were wrong."""
    rows, wrong = [], []
    for size, calls in plan["sizes"]:
        correct = library.gather(is_correct(library, size))
        wrong += [f"{library.name}, {size} bytes, on rank {rank}" for rank, good in enumerate(correct) if not good]
        measure(library, size, calls)  # the first one warms up and does not count
        batches = [measure(library, size, calls) for _ in range(plan["batches"])]
        rows.append({"library": library.name, "bytes": size, "calls": calls, "batches": batches})
    return {"rows": rows, "wrong": wrong}


def is_correct(library: Library, size: int) -> bool:
    """Whether a message of that size is added up: small whole numbers, so that the sum is exact."""
    periods, rest = divmod(elements(size), PERIOD)
    mine = numbers_of(library.rank).repeat(periods + 1)[: elements(size)].to(library.device)
    expected = sum(numbers_of(rank) for rank in range(library.size)).to(library.device)
    answer = library.add(mine, f"allreduce.{size}")
    # By periods: a second tensor as large, in every rank, might not fit.
    whole = answer[: periods * PERIOD].view(periods, PERIOD)
    return bool((whole == expected).all()) and torch.equal(answer[periods * PERIOD :], expected[:rest])


def numbers_of(rank: int) -> torch.Tensor:
    """What a rank adds: another number for each rank, and other ones at its places."""
    return ((torch.arange(PERIOD) + 3 * rank) % 7 + rank % 50 + 1).float()


def elements(size: int) -> int:
    return max(1, size // 4)


def measure(library: Library, size: int, calls: int) -> float:
    """Seconds of one allreduce by the slowest rank: a mean over calls in a row, since a clock and a barrier around
    each would cost more than a small message."""
    tensor = torch.zeros(elements(size), device=library.device)  # zeros stay zeros, however often they are added
    library.gather(None)
    began = time.perf_counter()
    for _ in range(calls):
        library.add(tensor, f"allreduce.{size}")
    if library.device.type == "cuda":
        torch.cuda.synchronize()
    return max(library.gather(time.perf_counter() - began)) / calls


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
