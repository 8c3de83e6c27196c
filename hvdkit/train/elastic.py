"""Training that goes on when ranks come and go, under `horovodrun --min-np … --host-discovery-script …`.

Every few seconds each rank keeps a copy of the run in its memory: the commit. When ranks die or hosts change, Horovod
makes a new world, and every rank starts the loop anew from rank 0's commit. Rank 0 of a new world is always one that
was in the old one, so nothing committed is lost as long as one rank lives.
"""

import contextlib
from collections.abc import Callable
from typing import Any

import horovod.torch as hvd
import torch
from horovod.common.elastic import State

from hvdkit.runtime.horovod_engine import HorovodEngine
from hvdkit.runtime.session import on_every_rank
from hvdkit.runtime.stop import StopRequest
from hvdkit.train import loop
from hvdkit.train.checkpoints import plain
from hvdkit.train.observer import Observer
from hvdkit.train.saving import SMALL, Saving
from hvdkit.train.settings import TrainSettings
from hvdkit.train.state import TrainState

AGREEMENTS_BETWEEN_COMMITS = 3  # about as many seconds; a commit copies the model and asks for new hosts


def train_elastic(
    settings: TrainSettings, engine: HorovodEngine, stop: StopRequest, *, to_stderr: bool
) -> dict[str, object]:
    """Train to the end, in as many worlds as it takes."""

    @hvd.elastic.run
    def attempt(commit: Commit) -> dict[str, object]:
        with (
            contextlib.closing(Observer(settings, engine, to_stderr=to_stderr)) as observer,
            contextlib.closing(ElasticSaving(settings, engine, observer.note, commit)) as saving,
        ):
            return loop.run(settings, engine, stop, observer, saving)

    commit = Commit()
    # A rank that is new in a world joined it when its engine was made; the others must do just as much, since ranks
    # have to run the same operations in the same order.
    commit.register_reset_callbacks([engine.join])
    return attempt(commit)


class Commit(State):
    """What a rank keeps in memory. Horovod calls the methods; the copy itself is made by ElasticSaving."""

    def __init__(self) -> None:
        super().__init__(bcast_object=hvd.broadcast_object, get_rank=hvd.rank)
        self.state: dict[str, Any] | None = None

    def save(self) -> None:
        pass

    def restore(self) -> None:
        pass

    def sync(self) -> None:
        pass


class ElasticSaving(Saving):
    """Checkpoints on disk as ever, and the commit in memory, which is taken first."""

    def __init__(
        self, settings: TrainSettings, engine: HorovodEngine, note: Callable[[str], None], commit: Commit
    ) -> None:
        self._commit = commit
        self._agreements = 0
        super().__init__(settings, engine, note)

    def resume(self, state: TrainState) -> None:
        has_commit = self._engine.broadcast(self._commit.state is not None)
        if not has_commit:
            super().resume(state)
            return
        small = self._engine.broadcast(on_every_rank(self._engine, lambda: self._restore(state)))
        state.restore_small(small)

    def _restore(self, state: TrainState) -> dict[str, Any] | None:
        if self._engine.rank != 0:
            return None
        committed = self._commit.state
        state.restore(committed)
        step, size = committed["progress"]["step"], self._engine.size
        self._note(f"a new world of {size} rank{'' if size == 1 else 's'} goes on from step {step}")
        return {name: committed[name] for name in SMALL}

    def agreed(self, state: TrainState) -> None:
        """Commit now and then, at the same step on every rank; raises when hosts have come or gone."""
        self._agreements += 1
        if self._agreements % AGREEMENTS_BETWEEN_COMMITS == 0:
            self._commit.state = plain(state.capture(), torch.Tensor.clone)
            self._commit.check_host_updates()
