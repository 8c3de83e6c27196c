"""Watches a run and tells whoever wants to know: people, files, Prometheus, and the log of a pod."""

import os
import sys
import time
from typing import TYPE_CHECKING, Any

import torch

from hvdkit.runtime import results
from hvdkit.runtime.engine import Engine
from hvdkit.runtime.session import on_every_rank
from hvdkit.train import history, progress
from hvdkit.train.pace import Agreement, StepTime, Sums
from hvdkit.train.report import Evaluation, Interval, Reporter, Reporters
from hvdkit.train.settings import TrainSettings
from hvdkit.train.step_record import StepRecord

if TYPE_CHECKING:
    from hvdkit.metrics.live import LiveMetrics
    from hvdkit.train.datasets import DataSet
    from hvdkit.train.saving import Saving
    from hvdkit.train.state import Progress, TrainState

TABLE_ROWS = 32  # a person reads no longer table of ranks


class Observer:
    """One a rank. Rank 0 reports for the world; live metrics every rank has its own."""

    def __init__(self, settings: TrainSettings, engine: Engine, *, to_stderr: bool) -> None:
        self._settings = settings
        self._engine = engine
        self._to_stderr = to_stderr
        self._people = progress.create(to_stderr) if engine.rank == 0 else None
        self._job = os.environ.get("HVDKIT_JOB", "train")
        self._reporters: Reporter = Reporters([])
        self._live: LiveMetrics | None = None
        self._history: history.History | None = None
        self._sums = Sums()
        self._unreported: list[Agreement] = []
        self._record = StepRecord(engine.rank)
        self._last_evaluation: Evaluation | None = None
        self._began = time.monotonic()
        self.evaluated = False
        """Whether the model was judged since the last step."""

        on_every_rank(engine, self._check)  # before the data are read and the first step is taken
        for line in describe_world(engine):
            self.note(line)

    def _check(self) -> None:
        if self._settings.pushgateway is not None:
            from hvdkit.metrics.push import check_address

            check_address(self._settings.pushgateway)
        if self._settings.metrics_port is not None:
            from hvdkit.metrics.live import LiveMetrics

            engine = self._engine
            self._live = LiveMetrics(
                port=self._settings.metrics_port,
                job=self._job,
                rank=engine.rank,
                local_rank=engine.local_rank,
                world_size=engine.size,
                host=engine.hosts[engine.rank],
                model=self._settings.model,
                data=self._settings.data,
                engine=engine.name,
                library=engine.library,
            )
        if self._engine.rank == 0 and self._settings.output is not None:
            self._history = history.History(self._settings.output, self.note)

    def note(self, text: str) -> None:
        """A sentence for people; said once for the world."""
        if self._people is not None:
            self._people.note(text)

    def begin(self, state: "TrainState", data: "DataSet", steps_left: int) -> None:
        """The first step is near."""
        settings, engine = self._settings, self._engine
        self._steps = state.progress.step + steps_left
        if settings.max_steps is not None:
            self._steps = max(state.progress.step, min(self._steps, settings.max_steps))
        self._samples = len(data.train)
        self._data_name = data.name
        self._optimizer = state.optimizer
        batch = " x ".join(
            str(number) for number in (settings.batch_size, settings.accumulate, engine.size) if number > 1
        )
        self.note(
            f"{settings.model} on {data.name}: {self._samples:,} images, {plural(settings.epochs, 'epoch')}, "
            f"{plural(self._steps - state.progress.step, 'step')} to go, batch {batch or 1}"
        )
        on_every_rank(engine, lambda: self._open(state))

    def _open(self, state: "TrainState") -> None:
        if self._engine.rank != 0:
            return  # what is said of the world is said once
        reporters: list[Reporter] = [self._people]
        step = None if self._settings.resume == "never" else state.progress.step
        if self._history is not None:
            world = world_facts(self._engine)
            self._history.start(step, settings=self._settings, world=world, versions=history.versions())
            reporters.append(self._history)
        if self._settings.tensorboard is not None:
            from hvdkit.train.tensorboard import TensorBoard

            reporters.append(TensorBoard(self._settings.tensorboard, self.note, step))
        if self._live is not None:
            self._live.restarts = self._history.restarts if self._history is not None else 0
            reporters.append(self._live)
        self._reporters = Reporters(reporters)

    def step(self, times: StepTime, images: int) -> None:
        """A step of this rank is done."""
        self.evaluated = False
        if self._live is not None:
            wait = times.allreduce_wait if self._engine.name == "horovod" else None
            self._live.observe_step(times.total, times.data_wait, wait, images)
        if self._settings.result_lines:
            self._record.add(times, images)

    def interval(self, agreed: Agreement, place: "Progress", saving: "Saving") -> None:
        """All ranks know the same about the last steps; every few seconds that is news for the reporters."""
        self._sums.add(agreed)
        self._unreported.append(agreed)
        if sum(one.seconds for one in self._unreported) < self._settings.report_seconds and place.step < self._steps:
            return
        self._reporters.interval(self._describe(self._unreported, place, saving))
        self._unreported = []

    def _describe(self, news: list[Agreement], place: "Progress", saving: "Saving") -> Interval:
        steps, images = sum(one.steps for one in news), sum(one.images for one in news)
        seconds = sum(one.seconds for one in news)

        def mean(field: str) -> float:
            return sum(getattr(one, field) * one.steps for one in news) / steps

        worst = max(news, key=lambda one: one.slowest_excess)
        saved_at = saving.saver.saved_at if saving.saver is not None else None
        return Interval(
            step=place.step,
            steps=self._steps,
            epoch=place.epoch + 1,
            epochs=self._settings.epochs,
            seconds=seconds,
            images=images,
            loss=mean("loss"),
            accuracy_percent=sum(one.accuracy_percent * one.images for one in news) / images,
            images_per_second=images / seconds,
            learning_rate=self._optimizer.param_groups[0]["lr"],
            step_seconds=seconds / steps,
            mean_step_seconds=max(0.0, seconds / steps - mean("slowest_excess")),
            data_wait_seconds=mean("data_wait"),
            allreduce_wait_seconds=mean("allreduce_wait") if self._engine.name == "horovod" else None,
            slowest_rank=worst.slowest_rank,
            slowest_host=self._engine.hosts[worst.slowest_rank],
            eta_seconds=(self._steps - place.step) * seconds / steps,
            checkpoint_age_seconds=time.time() - saved_at if saved_at is not None else None,
        )

    def evaluation(self, correct: int, judged: int, loss: float, place: "Progress") -> None:
        """The model was judged on the test images."""
        self.evaluated = True
        self._last_evaluation = Evaluation(
            step=place.step,
            epoch=place.epoch + (place.position > 0),
            accuracy_percent=100 * correct / judged,
            images=judged,
            loss=loss,
        )
        self._reporters.evaluation(self._last_evaluation)

    def end(self, state: "TrainState", saving: "Saving") -> dict[str, Any]:
        """The last word; returns what came out."""
        summary = self._summarise(state, saving)
        self._reporters.summary(summary)
        self.close()
        if self._settings.result_lines:
            self._print_result(summary)
        if self._settings.pushgateway is not None and self._engine.rank == 0:
            from hvdkit.metrics.push import push_result

            kind = {"model": summary["model"], "engine": summary["engine"], "workers": str(summary["ranks"])}
            push_result(self._settings.pushgateway, self._job, summary, grouping=kind, warn=self.note)
        return summary

    def close(self) -> None:
        """Nothing more will be said."""
        self._reporters.close()
        self._reporters = Reporters([])
        if self._live is not None:
            self._live.close()
        self._live = None

    def _summarise(self, state: "TrainState", saving: "Saving") -> dict[str, Any]:
        sums = self._sums
        judged = self._last_evaluation
        engine, settings = self._engine, self._settings
        return {
            "model": settings.model,
            "data": self._data_name,
            "engine": engine.name,
            "library": engine.library,
            "ranks": engine.size,
            "hosts": len(set(engine.hosts)),
            "device": engine.device.type,
            "batch_size": settings.batch_size,
            "accumulate": settings.accumulate,
            "precision": settings.precision,
            "epochs": settings.epochs,
            "steps": state.progress.step,
            "seconds": time.monotonic() - self._began,
            "test_accuracy_percent": judged.accuracy_percent if judged else None,
            "test_loss": judged.loss if judged else None,
            "test_images": judged.images if judged else 0,
            "train_loss": sums.loss,
            "images_per_second": sums.images / sums.seconds if sums.steps else None,
            "step_seconds": sums.seconds / sums.steps if sums.steps else None,
            "data_wait_percent": sums.percent(sums.data_wait),
            "allreduce_wait_percent": sums.percent(sums.allreduce_wait) if engine.name == "horovod" else None,
            "checkpoint": saving.newest,
            "output": str(settings.output) if settings.output is not None else None,
        }

    def _print_result(self, summary: dict[str, Any]) -> None:
        """Every rank's steps travel with the result."""
        ranks = self._engine.gather(self._record.payload())
        if self._engine.rank == 0:
            payload = {"summary": summary, "hosts": self._engine.hosts, "ranks": ranks, "versions": history.versions()}
            stream = sys.stderr if self._to_stderr else sys.stdout
            results.emit("train", payload, lambda line: print(line, file=stream, flush=True))


def world_facts(engine: Engine) -> dict[str, Any]:
    """The world for metrics.jsonl."""
    return {"ranks": engine.size, "engine": engine.name, "library": engine.library, "hosts": engine.hosts}


def describe_world(engine: Engine) -> list[str]:
    """A table of the ranks: where each one is, what it computes on, and which library reduces."""
    own = (os.environ.get("HVDKIT_NODE", ""), _describe(engine.device), engine.library)
    nodes, devices, libraries = zip(*engine.gather(own), strict=True)
    columns = [["rank", *map(str, range(engine.size))], ["host", *engine.hosts]]
    if any(nodes):  # told by Kubernetes
        columns.append(["node", *nodes])
    columns += [["device", *devices], ["reduced by", *libraries]]
    columns = [column[: TABLE_ROWS + 1] for column in columns]
    widths = [max(map(len, column)) for column in columns]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in zip(*columns, strict=True)
    ]
    if engine.size > TABLE_ROWS:
        hosts = len(set(engine.hosts))
        lines.append(f"... {engine.size - TABLE_ROWS} more; {engine.size} ranks on {plural(hosts, 'host')} in all")
    return lines


def plural(count: int, noun: str) -> str:
    """'1 rank', '2 ranks'."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _describe(device: torch.device) -> str:
    return f"{device} {torch.cuda.get_device_name(device)}" if device.type == "cuda" else "cpu"
