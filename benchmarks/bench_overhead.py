"""What measuring costs: result lines on against off, live metrics on against off; and how long a report takes.

    python benchmarks/bench_overhead.py --rounds 20 --output benchmarks/results/bench-overhead.json

ResNet-18, 64 x 64, batch 16 a rank, 2 ranks with one thread each. Both sides of a comparison train in the same
processes and take turns of a few steps, in two worlds that set them up in either order (train_overhead_ranks.py says
why). The figure is CPU-seconds an image; ratios are taken within a round, and rounds in which others kept the cores
busy are recorded, but not counted. The report is made of 125 to 1,000 runs that are made up here; its time should grow
with them and no faster.
"""

import argparse
import contextlib
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from machine_facts import machine_facts
from train_overhead import (
    KEEP_MEMORY,
    LAUNCH,
    MOST_DISTURBED,
    RANKS,
    Sample,
    add_up,
    cpu_per_image,
    disturbance,
    interval,
    spread,
)
from train_overhead_ranks import SYNTHETIC, compare, steps_needed
from train_overhead_sides import hvdkit_train

PLAN = "loop"  # of train_overhead_ranks: turns of two steps
PARTS = {
    "result lines": {"result_lines": True},
    "live metrics": {"metrics_port": True},  # a free one is chosen
}
GOAL = 0.99
REPORT_RUNS = (125, 250, 500, 1000)


def measure(part: str, rounds: int) -> list[Sample]:
    """Rounds in two worlds, in which the sides were set up in either order, added up."""
    return list(map(add_up, *(measure_world(part, rounds, first) for first in ("off", "on"))))


def measure_world(part: str, rounds: int, first: str) -> list[Sample]:
    with tempfile.TemporaryDirectory(prefix="hvdkit-benchmark-") as folder:
        result = Path(folder) / "rounds.json"
        words = ["--ranks", part, "--rounds", str(rounds), "--seed", str(random.randrange(2**31))]
        words += ["--first", first, "--result", str(result), "--port", str(free_port())]
        done = subprocess.run([*KEEP_MEMORY, *LAUNCH, sys.executable, __file__, *words], capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"the ranks failed:\n{done.stdout}{done.stderr}")
        ranks = json.loads(result.read_text())
    return [{side: [own[side] for own in both] for side in both[0]} for both in zip(*ranks, strict=True)]


def run_rank(part: str, rounds: int, seed: int, first: str, port: int, result: Path) -> None:
    """On each rank: both trainings, by turns."""
    from hvdkit.runtime.session import session

    steps = steps_needed(PLAN, rounds)
    on: dict[str, Any] = {"metrics_port": port} if part == "live metrics" else PARTS[part]
    with session("horovod") as engine:
        sides = {"off": hvdkit_train(engine, steps, **SYNTHETIC), "on": hvdkit_train(engine, steps, **SYNTHETIC, **on)}
        trainings = [sides[first], *(side for name, side in sides.items() if name != first)]
        ranks = engine.gather(compare(PLAN, engine, rounds, random.Random(seed), trainings, sides))
        if engine.rank == 0:
            result.write_text(json.dumps(ranks))


def free_port() -> int:
    """The first of RANKS ports in a row that nobody uses now, below those that the kernel gives to anybody."""
    while True:
        first = random.randrange(20_000, 30_000)
        with contextlib.suppress(OSError), contextlib.ExitStack() as probes:
            for port in range(first, first + RANKS):
                probes.enter_context(socket.create_server(("", port)))
            return first


def summarise(rounds: list[Sample]) -> dict[str, Any]:
    """Off over on, within rounds: 1 means that measuring is free."""
    counted = [sample for sample in rounds if disturbance(sample) <= MOST_DISTURBED]
    cost = {side: [cpu_per_image(sample[side]) for sample in counted] for side in ("off", "on")}
    ratios = [off / on for off, on in zip(cost["off"], cost["on"], strict=True)]
    summary: dict[str, Any] = {"rounds": len(rounds), "counted": len(counted), "goal": GOAL}
    if ratios:
        summary |= {"cpu_seconds_an_image": {side: spread(values) for side, values in cost.items()}}
        summary |= {"off_over_on": spread(ratios) | {"interval": interval(ratios)}}
    return summary


def time_reports() -> list[dict[str, float]]:
    """Seconds to load a results.json of so many runs and to make its page and plots."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "unit"))
    from bench_samples import World, make_results

    from hvdkit.bench import result_file
    from hvdkit.bench.report import write_report

    taken = []
    for runs in REPORT_RUNS:
        with tempfile.TemporaryDirectory(prefix="hvdkit-benchmark-") as folder:
            worlds = {("horovod", workers): World() for workers in (1, 2, 4, 8)}
            results = make_results(worlds, repeats=-(-runs // 4), steps=100)
            results.runs = results.runs[:runs]
            result_file.save(results, Path(folder) / "results.json")
            size = (Path(folder) / "results.json").stat().st_size
            begin = time.perf_counter()
            write_report([result_file.load(Path(folder) / "results.json")], Path(folder))
            taken.append({"runs": runs, "bytes": size, "seconds": time.perf_counter() - begin})
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--parts", nargs="+", choices=[*PARTS, "report"], default=[*PARTS, "report"])
    for flag in ("--ranks", "--seed", "--first", "--port", "--result"):  # how this program calls itself on each rank
        parser.add_argument(flag, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.ranks:
        seed, port, result = int(arguments.seed), int(arguments.port), Path(arguments.result)
        run_rank(arguments.ranks, arguments.rounds, seed, arguments.first, port, result)
        return
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    record: dict[str, Any] = {"version": 1, "benchmark": "bench_overhead", "machine": machine_facts(), "parts": {}}
    for part in arguments.parts:
        if part == "report":
            record["report"] = time_reports()
            for taken in record["report"]:
                print(f"report of {taken['runs']:,} runs ({taken['bytes'] / 2**20:.1f} MiB): {taken['seconds']:.2f} s")
            continue
        rounds = measure(part, arguments.rounds)
        summary = summarise(rounds)
        record["parts"][part] = {"summary": summary, "samples": rounds}
        print(f"{part}: {json.dumps(summary)}")
    if arguments.output:
        arguments.output.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
