"""What `hvdkit train` costs beside the plainest hand-written loop, what checkpoints cost it, and files beside memory.

    python benchmarks/train_overhead.py --rounds 16 --output benchmarks/results/train-overhead.json

ResNet-18, batch 16 a rank, 2 ranks with one thread each. Both sides of a comparison train in the same processes and
take turns of a few steps (train_overhead_ranks.py says why); ratios are taken within a round, over all rounds and over
those alone in which nobody else kept the cores busy. A round is two new worlds, in which the sides were set up in
either order; the part "same" compares hvdkit with itself and so shows what the method is off by. Memory is measured in
processes of their own. Rounds are added to those that the output file already has, so that a long measurement can be
made in several sittings; --parts chooses what to measure.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from machine_facts import machine_facts
from PIL import Image
from train_overhead_ranks import CHECKPOINT_EVERY, PLANS, steps_needed
from train_overhead_sides import BATCH, images_needed

HERE = Path(__file__).resolve().parent
PYTHON = sys.executable
RANKS = 2
LAUNCH = [PYTHON, "-m", "hvdkit", "launch", "--backend", "local", "--workers", str(RANKS), "--threads", "1", "--"]
# For trainings that share a process: glibc hands memory back to the kernel and asks for it again, in one training in
# every step and in another, of the same kind, never, as luck has it (up to 9,500 page faults a step against none).
KEEP_MEMORY = ["env", "MALLOC_ARENA_MAX=1", "MALLOC_MMAP_THRESHOLD_=33554432", "MALLOC_TRIM_THRESHOLD_=4294967296"]
MEMORY_STEPS, MEMORY_IMAGES = 45, 2000
MEMORY_ROUNDS = 5  # at most: it varies little
EVERY = f"every {CHECKPOINT_EVERY} steps"
TEST_IMAGES = 200  # of the image folder
MOST_DISTURBED = 0.05  # share of the cores' time that others may take in a round that counts

VERSION = 2  # 1 had both sides always set up in the same order, and an allocator that gave memory back

Sample = dict[str, list[dict[str, float]]]
"""A round: side → what each rank measured."""


def measure_turns(part: str, rounds: int, folder: Path) -> Iterator[Sample]:
    """Rounds of a comparison, each in worlds of its own; one training with a switch needs only one world."""
    words = []
    if part == "folder":
        data = folder / "images"
        draw_images(data / "train", images_needed(steps_needed(part, 1), RANKS))
        draw_images(data / "val", TEST_IMAGES)
        words = ["--data", str(data)]
    if part == "checkpoints":
        yield from measure_world(part, rounds, folder / "world", words)
        return
    for number in range(rounds):
        orders = [[], ["--last-first"]]
        random.shuffle(orders)
        worlds = [measure_world(part, 1, folder / f"{number}{i}", words + order) for i, order in enumerate(orders)]
        yield from map(add_up, *worlds)


def measure_world(part: str, rounds: int, folder: Path, words: list[str]) -> list[Sample]:
    """Some rounds in one world."""
    folder.mkdir()
    result = folder / "rounds.json"
    words = ["--part", part, "--rounds", str(rounds), "--seed", str(random.randrange(2**31)), *words]
    words += ["--folder", str(folder), "--result", str(result)]
    run([*KEEP_MEMORY, *LAUNCH, PYTHON, str(HERE / "train_overhead_ranks.py"), *words])
    ranks = json.loads(result.read_text())
    return [{side: [own[side] for own in both] for side in both[0]} for both in zip(*ranks, strict=True)]


def add_up(one: Sample, other: Sample) -> Sample:
    """The sums of two worlds, rank by rank."""
    return {
        side: [{name: a[name] + b[name] for name in a} for a, b in zip(ranks, other[side], strict=True)]
        for side, ranks in one.items()
    }


def run(command: list[str]) -> None:
    """A command that must succeed; its output only matters when it does not."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}")


def draw_images(folder: Path, count: int) -> None:
    """Colour images of 32 x 32, as PNG in ten folders: soft shapes and some noise, as large as photographs are."""
    generator = np.random.default_rng(1)
    for number in range(count):
        soft = Image.fromarray(generator.integers(0, 256, (5, 5, 3), dtype=np.uint8))
        pixels = np.asarray(soft.resize((32, 32), Image.Resampling.BICUBIC)) + generator.normal(0, 6, (32, 32, 3))
        path = folder / f"class-{number % 10}" / f"{number:05d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path)


def measure(part: str, rounds: int, folder: Path) -> Iterator[Sample]:
    if part == "memory":
        return measure_memory(min(rounds, MEMORY_ROUNDS), folder)
    return measure_turns(part, rounds, folder)


def measure_memory(rounds: int, folder: Path) -> Iterator[Sample]:
    """Peak memory of rank 0, in new processes: the hand-written script, and the command as a user gives it."""
    steps = str(MEMORY_STEPS)
    train = f"--model resnet18 --data synthetic --image-size 64 --batch-size {BATCH} --lr 0.01 --lr-scaling none"
    words = [*train.split(), "--synthetic-images", str(MEMORY_IMAGES), "--max-steps", steps]
    ranks = [PYTHON, str(HERE / "train_overhead_ranks.py"), "--part", "memory"]
    sides: dict[str, Callable[[Path], list[str]]] = {
        "hand-written": lambda own: [PYTHON, str(HERE / "handwritten_loop.py"), "--steps", steps],
        "hvdkit": lambda own: [*ranks, "--", *words],
        "hvdkit, checkpoints": lambda own: [
            *ranks, "--", *words, "--output", str(own), "--checkpoint-every", str(CHECKPOINT_EVERY)
        ],
    }  # fmt: skip
    for number in range(rounds):
        order = list(sides)
        random.shuffle(order)
        sample = {}
        for name in order:
            own = folder / f"{number}-{order.index(name)}"
            own.mkdir()
            command = sides[name](own)
            run([*LAUNCH, *command[:2], "--result", str(own / "result.json"), *command[2:]])
            sample[name] = [json.loads((own / "result.json").read_text())]
        yield sample


def cpu_per_image(ranks: list[dict[str, float]]) -> float:
    return sum(rank["cpu_seconds"] for rank in ranks) / images(ranks)


def images_per_second(ranks: list[dict[str, float]]) -> float:
    return images(ranks) / max(rank["seconds"] for rank in ranks)


def images(ranks: list[dict[str, float]]) -> float:
    return sum(rank["steps"] for rank in ranks) * BATCH


def page_faults(ranks: list[dict[str, float]]) -> float:
    return sum(rank["page_faults"] for rank in ranks) / sum(rank["steps"] for rank in ranks)


def peak_mebibytes(ranks: list[dict[str, float]]) -> float:
    return ranks[0]["peak_bytes"] / 2**20


def disturbance(sample: Sample) -> float:
    """The share of the cores' time that went to others in a round, in the turns of the side that had it worse."""
    cores = len(os.sched_getaffinity(0))
    shares = [0.0]
    for ranks in sample.values():
        if "busy_seconds" in ranks[0]:
            others = ranks[0]["busy_seconds"] - sum(rank["cpu_seconds"] for rank in ranks)
            shares.append(others / (cores * ranks[0]["seconds"]))
    return max(shares)


CPU, SPEED, FAULTS, PEAK = "CPU-seconds an image", "images/s", "page faults a step", "peak MiB of rank 0"
FIGURES = {CPU: cpu_per_image, SPEED: images_per_second, FAULTS: page_faults, PEAK: peak_mebibytes}
# Part → figure → [(numerator, denominator, goal)]
RATIOS: dict[str, dict[str, list[tuple[str, str, str | None]]]] = {
    "same": {
        CPU: [("hvdkit", "hvdkit again", None)],
        SPEED: [("hvdkit again", "hvdkit", None)],
        FAULTS: [],
    },
    "loop": {
        CPU: [("hand-written", "hvdkit", ">= 0.99")],
        SPEED: [("hvdkit", "hand-written", ">= 0.99")],
        FAULTS: [],
    },
    "checkpoints": {
        CPU: [(EVERY, "none", "<= 1.02")],
        SPEED: [("none", EVERY, "<= 1.02")],
        FAULTS: [],
    },
    "folder": {
        CPU: [("synthetic", "image folder", None)],
        SPEED: [("image folder", "synthetic", ">= 0.95")],
        FAULTS: [],
    },
    "memory": {
        PEAK: [("hvdkit", "hand-written", "<= 1.05"), ("hvdkit, checkpoints", "hand-written", None)],
    },
}


def summarise(part: str, samples: list[Sample]) -> dict[str, Any]:
    """Medians of each side, and of the ratios within a round with an interval."""
    summary: dict[str, Any] = {"rounds": len(samples), "figures": {}}
    if not samples:
        return summary
    for figure, wanted in RATIOS[part].items():
        values = {side: [FIGURES[figure](sample[side]) for sample in samples] for side in sorted(samples[0])}
        ratios = {}
        for above, below, goal in wanted:
            pairs = [a / b for a, b in zip(values[above], values[below], strict=True)]
            ratios[f"{above} / {below}"] = spread(pairs) | {"interval": interval(pairs), "goal": goal}
        summary["figures"][figure] = {
            "sides": {side: spread(taken) for side, taken in values.items()},
            "ratios": ratios,
        }
    return summary


def spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "smallest": min(values), "largest": max(values)}


def interval(values: list[float]) -> list[float]:
    """Where the median of 95 of 100 such measurements would lie: percentiles of the medians of resamples."""
    generator = random.Random(1)
    medians = sorted(statistics.median(generator.choices(values, k=len(values))) for _ in range(10_000))
    return [medians[250], medians[9749]]


def show(title: str, summary: dict[str, Any]) -> None:
    print(f"\n{title}; median (smallest … largest)")
    for figure, found in summary["figures"].items():
        for side, value in found["sides"].items():
            print(f"  {figure + ', ' + side:<48} {text(value)}")
        for label, value in found["ratios"].items():
            low, high = value["interval"]
            goal = f", goal {value['goal']}" if value["goal"] else ""
            print(f"  {figure + ': ' + label:<48} {text(value)}, 95 % interval {low:.4f} … {high:.4f}{goal}")


def text(value: dict[str, float]) -> str:
    return f"{value['median']:9.4f} ({value['smallest']:.4f} … {value['largest']:.4f})"


def file_system(folder: Path) -> str:
    """The kind of file system that the trainings write to."""
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    inside = [(len(point), kind) for point, kind in mounts if folder.resolve().is_relative_to(point)]
    return max(inside)[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--parts", nargs="+", choices=list(RATIOS), default=list(RATIOS))
    parser.add_argument("--folder", type=Path, help="where to write; the default is the system's temporary folder")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    os.environ["PATH"] = f"{Path(PYTHON).parent}:{os.environ['PATH']}"
    result: dict[str, Any] = {"version": VERSION, "benchmark": "train_overhead", "machine": machine_facts()}
    result |= {"model": "resnet18", "ranks": RANKS, "batch_size": BATCH, "checkpoint_every": CHECKPOINT_EVERY}
    result |= {"plans": {name: asdict(plan) for name, plan in PLANS.items()}, "parts": {}}
    if arguments.output and arguments.output.exists():
        before = json.loads(arguments.output.read_text())
        if before["version"] != VERSION:
            parser.error(f"--output: {arguments.output} was measured in another way; name another file.")
        result["parts"] = before["parts"]
    for name in arguments.parts:
        part = result["parts"].setdefault(name, {"summary": {}, "undisturbed": {}, "sittings": [], "samples": []})
        began = time.strftime("%Y-%m-%d %H:%M", time.gmtime())
        sitting = {"began": began, "load_before": os.getloadavg()[0], "rounds": 0}
        part["sittings"].append(sitting)
        with tempfile.TemporaryDirectory(prefix="hvdkit-benchmark-", dir=arguments.folder) as folder:
            result["file_system"] = file_system(Path(folder))
            for sample in measure(name, arguments.rounds, Path(folder)):
                sitting["rounds"] += 1
                part["samples"].append(sample)
                undisturbed = [sample for sample in part["samples"] if disturbance(sample) <= MOST_DISTURBED]
                part["summary"], part["undisturbed"] = summarise(name, part["samples"]), summarise(name, undisturbed)
                if arguments.output:  # after each round, so that a sitting can be cut short
                    arguments.output.write_text(json.dumps(result, indent=1) + "\n")
        show(f"{name}, all {len(part['samples'])} rounds", part["summary"])
        show(f"{name}, {len(undisturbed)} of them undisturbed", part["undisturbed"])


if __name__ == "__main__":
    main()
