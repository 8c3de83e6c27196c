"""What `hvdkit train` costs beside the plainest hand-written loop, what checkpoints cost it, and files beside memory.

    python benchmarks/train_overhead.py --rounds 30 --output benchmarks/results/train-overhead.json

ResNet-18, batch 16 a rank, 2 ranks with one thread each. Both sides of a comparison train in the same processes and
take turns of a few steps (train_overhead_ranks.py says why); ratios are taken within a round, over all rounds and over
those alone in which nobody else kept the cores busy. Memory is measured in processes of their own. Rounds
are added to those that the output file already has, so that a long measurement can be made in several sittings;
--parts chooses what to measure.
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
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from machine_facts import machine_facts
from PIL import Image
from train_overhead_ranks import BATCH, CHECKPOINT_EVERY, PLANS, images_needed, steps_needed

HERE = Path(__file__).resolve().parent
PYTHON = sys.executable
RANKS = 2
LAUNCH = [PYTHON, "-m", "hvdkit", "launch", "--backend", "local", "--workers", str(RANKS), "--threads", "1", "--"]
MEMORY_STEPS, MEMORY_IMAGES = 45, 2000
EVERY = f"every {CHECKPOINT_EVERY} steps"
TEST_IMAGES = 200  # of the image folder
MOST_DISTURBED = 0.05  # share of the cores' time that others may take in a round that counts

Sample = dict[str, list[dict[str, float]]]
"""A round: side → what each rank measured."""


def measure_turns(part: str, rounds: int, folder: Path) -> list[Sample]:
    """Some rounds of a comparison, in one world."""
    result = folder / "rounds.json"
    words = ["--part", part, "--rounds", str(rounds), "--seed", str(random.randrange(2**31))]
    words += ["--folder", str(folder), "--result", str(result)]
    if part == "folder":
        data = folder / "images"
        draw_images(data / "train", images_needed(steps_needed(part, rounds), RANKS))
        draw_images(data / "val", TEST_IMAGES)
        words += ["--data", str(data)]
    run([*LAUNCH, PYTHON, str(HERE / "train_overhead_ranks.py"), *words])
    ranks = json.loads(result.read_text())
    return [{side: [own[side] for own in both] for side in both[0]} for both in zip(*ranks, strict=True)]


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


def measure(part: str, rounds: int, folder: Path) -> list[Sample]:
    return measure_memory(rounds, folder) if part == "memory" else measure_turns(part, rounds, folder)


def measure_memory(rounds: int, folder: Path) -> list[Sample]:
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
    samples = []
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
        samples.append(sample)
    return samples


def cpu_per_image(part: str, ranks: list[dict[str, float]]) -> float:
    return sum(rank["cpu_seconds"] for rank in ranks) / (PLANS[part].steps * BATCH * RANKS)


def images_per_second(part: str, ranks: list[dict[str, float]]) -> float:
    return PLANS[part].steps * BATCH * RANKS / max(rank["seconds"] for rank in ranks)


def peak_mebibytes(part: str, ranks: list[dict[str, float]]) -> float:
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


CPU, SPEED, PEAK = "CPU-seconds an image", "images/s", "peak MiB of rank 0"
FIGURES = {CPU: cpu_per_image, SPEED: images_per_second, PEAK: peak_mebibytes}
# Part → figure → [(numerator, denominator, goal)]
RATIOS: dict[str, dict[str, list[tuple[str, str, str | None]]]] = {
    "loop": {
        CPU: [("hand-written", "hvdkit", ">= 0.99")],
        SPEED: [("hvdkit", "hand-written", ">= 0.99")],
    },
    "checkpoints": {
        CPU: [(EVERY, "none", "<= 1.02")],
        SPEED: [("none", EVERY, "<= 1.02")],
    },
    "folder": {
        CPU: [("synthetic", "image folder", None)],
        SPEED: [("image folder", "synthetic", ">= 0.95")],
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
        values = {side: [FIGURES[figure](part, sample[side]) for sample in samples] for side in sorted(samples[0])}
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
    result: dict[str, Any] = {"version": 1, "benchmark": "train_overhead", "machine": machine_facts()}
    result |= {"model": "resnet18", "ranks": RANKS, "batch_size": BATCH, "checkpoint_every": CHECKPOINT_EVERY}
    result |= {"plans": {name: asdict(plan) for name, plan in PLANS.items()}, "parts": {}}
    if arguments.output and arguments.output.exists():
        result["parts"] = json.loads(arguments.output.read_text())["parts"]
    for name in arguments.parts:
        with tempfile.TemporaryDirectory(prefix="hvdkit-benchmark-", dir=arguments.folder) as folder:
            result["file_system"] = file_system(Path(folder))
            sitting = {"began": time.strftime("%Y-%m-%d %H:%M", time.gmtime()), "load_before": os.getloadavg()[0]}
            taken = measure(name, arguments.rounds, Path(folder))
        part = result["parts"].setdefault(name, {"summary": {}, "sittings": [], "samples": []})
        part["sittings"].append(sitting | {"rounds": len(taken)})
        part["samples"] += taken
        part["summary"] = summarise(name, part["samples"])
        undisturbed = [sample for sample in part["samples"] if disturbance(sample) <= MOST_DISTURBED]
        part["undisturbed"] = summarise(name, undisturbed)
        show(f"{name}, all {len(part['samples'])} rounds", part["summary"])
        show(f"{name}, {len(undisturbed)} of them undisturbed", part["undisturbed"])
        if arguments.output:
            arguments.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
