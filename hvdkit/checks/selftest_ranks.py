"""What `hvdkit selftest` runs in every rank: `python -m hvdkit.checks.selftest_ranks RESULT_FILE`.

Rank 0 writes the result of all ranks as JSON; nothing is printed unless a rank breaks.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

from hvdkit.runtime import stacks
from hvdkit.runtime.engine import Engine
from hvdkit.runtime.session import session

DTYPES = (torch.float16, torch.float32, torch.float64, torch.int32, torch.int64)
ELEMENTS = 1000
# Bytes and rounds: small messages show latency, large ones the bandwidth. Rounds are fixed, because ranks that
# measured their own time would disagree about when to stop.
SIZES = ((4 << 10, 50), (1 << 20, 20), (16 << 20, 8), (64 << 20, 4))
WARMUP_ROUNDS = 2


def main(result_file: Path) -> None:
    """Check and measure, and let rank 0 write down what came out."""
    stacks.install()
    with session("horovod") as engine:
        import horovod.torch as hvd

        checks = {
            "allreduce": check_allreduce(hvd, engine),
            "allgather": check_allgather(hvd, engine),
            "broadcast": check_broadcast(hvd, engine),
        }
        wrong = [f"{name} {where}" for name, places in checks.items() for where in places]
        bandwidth = [measure(hvd, engine, size, rounds) for size, rounds in SIZES]
        all_wrong = [f"{text} on rank {rank}" for rank, texts in enumerate(engine.gather(wrong)) for text in texts]
        if engine.rank == 0:
            result = {
                "ranks": engine.size,
                "hosts": len(set(engine.hosts)),
                "device": engine.device.type,
                "expected_library": engine.library,
                "operations": list(checks),
                "wrong": all_wrong,
                "bandwidth": bandwidth,
            }
            result_file.write_text(json.dumps(result))


def values(rank: int, count: int, dtype: torch.dtype, engine: Engine) -> torch.Tensor:
    """Small whole numbers, exact in every dtype and different on every rank."""
    return ((torch.arange(count, device=engine.device) + 3 * rank) % 7 + rank % 50).to(dtype)


def check_allreduce(hvd: Any, engine: Engine) -> list[str]:
    """The sum over ranks, in every dtype; for which one it was wrong."""
    wrong = []
    for dtype in DTYPES:
        if dtype == torch.float16 and engine.size > 32:
            continue  # the sum leaves the whole numbers that 16 bits can hold
        got = hvd.allreduce(values(engine.rank, ELEMENTS, dtype, engine), op=hvd.Sum, name=f"selftest.sum.{dtype}")
        expected = sum(values(rank, ELEMENTS, torch.int64, engine) for rank in range(engine.size)).to(dtype)
        if not torch.equal(got, expected):
            wrong.append(f"of {dtype}")
    mine = values(engine.rank, ELEMENTS, torch.float64, engine)
    got = hvd.allreduce(mine, op=hvd.Average, name="selftest.average")
    expected = sum(values(rank, ELEMENTS, torch.float64, engine) for rank in range(engine.size)) / engine.size
    if not torch.allclose(got, expected, rtol=1e-12):
        wrong.append("as an average")
    return wrong


def check_allgather(hvd: Any, engine: Engine) -> list[str]:
    """Each rank gives another number of rows, and all must come in the order of ranks."""
    wrong = []
    for dtype in DTYPES:
        mine = values(engine.rank, 5 + engine.rank, dtype, engine)
        got = hvd.allgather(mine, name=f"selftest.gather.{dtype}")
        expected = torch.cat([values(rank, 5 + rank, dtype, engine) for rank in range(engine.size)])
        if got.shape != expected.shape or not torch.equal(got, expected):
            wrong.append(f"of {dtype}")
    return wrong


def check_broadcast(hvd: Any, engine: Engine) -> list[str]:
    """From the first and from the last rank."""
    wrong = []
    for dtype in DTYPES:
        for root in sorted({0, engine.size - 1}):
            mine = values(engine.rank, ELEMENTS, dtype, engine)
            got = hvd.broadcast(mine, root_rank=root, name=f"selftest.broadcast.{root}.{dtype}")
            if not torch.equal(got, values(root, ELEMENTS, dtype, engine)):
                wrong.append(f"of {dtype} from rank {root}")
    return wrong


def measure(hvd: Any, engine: Engine, size: int, rounds: int) -> dict[str, float]:
    """Bandwidth of an allreduce of `size` bytes, by the slowest rank."""
    tensor = torch.ones(size // 4, device=engine.device)
    for _ in range(WARMUP_ROUNDS):
        hvd.allreduce_(tensor, op=hvd.Average, name=f"selftest.bandwidth.{size}")
    engine.barrier()
    began = time.perf_counter()
    for _ in range(rounds):
        hvd.allreduce_(tensor, op=hvd.Average, name=f"selftest.bandwidth.{size}")
    if engine.device.type == "cuda":
        torch.cuda.synchronize()
    seconds = max(engine.gather(time.perf_counter() - began)) / rounds
    algorithm = size / seconds
    return {
        "bytes": size,
        "seconds": seconds,
        "algorithm_bytes_per_second": algorithm,
        "bus_bytes_per_second": algorithm * bus_factor(engine.size),
    }


def bus_factor(ranks: int) -> float:
    """What each link carries per byte reduced, by the best algorithm: comparable between world sizes."""
    return 2 * (ranks - 1) / ranks


if __name__ == "__main__":
    main(Path(sys.argv[1]))
