"""What a rank measures of its steps, and what all ranks tell each other about it now and then.

One small allgather carries everything: loss, hits, times and the wish to stop. It comes about once a second, so that
it costs nothing, and after a number of steps that every rank works out alike.
"""

import time
from dataclasses import dataclass

import torch

from hvdkit.runtime.engine import Engine

SECONDS_BETWEEN_AGREEMENTS = 1.0  # how long a request to stop, or a broken loss, may stay unnoticed
MOST_STEPS = 200  # between two of them, however quick the steps are


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """Seconds of one step of one rank."""

    total: float
    data_wait: float
    """Until the batch was there."""

    allreduce_wait: float
    """In `synchronize`, after the backward pass."""

    own: float
    """In this rank's own work: what makes the others wait when it is long."""


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """What all ranks know of the steps since the one before."""

    steps: int
    images: int
    loss: float
    accuracy_percent: float
    stop: bool
    """Some rank was asked to stop."""

    seconds: float
    """Of the slowest rank's clock, from the agreement before; saves included, evaluation not."""

    data_wait: float
    """Seconds a step, of the rank that waited most for data."""

    allreduce_wait: float
    """Seconds a step that even the rank that waited least spent waiting for gradients."""

    slowest_rank: int
    """The rank whose own work took longest."""

    slowest_excess: float
    """Seconds a step that its own work took longer than the mean over ranks: what it costs the others."""


class Sums:
    """The whole run in a few numbers, without its first agreement: those steps pay for allocation and connections."""

    def __init__(self) -> None:
        self.loss: float | None = None
        """Of the last agreement."""

        self._agreements = self.steps = self.images = 0
        self.seconds = self.data_wait = self.allreduce_wait = 0.0

    def add(self, agreed: Agreement) -> None:
        if self._agreements == 1:  # with a single agreement there is no other to go by
            self.steps = self.images = 0
            self.seconds = self.data_wait = self.allreduce_wait = 0.0
        self._agreements += 1
        self.loss = agreed.loss
        self.steps += agreed.steps
        self.images += agreed.images
        self.seconds += agreed.seconds
        self.data_wait += agreed.data_wait * agreed.steps
        self.allreduce_wait += agreed.allreduce_wait * agreed.steps

    def percent(self, seconds: float) -> float | None:
        """As a share of the time that the run took."""
        return 100 * seconds / self.seconds if self.steps else None


class Pace:
    """Collects the steps of this rank and agrees on them with the others."""

    def __init__(self, engine: Engine, report_seconds: float) -> None:
        self._engine = engine
        self._seconds = min(report_seconds, SECONDS_BETWEEN_AGREEMENTS)
        self._steps_until_agreement = 1  # nothing is known of the pace yet
        self._loss = torch.zeros((), device=engine.device)
        self._hits = torch.zeros((), device=engine.device, dtype=torch.int64)
        self._clear()
        self.start()

    def start(self) -> None:
        """The clock runs from here: what came before was not training."""
        self._began = time.perf_counter()

    def _clear(self) -> None:
        self._loss.zero_()
        self._hits.zero_()
        self._steps = self._images = 0
        self._data_wait = self._allreduce_wait = self._own = 0.0

    def add(self, loss: torch.Tensor, hits: torch.Tensor, images: int, times: StepTime) -> None:
        """One more step: this rank's share of the loss and of the right answers, and the world's images."""
        self._loss += loss
        self._hits += hits
        self._steps += 1
        self._images += images
        self._data_wait += times.data_wait
        self._allreduce_wait += times.allreduce_wait
        self._own += times.own

    @property
    def agreement_is_due(self) -> bool:
        """The same on every rank."""
        return self._steps >= self._steps_until_agreement

    def agree(self, stop: bool) -> Agreement:
        """Share the sums since the last time. Every rank must call this."""
        loss, hits = self._loss.item(), self._hits.item()  # on a GPU this waits for all that is queued there
        now = time.perf_counter()
        numbers = [loss, hits, stop, now - self._began]
        self._began = now
        numbers += [self._data_wait, self._allreduce_wait, self._own]
        rows = self._engine.gather_numbers(numbers)
        losses, hits, stops, clocks, data_waits, allreduce_waits, own = zip(*rows, strict=True)
        steps, images = self._steps, self._images
        pace = max(clocks) / steps
        self._steps_until_agreement = max(1, min(MOST_STEPS, round(self._seconds / max(pace, 1e-9))))
        self._clear()
        slowest = max(range(len(rows)), key=lambda rank: own[rank])
        return Agreement(
            steps=steps,
            images=images,
            loss=sum(losses) / len(rows) / steps,
            accuracy_percent=100 * sum(hits) / images,
            stop=any(stops),
            seconds=max(clocks),
            data_wait=max(data_waits) / steps,
            allreduce_wait=min(allreduce_waits) / steps,
            slowest_rank=slowest,
            slowest_excess=(own[slowest] - sum(own) / len(rows)) / steps,
        )
