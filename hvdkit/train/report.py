"""What a training run says about itself, and to whom: people, metrics.jsonl, TensorBoard, Prometheus."""

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, kw_only=True)
class Interval:
    """The steps since the last report, of the whole world."""

    step: int
    """Steps done since the very beginning of the training, also before a restart."""

    steps: int
    """Steps that the training will have in all."""

    epoch: int
    """The epoch that is being trained, from 1."""

    epochs: int
    seconds: float
    """How long the interval took."""

    images: int
    """Trained on in the interval, by all ranks."""

    loss: float
    """Mean over the training images of the interval."""

    accuracy_percent: float
    """Training images of the interval that the model got right before it learnt from them."""

    images_per_second: float
    """Of all ranks together."""

    learning_rate: float
    """Of the last step."""

    step_seconds: float
    """Mean duration of a step on the slowest rank."""

    mean_step_seconds: float | None = None
    """Mean over ranks of what step_seconds is for the slowest one; None when it is not known."""

    data_wait_seconds: float
    """Wait for data in a step, mean over steps, of the rank that waited most."""

    allreduce_wait_seconds: float | None
    """Wait for allreduce in a step, mean over steps, of the rank that waited least: what the others waited
    longer, they waited for it. None when the engine cannot tell."""

    slowest_rank: int
    slowest_host: str
    eta_seconds: float
    """Seconds until the last step, at the pace of the interval."""

    checkpoint_age_seconds: float | None
    """Since the newest checkpoint was complete; None before the first."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The model judged on the test images, each of them once."""

    step: int
    epoch: int
    accuracy_percent: float
    images: int
    loss: float


class Reporter(Protocol):
    """Takes what a run has to say. None of its methods ends the training, whatever becomes of the report."""

    def interval(self, interval: Interval) -> None:
        """Some steps are done."""

    def evaluation(self, evaluation: Evaluation) -> None:
        """The model has been judged."""

    def note(self, text: str) -> None:
        """A sentence for people."""

    def summary(self, summary: Mapping[str, Any]) -> None:
        """The training has ended, and this came out."""

    def close(self) -> None:
        """Nothing more will be said; called also when the training fails."""


class Reporters(Reporter):
    """Tells several reporters the same."""

    def __init__(self, reporters: Iterable[Reporter]) -> None:
        self._reporters = list(reporters)

    def interval(self, interval: Interval) -> None:
        for reporter in self._reporters:
            reporter.interval(interval)

    def evaluation(self, evaluation: Evaluation) -> None:
        for reporter in self._reporters:
            reporter.evaluation(evaluation)

    def note(self, text: str) -> None:
        for reporter in self._reporters:
            reporter.note(text)

    def summary(self, summary: Mapping[str, Any]) -> None:
        for reporter in self._reporters:
            reporter.summary(summary)

    def close(self) -> None:
        with contextlib.ExitStack() as stack:  # one that fails does not keep the others open
            for reporter in self._reporters:
                stack.callback(reporter.close)
