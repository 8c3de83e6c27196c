"""Trainings that take turns in one process, for train_overhead_ranks.py."""

import threading
import time
from collections.abc import Callable
from typing import Any

from hvdkit.runtime.engine import Engine

BATCH = 16


class Side:
    """A training that moves only when it is told to."""

    def __init__(self, train: Callable[["Side"], None], settings: Any = None) -> None:
        self._train = train
        self.settings = settings
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


class Switched:
    """Turns of a training in which a setting has this value; other turns of the same training have another one."""

    def __init__(self, side: Side, name: str, value: Any) -> None:
        self._side, self._name, self._value = side, name, value

    def advance(self, steps: int) -> tuple[float, float]:
        object.__setattr__(self._side.settings, self._name, self._value)  # frozen for good reasons, but not here
        return self._side.advance(steps)


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
    # One epoch that is longer than the run: what comes at an epoch's end is not compared.
    common |= {"synthetic_images": images_needed(steps, engine.size), "max_steps": steps, "skip_evaluation": True}
    chosen = TrainSettings(**common | settings)

    def train(side: Side) -> None:
        observer = PausingObserver(chosen, engine, to_stderr=False)
        saving = Saving(chosen, engine, observer.note)
        try:
            loop.run(chosen, engine, StopRequest(), observer, saving)
        finally:
            observer.close()
            saving.close()

    side = Side(train, chosen)
    return side


def images_needed(steps: int, size: int) -> int:
    """So many that the training ends within its first epoch."""
    return (steps + 2) * BATCH * size
