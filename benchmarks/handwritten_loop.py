"""The plainest Horovod training that trains what `hvdkit train` does: what benchmarks/train_overhead.py compares with.

No checkpoints, no reports, no learning-rate schedule, no shuffling, no evaluation. By itself it trains on noise and
leaves the process's peak memory in the file --result.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import horovod.torch as hvd
import torch
from torch.nn.functional import cross_entropy, interpolate
from torchvision.models import resnet18


def train(
    images: torch.Tensor, labels: torch.Tensor, *, batch: int, side: int, steps: int, after: Callable[[int], None]
) -> None:
    """Train ResNet-18 on grey images (bytes), `batch` of them a step and rank; `after` hears each step's number."""
    torch.manual_seed(1)
    model = resnet18(num_classes=10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    model.train()
    for step in range(steps):
        begin = (step * hvd.size() + hvd.rank()) * batch % (len(images) - batch + 1)
        some, answers = images[begin : begin + batch], labels[begin : begin + batch]
        some = interpolate(some.float().div(255).sub(0.1307).div(0.3081), (side, side)).expand(-1, 3, -1, -1)
        optimizer.zero_grad()
        cross_entropy(model(some), answers).backward()
        optimizer.step()
        after(step + 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=1800)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=51)
    parser.add_argument("--result", type=Path, required=True)
    arguments = parser.parse_args()
    hvd.init()
    images = torch.randint(0, 256, (arguments.images, 1, 28, 28), dtype=torch.uint8)
    labels = torch.randint(0, 10, (arguments.images,))
    train(
        images,
        labels,
        batch=arguments.batch_size,
        side=arguments.image_size,
        steps=arguments.steps,
        after=lambda step: None,
    )
    if hvd.rank() == 0:
        arguments.result.write_text(json.dumps({"peak_bytes": peak_bytes()}))


def peak_bytes() -> int:
    """The most memory that this process has ever held."""
    status = Path("/proc/self/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))) * 1024


if __name__ == "__main__":
    main()
