"""What each rank of benchmarks/local_launch.py runs: training steps of ResNet-50 on random images.

The same file under every launcher; only the way that gradients are reduced differs (--reduce).
Each rank writes its result into the folder --meet.
"""

import argparse
import json
import os
import time
from pathlib import Path

import torch
import torchvision


def main() -> None:
    arguments = parse()
    reduce = {"none": independent, "horovod": horovod, "ddp": ddp}[arguments.reduce]
    torch.manual_seed(0)
    model = torchvision.models.resnet50(num_classes=100)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    rank, world_size, model, optimizer = reduce(model, optimizer, arguments)
    images = torch.randn(arguments.batch_size, 3, arguments.image_size, arguments.image_size)
    labels = torch.randint(0, 100, (arguments.batch_size,))

    def step() -> float:
        begin = time.perf_counter()
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        return time.perf_counter() - begin

    step()
    first_step = time.time() - float(os.environ["BENCHMARK_STARTED"])
    for _ in range(arguments.warm_up - 1):
        step()
    wait_for_all(arguments.meet, "warm", rank, world_size)
    cpu_before = time.process_time()
    seconds = [step() for _ in range(arguments.steps)]
    cpu_seconds = time.process_time() - cpu_before
    result = {
        "rank": rank,
        "images_per_second": arguments.batch_size * arguments.steps / sum(seconds),
        "cpu_seconds_per_image": cpu_seconds / (arguments.batch_size * arguments.steps),
        "step_seconds": seconds,
        "first_step_seconds": first_step,
    }
    if arguments.reduce == "none":
        # The slower processes must not have the machine to themselves at the end.
        mark(arguments.meet, "measured", rank)
        while count(arguments.meet, "measured") < world_size:
            step()
    # In a file of its own: some launchers mix the lines of their ranks.
    (arguments.meet / f"result-{rank}.json").write_text(json.dumps(result))


def independent(model, optimizer, arguments):
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), model, optimizer


def horovod(model, optimizer, arguments):
    import horovod.torch as hvd

    hvd.init()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    return hvd.rank(), hvd.size(), model, optimizer


def ddp(model, optimizer, arguments):
    torch.distributed.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(model)
    return torch.distributed.get_rank(), torch.distributed.get_world_size(), model, optimizer


def mark(folder: Path, what: str, rank: int) -> None:
    (folder / f"{what}-{rank}").touch()


def count(folder: Path, what: str) -> int:
    return len(list(folder.glob(f"{what}-*")))


def wait_for_all(folder: Path, what: str, rank: int, world_size: int) -> None:
    mark(folder, what, rank)
    while count(folder, what) < world_size:
        time.sleep(0.01)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--reduce", choices=["none", "horovod", "ddp"], required=True)
    parser.add_argument("--meet", type=Path, required=True, help="empty folder in which the ranks meet")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--warm-up", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10)
    return parser.parse_args()


if __name__ == "__main__":
    main()
