"""What each rank of benchmarks/train_overhead.py runs: two trainings side by side in one process, taking turns.

A shared machine is up to a fifth faster in one half minute than in the next, so two runs one after the other cannot
show a difference of 1 %. Here both trainings are alive at once, each in a thread of its own, and only one of them
moves: for a few steps, then the other for as many, and each goes first equally often. Each side is whole:
`hvdkit.train.loop.run` with its reports, agreements and saves, or the hand-written loop. The clocks run from the moment
that a side may go on until it has done the steps of its turn; set-up, warm-up, evaluation and the last save are
outside.
"""

import argparse
import json
import multiprocessing
import os
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvdkit.runtime.engine import Engine
from hvdkit.runtime.session import session

BATCH = 16
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
    "loop": Plan(turn=2, turns=10, warm_up=6),
    # A turn begins two steps before a save, or between two of them; the first save, which allocates, is warm-up.
    "checkpoints": Plan(turn=10, turns=2, warm_up=38),
    "folder": Plan(turn=15, turns=4, warm_up=10),
}


class Side:
    """A training that moves only when it is told to."""

    def __init__(self, train: Callable[["Side"], None]) -> None:
        self._train = train
        self._until = 0
        self._go, self._paused = threading.Semaphore(0), threading.Semaphore(0)
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)  # a rank whose other side failed can leave

    def start(self, steps: int) -> None:
        """Set up, and warm up for so many steps."""
        self._until = steps
        self._thread.start()
        self._wait()

    def advance(self, steps: int) -> tuple[float, float]:
        """Take so many steps; their seconds, and the processor's seconds of this process."""
        self._until += steps
        wall, cpu = time.perf_counter(), time.process_time()
        self._go.release()
        self._wait()
        return time.perf_counter() - wall, time.process_time() - cpu

    def finish(self) -> None:
        """Take the steps that are left."""
        self._until = -1
        self._go.release()
        self._wait()

    def after_step(self, step: int) -> None:
        """The training calls this after each of its steps."""
        if step == self._until:
            self._paused.release()
            self._go.acquire()

    def _run(self) -> None:
        try:
            self._train(self)
        except BaseException as error:
            self._failure = error
        self._paused.release()

    def _wait(self) -> None:
        self._paused.acquire()
        if self._failure is not None:
            raise self._failure


def handwritten(steps: int) -> Side:
    import handwritten_loop

    from hvdkit.train.datasets import digits

    def train(side: Side) -> None:
        images, labels = digits.make(2000, seed=2)
        handwritten_loop.train(images.unsqueeze(1), labels, batch=BATCH, side=64, steps=steps, after=side.after_step)

    return Side(train)


def hvdkit_train(engine: Engine, steps: int, **settings: Any) -> Side:
    """The run of `hvdkit train`; its observer also pauses it."""
    from hvdkit.runtime.stop import StopRequest
    from hvdkit.train import loop
    from hvdkit.train.observer import Observer
    from hvdkit.train.saving import Saving
    from hvdkit.train.settings import TrainSettings

    class PausingObserver(Observer):
        count = 0

        def step(self, *arguments: Any) -> None:
            super().step(*arguments)
            self.count += 1
            side.after_step(self.count)

    common = {"model": "resnet18", "batch_size": BATCH, "learning_rate": 0.01, "lr_scaling": "none"}
    # One epoch that is longer than the run, so that no evaluation falls into it.
    common |= {"synthetic_images": images_needed(steps, engine.size), "max_steps": steps}
    chosen = TrainSettings(**common | settings)

    def train(side: Side) -> None:
        observer = PausingObserver(chosen, engine, to_stderr=False)
        saving = Saving(chosen, engine, observer.note)
        try:
            loop.run(chosen, engine, StopRequest(), observer, saving)
        finally:
            observer.close()
            saving.close()

    side = Side(train)
    return side


def images_needed(steps: int, size: int) -> int:
    """So many that the training ends within its first epoch."""
    return (steps + 2) * BATCH * size


def steps_needed(part: str, rounds: int) -> int:
    """Steps of each side; the last one comes after the last turn."""
    return PLANS[part].warm_up + rounds * PLANS[part].steps + 1


def create_sides(part: str, engine: Engine, rounds: int, folder: Path, data: Path | None) -> dict[str, Side]:
    """The first one is what the other is compared with."""
    steps = steps_needed(part, rounds)

    def training(name: str, **settings: Any) -> Side:
        return hvdkit_train(engine, steps, output=folder / name, **settings)

    if part == "loop":
        return {"hand-written": handwritten(steps), "hvdkit": training("a", data="synthetic", image_size=64)}
    if part == "checkpoints":
        synthetic = {"data": "synthetic", "image_size": 64}
        return {
            "none": training("a", **synthetic),
            f"every {CHECKPOINT_EVERY} steps": training("b", checkpoint_every=CHECKPOINT_EVERY, **synthetic),
        }
    return {
        "synthetic": training("a", data="synthetic", image_size=32),
        "image folder": training("b", data="imagefolder", data_dir=data, image_size=32),
    }


def compare(part: str, engine: Engine, rounds: int, order: random.Random, sides: dict[str, Side]) -> list[dict]:
    """Rounds of turns: side → what this rank measured."""
    plan = PLANS[part]
    for side in sides.values():
        side.start(plan.warm_up)
    taken = []
    for _ in range(rounds):
        sums = {name: {"seconds": 0.0, "cpu_seconds": 0.0, "busy_seconds": 0.0, "late_writes": 0} for name in sides}
        workers_before = worker_seconds()
        pairs = [list(sides), list(reversed(sides))] * (plan.turns // 2)
        order.shuffle(pairs)
        for name in (name for pair in pairs for name in pair):
            engine.barrier()  # so that no rank pays for the others' last turn
            busy = busy_seconds()
            seconds, cpu = sides[name].advance(plan.turn)
            sums[name]["seconds"] += seconds
            sums[name]["cpu_seconds"] += cpu
            sums[name]["busy_seconds"] += busy_seconds() - busy
            sums[name]["late_writes"] += wait_for_writer()
        if part == "folder":  # the only side with workers, which read ahead also while the other side has its turn
            sums["image folder"]["cpu_seconds"] += worker_seconds() - workers_before
        taken.append(sums)
    for side in sides.values():
        side.finish()
    return taken


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
        sides = create_sides(part, engine, rounds, arguments.folder, arguments.data)
        own = compare(part, engine, rounds, random.Random(arguments.seed), sides)
        ranks = engine.gather(own)
        if engine.rank == 0:
            arguments.result.write_text(json.dumps(ranks))


if __name__ == "__main__":
    main()
