"""What a checkpoint of ResNet-18 with momentum costs: the stall of the caller, and the processor's time.

    python benchmarks/checkpoint_stall.py --rounds 25 --output benchmarks/results/checkpoint-stall.json

Sides, interleaved in a new random order in each round: hvdkit's save in the background, the same written in the
foreground, a plain torch.save, torch.save with fsync, and one copy of as many bytes in memory, which is the least that
a save off the training path can stall. One thread, as a rank has on a busy machine. The caller does nothing while the
background writes; what training loses to it is measured by train_overhead.py.
"""

import argparse
import hashlib
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import xxhash
from machine_facts import machine_facts
from torchvision.models import resnet18

from hvdkit.train.background import BackgroundSaver
from hvdkit.train.checkpoints import CheckpointFolder

HASHES = {"xxh3_128": xxhash.xxh3_128, "sha256": hashlib.sha256, "blake2b": hashlib.blake2b, "sha1": hashlib.sha1}


def training_state() -> dict:
    model = resnet18()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.randn(2, 3, 64, 64)).sum().backward()
    optimizer.step()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


class MeasuringFolder(CheckpointFolder):
    """Keeps the processor's seconds of each save, of whatever thread makes it."""

    cpu_seconds = 0.0

    def save(self, step: int, state: dict) -> Path:
        begin = time.thread_time()
        path = super().save(step, state)
        self.cpu_seconds = time.thread_time() - begin
        return path


class NoWhere:
    """Swallows what torch.save writes."""

    def write(self, data: memoryview) -> int:
        return len(data)

    def flush(self) -> None:
        pass


def torch_save(state: dict, path: Path, sync: bool) -> None:
    with path.open("wb") as file:
        torch.save(state, file)
        file.flush()
        if sync:
            os.fsync(file.fileno())


def seconds(action: Callable[[], object]) -> tuple[float, float]:
    """Wall-clock and processor's seconds of this thread."""
    wall, cpu = time.perf_counter(), time.thread_time()
    action()
    return time.perf_counter() - wall, time.thread_time() - cpu


def compare(rounds: int, folder: Path, state: dict, state_bytes: int) -> dict[str, list[dict[str, float]]]:
    background, foreground = MeasuringFolder(folder / "background"), MeasuringFolder(folder / "foreground")
    for each in (background, foreground):
        each.prepare()
    saver = BackgroundSaver(background, print)
    source, target = torch.ones(state_bytes, dtype=torch.uint8), torch.zeros(state_bytes, dtype=torch.uint8)
    step = 0

    def save_in_background() -> dict[str, float]:
        begin = time.perf_counter()
        stall, stall_cpu = seconds(lambda: saver.save(step, state))
        saver.wait()
        durable = time.perf_counter() - begin
        thread_cpu = background.cpu_seconds
        return {"stall": stall, "cpu": stall_cpu + thread_cpu, "thread_cpu": thread_cpu, "until_durable": durable}

    def stalling(action: Callable[[], object]) -> Callable[[], dict[str, float]]:
        return lambda: dict(zip(("stall", "cpu"), seconds(action), strict=True))

    sides = {
        "hvdkit background": save_in_background,
        "hvdkit foreground": stalling(lambda: foreground.save(step, state)),
        "torch.save": stalling(lambda: torch_save(state, folder / "plain.pt", sync=False)),
        "torch.save + fsync": stalling(lambda: torch_save(state, folder / "synced.pt", sync=True)),
        "memcpy": stalling(lambda: target.copy_(source)),
    }
    first = save_in_background()  # allocates its buffers; reported by itself
    samples: dict[str, list[dict[str, float]]] = {name: [] for name in sides} | {"first background save": [first]}
    for _ in range(rounds):
        step += 1
        order = list(sides)
        random.shuffle(order)
        for name in order:
            os.sync()  # what a side left to be written is not charged to the next one
            samples[name].append(sides[name]())
    saver.close()
    if saver.failures:
        raise SystemExit("a save failed")
    return samples


def parts(rounds: int, state: dict, state_bytes: int) -> dict[str, dict]:
    """Processor's seconds of what a save is made of, and of what it could be made of."""
    data = memoryview(bytearray(os.urandom(1 << 20)) * (state_bytes >> 20))
    taken: dict[str, list[float]] = {}

    def take(name: str, action: Callable[[], object]) -> None:
        taken.setdefault(name, []).append(seconds(action)[1])

    for _ in range(rounds):
        for crc32 in (True, False):
            torch.serialization.set_crc32_options(crc32)
            take(f"torch.save to nowhere, crc32 {'on' if crc32 else 'off'}", lambda: torch.save(state, NoWhere()))
        torch.serialization.set_crc32_options(True)
        for name, create in HASHES.items():
            take(name, lambda create=create: create(data))
    return {name: summary(values) for name, values in taken.items()}


def summary(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "smallest": min(values), "largest": max(values)}


def summaries(taken: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    return {what: summary([sample[what] for sample in taken]) for what in taken[0]}


def ratio(what: str, samples: dict[str, list[dict[str, float]]], other: str) -> dict[str, float]:
    """hvdkit's background save against another side, taken within each round."""
    pairs = zip(samples["hvdkit background"], samples[other], strict=True)
    return summary([ours[what] / theirs[what] for ours, theirs in pairs])


def show(numbers: dict[str, dict[str, float]], unit: float) -> None:
    for name, values in numbers.items():
        median, smallest, largest = (unit * values[key] for key in ("median", "smallest", "largest"))
        print(f"  {name:<48} {median:8.2f}   ({smallest:.2f} … {largest:.2f})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--folder", type=Path, help="where to write; the default is the system's temporary folder")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    facts = machine_facts()
    state = training_state()
    with tempfile.TemporaryDirectory(prefix="hvdkit-benchmark-", dir=arguments.folder) as folder:
        state_bytes = (CheckpointFolder(Path(folder)).save(0, state)).stat().st_size
        samples = compare(arguments.rounds, Path(folder), state, state_bytes)
    figures = {name: summaries(taken) for name, taken in samples.items()}
    pairs = [(what, other) for what in ("stall", "cpu") for other in ("memcpy", "torch.save", "torch.save + fsync")]
    ratios = {f"{what} of hvdkit background, x {other}": ratio(what, samples, other) for what, other in pairs}
    pieces = parts(arguments.rounds, state, state_bytes)

    print(f"{state_bytes:,} bytes, {arguments.rounds} rounds; milliseconds: median (smallest … largest)")
    for name, figure in figures.items():
        show({f"{name}, {what}": values for what, values in figure.items()}, 1000)
    print("\nprocessor's milliseconds of the parts")
    show(pieces, 1000)
    print("\nratios within a round")
    show(ratios, 1)
    if arguments.output:
        result = {"version": 1, "benchmark": "checkpoint_stall", "machine": facts, "rounds": arguments.rounds}
        result |= {"state_bytes": state_bytes, "seconds": figures, "ratios": ratios, "parts_cpu_seconds": pieces}
        arguments.output.write_text(json.dumps(result | {"samples": samples}, indent=1) + "\n")


if __name__ == "__main__":
    main()
