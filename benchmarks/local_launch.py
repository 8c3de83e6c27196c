"""hvdkit's local launch against the alternatives, interleaved in one run.

    python benchmarks/local_launch.py --rounds 7 --output benchmarks/results/local-launch.json

Each round runs every side once, in a new random order; ratios are taken within a round, so that a slow minute
hits both sides of a ratio. Reported: median of the rounds' ratios, and the smallest and largest.
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
from pathlib import Path

from machine_facts import machine_facts

HERE = Path(__file__).resolve().parent
PYTHON = sys.executable
BIN = Path(PYTHON).parent


def sides(ranks: int) -> dict[str, tuple[list[str], str]]:
    """Name → (launcher's words, how the script reduces)."""
    count = str(ranks)
    hvdkit = [PYTHON, "-m", "hvdkit", "launch", "--backend", "local", "--workers", count, "--threads", "1"]
    return {
        "limit": ([], "none"),
        "hvdkit": ([*hvdkit, "--"], "horovod"),
        "hvdkit-gloo": ([*hvdkit, "--controller", "gloo", "--"], "horovod"),
        "horovodrun-mpi": ([str(BIN / "horovodrun"), "--mpi", "-np", count], "horovod"),
        "horovodrun-gloo": ([str(BIN / "horovodrun"), "--gloo", "-np", count], "horovod"),
        "torchrun": ([str(BIN / "torchrun"), "--nproc-per-node", count], "ddp"),
    }


RATIOS = {  # name: (ours, other, goal)
    "of the limit": ("hvdkit", "limit", 0.95),
    "x stock horovodrun --mpi": ("hvdkit", "horovodrun-mpi", 1.6),
    "x stock horovodrun --gloo": ("hvdkit", "horovodrun-gloo", 1.5),
    "x torchrun DDP gloo": ("hvdkit", "torchrun", 1.15),
    "gloo: of the limit": ("hvdkit-gloo", "limit", None),
    "gloo: x stock horovodrun --gloo": ("hvdkit-gloo", "horovodrun-gloo", None),
}


def run_side(launcher: list[str], reduce: str, ranks: int, steps: int) -> dict:
    """One run of one side: images/s of all ranks together, and the seconds from command to first step."""
    path = f"{BIN}:{os.environ['PATH']}"
    env = os.environ | {"OMP_NUM_THREADS": "1", "BENCHMARK_STARTED": str(time.time()), "PATH": path}
    with tempfile.TemporaryDirectory() as meet:
        script = [str(HERE / "resnet_ranks.py"), "--reduce", reduce, "--meet", meet, "--steps", str(steps)]
        if launcher:
            # torchrun takes the script itself; the others a command.
            python = [] if Path(launcher[0]).name == "torchrun" else [PYTHON]
            commands = [([*launcher, *python, *script], {})]
        else:
            own = [{"RANK": str(rank), "WORLD_SIZE": str(ranks)} for rank in range(ranks)]
            commands = [([PYTHON, *script], variables) for variables in own]
        processes = [
            subprocess.Popen(command, env=env | variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            for command, variables in commands
        ]
        output = "".join(process.communicate(timeout=900)[0] for process in processes)
        found = [json.loads(file.read_text()) for file in sorted(Path(meet).glob("result-*.json"))]
    if len(found) != ranks:
        raise SystemExit(f"{launcher or 'independent processes'} gave {len(found)} results of {ranks}:\n{output}")
    return {
        "images_per_second": sum(result["images_per_second"] for result in found),
        "cpu_seconds_per_image": statistics.mean(result["cpu_seconds_per_image"] for result in found),
        "first_step_seconds": max(result["first_step_seconds"] for result in found),
        "ranks": found,
    }


def compare(ranks: int, rounds: int, steps: int) -> dict:
    """All sides, interleaved."""
    samples: dict[str, list[dict]] = {name: [] for name in sides(ranks)}
    for number in range(rounds):
        order = list(sides(ranks).items())
        random.shuffle(order)
        for name, (launcher, reduce) in order:
            samples[name].append(run_side(launcher, reduce, ranks, steps))
            speed = samples[name][-1]["images_per_second"]
            print(f"round {number + 1} of {rounds}, {ranks} ranks: {name:<16} {speed:6.1f} images/s", flush=True)

    def ratio(what: str, ours: str, other: str) -> list[float]:
        return [a[what] / b[what] for a, b in zip(samples[ours], samples[other], strict=True)]

    ratios = {
        label: summary(ratio("images_per_second", ours, other), goal) for label, (ours, other, goal) in RATIOS.items()
    }
    ratios["time to first step, x torchrun"] = summary(ratio("first_step_seconds", "hvdkit", "torchrun"))
    speeds = {name: summary([sample["images_per_second"] for sample in taken]) for name, taken in samples.items()}
    return {"ranks": ranks, "rounds": rounds, "images_per_second": speeds, "ratios": ratios, "samples": samples}


def help_time(rounds: int) -> dict:
    """`hvdkit --help` against a bare Python start, one after the other."""

    def seconds(command: list[str]) -> float:
        begin = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - begin

    pairs = [(seconds([str(BIN / "hvdkit"), "--help"]), seconds([PYTHON, "-c", "pass"])) for _ in range(rounds)]
    return summary([ours / bare for ours, bare in pairs], 4.0)


def summary(values: list[float], goal: float | None = None) -> dict:
    result = {"median": statistics.median(values), "smallest": min(values), "largest": max(values)}
    return result | ({"goal": goal} if goal is not None else {})


def show(title: str, numbers: dict[str, dict]) -> None:
    print(f"\n{title}")
    for name, value in numbers.items():
        goal = f"   goal {value['goal']}" if "goal" in value else ""
        print(f"  {name:<34} {value['median']:7.3f}   ({value['smallest']:.3f} … {value['largest']:.3f}){goal}")


def kept(output: Path | None, ranks: list[int]) -> list[dict]:
    """Comparisons of other numbers of ranks that the file has: each takes long enough for a sitting of its own."""
    if output is None or not output.exists():
        return []
    return [found for found in json.loads(output.read_text())["comparisons"] if found["ranks"] not in ranks]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    facts = machine_facts()
    result = {"version": 2, "benchmark": "local_launch", "comparisons": kept(arguments.output, arguments.ranks)}
    for ranks in arguments.ranks:
        comparison = compare(ranks, arguments.rounds, arguments.steps)
        show(f"{ranks} ranks, images/s", comparison["images_per_second"])
        show(f"{ranks} ranks, ratios", comparison["ratios"])
        result["comparisons"].append({"machine": facts, **comparison})
    result["help"] = help_time(21)
    show("start of the command line", {"hvdkit --help, x python -c pass": result["help"]})
    if arguments.output:
        arguments.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
