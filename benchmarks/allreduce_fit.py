"""Does a model fitted to allreduces of 2 and 3 ranks predict those of 4, and a training step of 4? Does Horovod agree
with mpi4py?

    python benchmarks/allreduce_fit.py --rounds 5 --output benchmarks/results/allreduce-fit.json

Each round measures all sizes at 2, 3 and 4 ranks in one run of `hvdkit bench allreduce`, fits to 2 and 3, and takes the
geometric mean over sizes of predicted / measured at 4. Horovod over MPI and plain mpi4py run in the same processes; for
8 MiB their times should be alike, since both call MPI_Allreduce.

Then ResNet-50 (64 x 64, batch 16 a rank, one thread a rank) on 4 ranks, and as 4 independent processes. On a processor
nothing can hide an allreduce, which takes the cores that would compute meanwhile; hvdkit's launch fuses nothing on one
machine, so a step has one MPI_Allreduce a gradient. The step is predicted as that of an independent process and, one
after the other, what the fit to mpi4py's 2 and 3 ranks says of each gradient at 4.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from machine_facts import machine_facts

from hvdkit.bench import allreduce
from hvdkit.bench.points import IDEAL, Point, SweepSettings
from hvdkit.bench.project_fit import Fit, fit
from hvdkit.bench.runners import LocalRunner
from hvdkit.bench.sweep import run_once

LIBRARIES = ("mpi4py", "horovod-mpi")
LARGE = 8 << 20
MODEL = "resnet50"
TRAINING = SweepSettings(
    workers=(1, 4), model=MODEL, batch_size=16, steps=12, warmup_steps=4, train_args=("--image-size", "64")
)


def one_round(folder: Path, number: int) -> dict[str, float]:
    """The ratios of one measurement."""
    file = folder / f"{number}.json"
    words = ["bench", "allreduce", "--workers", "2,3,4", "--controllers", "mpi", "--sizes", "1K,64K,1M,8M", "--json"]
    words += ["--output", str(file)]
    done = subprocess.run([sys.executable, "-m", "hvdkit", *words], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"hvdkit {' '.join(words)} failed:\n{done.stderr}")
    measured = allreduce.load(file)
    found, fits = {}, {}
    for library in LIBRARIES:
        made = fits[library] = fit([row for row in measured.rows if row.ranks < 4], library, measured.cores)
        fours = [row for row in measured.rows if (row.library, row.ranks) == (library, 4)]
        found[f"{library}: predicted / measured at 4 ranks"] = statistics.geometric_mean(
            made.predict(row.bytes, 4) / row.seconds for row in fours
        )
    seconds = {(row.library, row.ranks): row.seconds for row in measured.rows if row.bytes == LARGE}
    found["horovod-mpi / mpi4py, 8 MiB, 2 ranks"] = seconds["horovod-mpi", 2] / seconds["mpi4py", 2]
    return found | compare_steps(fits["mpi4py"], folder, number)


def compare_steps(made: Fit, folder: Path, number: int) -> dict[str, float]:
    """A step of 4 ranks against that of 4 independent processes, measured and predicted."""
    steps = {engine: step_seconds(engine, folder, number) for engine in ("horovod", IDEAL)}
    measured = steps["horovod"] / steps[IDEAL]
    predicted = 1 + sum(made.predict(size, 4) for size in gradient_bytes()) / steps[IDEAL]
    return {
        "step of 4 ranks / of 4 independent processes, measured": measured,
        "step of 4 ranks / of 4 independent processes, predicted": predicted,
        "step of 4 ranks: predicted / measured": predicted / measured,
    }


def step_seconds(engine: str, folder: Path, number: int) -> float:
    point = Point(data="synthetic", engine=engine, workers=4)
    run = run_once(TRAINING, point, number, LocalRunner(), folder / "logs", timeout=600)
    if run.problem:
        raise SystemExit(f"{point}: {run.problem}")
    return run.figures.step_seconds


def gradient_bytes() -> list[int]:
    import torch

    from hvdkit.train import models

    with torch.device("meta"):
        model = models.create(MODEL, classes=10, channels=1, image_size=64)
    return [4 * parameter.numel() for parameter in model.parameters()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    facts, rounds = machine_facts(), []
    with tempfile.TemporaryDirectory(prefix="hvdkit-benchmark-") as folder:
        for number in range(arguments.rounds):
            rounds.append(one_round(Path(folder), number))
            print(f"round {number + 1} of {arguments.rounds}: {json.dumps(rounds[-1])}", file=sys.stderr, flush=True)
            if arguments.output:
                result = {"version": 2, "benchmark": "allreduce_fit", "machine": facts, "rounds": rounds}
                arguments.output.write_text(json.dumps(result, indent=1) + "\n")
    for name in rounds[0]:
        values = [each[name] for each in rounds]
        print(f"{name}: {statistics.median(values):.2f} ({min(values):.2f} … {max(values):.2f})")


if __name__ == "__main__":
    main()
