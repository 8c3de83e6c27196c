"""What each rank of benchmarks/train_overhead.py runs: two trainings side by side in one process, taking turns.

A shared machine is up to a fifth faster in one half minute than in the next, so two runs one after the other cannot
show a difference of 1 %. Here both trainings are alive at once, each in a thread of its own, and only one of them
moves: for a few steps, then the other for as many, and each goes first equally often. Each side is whole:
`hvdkit.train.loop.run` with its reports, agreements and saves, or the hand-written loop. The clocks run from the moment
that a side may go on until it has done the steps of its turn; set-up, warm-up, evaluation and the last save are
outside.

Two trainings of the very same kind are not equally fast in one process: it depends on where the allocator has put
their memory and how often it asks the kernel for pages. So train_overhead.py makes it keep its memory, each pair of
sides is measured in two worlds, set up in either order, and what can be switched while a training runs (checkpoints)
is compared within one training. A training that waits for the other's turn takes that time for its own and so agrees
with the other ranks, and reports, about twice as often as it would alone: that counts against hvdkit.
"""

import argparse
import json
import multiprocessing
import os
import random
import resource
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from train_overhead_sides import Side, Switched, handwritten, hvdkit_train

from hvdkit.runtime.engine import Engine
from hvdkit.runtime.session import session

CHECKPOINT_EVERY = 20


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How a comparison is cut into turns."""

    turn: int
    """Steps that a side takes before the other one does."""

    turns: int
    """Turns of each side in a round, over which it is measured; even, so that each side begins half of them."""

    warm_up: int

    @property
    def steps(self) -> int:
        """Of each side in a round."""
        return self.turn * self.turns


PLANS = {
    "same": Plan(turn=2, turns=6, warm_up=6),
    "loop": Plan(turn=2, turns=6, warm_up=6),
    # A turn begins two steps before a save, so that it is written by the end; the first save, which allocates, is
    # warm-up.
    "checkpoints": Plan(turn=CHECKPOINT_EVERY, turns=2, warm_up=2 * CHECKPOINT_EVERY - 2),
    "folder": Plan(turn=10, turns=2, warm_up=10),
}
SYNTHETIC = {"data": "synthetic", "image_size": 64}


def steps_needed(part: str, rounds: int) -> int:
    """Steps of each training; the last one comes after the last turn."""
    trainings = 1 if part == "checkpoints" else 2
    return PLANS[part].warm_up + rounds * PLANS[part].steps * 2 // trainings + 1


def create_sides(
    part: str, engine: Engine, rounds: int, folder: Path, data: Path | None
) -> tuple[list[Side], dict[str, Side | Switched]]:
    """The trainings, and the sides of the comparison; the first side is what the other is compared with."""
    steps = steps_needed(part, rounds)

    def training(name: str, **settings: Any) -> Side:
        return hvdkit_train(engine, steps, output=folder / name, **settings)

    if part == "checkpoints":
        only = training("a", checkpoint_every=CHECKPOINT_EVERY, **SYNTHETIC)
        choices = {"none": None, f"every {CHECKPOINT_EVERY} steps": CHECKPOINT_EVERY}
        return [only], {name: Switched(only, "checkpoint_every", every) for name, every in choices.items()}
    if part == "same":
        sides = {"hvdkit": training("a", **SYNTHETIC), "hvdkit again": training("b", **SYNTHETIC)}
    elif part == "loop":
        sides = {"hand-written": handwritten(steps), "hvdkit": training("a", **SYNTHETIC)}
    else:
        sides = {
            "synthetic": training("a", data="synthetic", image_size=32),
            "image folder": training("b", data="imagefolder", data_dir=data, image_size=32),
        }
    return list(sides.values()), sides


def compare(
    part: str,
    engine: Engine,
    rounds: int,
    order: random.Random,
    trainings: list[Side],
    sides: Mapping[str, Side | Switched],
) -> list[dict]:
    """Set the trainings up, one after the other; then rounds of turns: side → what this rank measured."""
    for training in trainings:
        training.start(PLANS[part].warm_up)
    taken = [take_round(part, engine, order, sides) for _ in range(rounds)]
    for training in trainings:
        training.finish()
    return taken


def take_round(part: str, engine: Engine, order: random.Random, sides: Mapping[str, Side | Switched]) -> dict:
    plan = PLANS[part]
    figures = ("steps", "seconds", "cpu_seconds", "busy_seconds", "page_faults", "late_writes")
    sums: dict[str, dict[str, float]] = {name: dict.fromkeys(figures, 0) for name in sides}
    workers_before = worker_seconds()
    pairs = [list(sides), list(reversed(sides))] * (plan.turns // 2)
    order.shuffle(pairs)
    for name in (name for pair in pairs for name in pair):
        engine.barrier()  # so that no rank pays for the others' last turn
        busy, faults = busy_seconds(), page_faults()
        seconds, cpu = sides[name].advance(plan.turn)
        sums[name]["steps"] += plan.turn
        sums[name]["seconds"] += seconds
        sums[name]["cpu_seconds"] += cpu
        sums[name]["busy_seconds"] += busy_seconds() - busy
        sums[name]["page_faults"] += page_faults() - faults
        sums[name]["late_writes"] += wait_for_writer()
    if part == "folder":  # the only side with workers, which read ahead also while the other side has its turn
        sums["image folder"]["cpu_seconds"] += worker_seconds() - workers_before
    return sums


def page_faults() -> int:
    """Pages that the kernel had to give this process, for memory that its allocator had handed back before."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def busy_seconds() -> float:
    """What all cores have worked, for whomever, and what the hypervisor took from them."""
    user, nice, system, _idle, _wait, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def worker_seconds() -> float:
    """User and system time of the loader workers that run."""
    ticks = 0
    for child in multiprocessing.active_children():
        fields = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def wait_for_writer() -> bool:
    """Whether a checkpoint was still being written at the end of a turn: part of its cost would be missing."""
    writers = [thread for thread in threading.enumerate() if thread.name == "hvdkit-checkpoint"]
    for writer in writers:
        writer.join()
    return bool(writers)


def remember_peak(result: Path, words: list[str]) -> None:
    """`hvdkit train` as a user gives it, and the peak of rank 0's memory at its end."""
    from hvdkit.cli.train import command

    command(words, standalone_mode=False)
    from handwritten_loop import peak_bytes

    if os.environ["OMPI_COMM_WORLD_RANK"] == "0":
        result.write_text(json.dumps({"peak_bytes": peak_bytes()}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=[*PLANS, "memory"], required=True)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0, help="of the order of turns; the same on every rank")
    parser.add_argument("--last-first", action="store_true", help="set up the second side before the first one")
    parser.add_argument("--data", type=Path, help="folder of images")
    parser.add_argument("--folder", type=Path, help="what the trainings write into")
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("words", nargs="*", help="what hvdkit train is told, for --part memory")
    arguments = parser.parse_args()
    part, rounds = arguments.part, arguments.rounds
    if part == "memory":
        remember_peak(arguments.result, arguments.words)
        return
    with session("horovod") as engine:
        trainings, sides = create_sides(part, engine, rounds, arguments.folder, arguments.data)
        if arguments.last_first:
            trainings.reverse()
        own = compare(part, engine, rounds, random.Random(arguments.seed), trainings, sides)
        ranks = engine.gather(own)
        if engine.rank == 0:
            arguments.result.write_text(json.dumps(ranks))


if __name__ == "__main__":
    main()
