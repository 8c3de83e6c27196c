"""`hvdkit.init()`: the engine, checkpoints and metrics of `hvdkit train` for a script of one's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from hvdkit.errors import EXIT_RESTART_ME
from hvdkit.metrics.live import LiveMetrics
from hvdkit.runtime import random_state, stacks
from hvdkit.runtime.engine import Engine, Reduction
from hvdkit.runtime.session import AllRanksLeave, on_every_rank, session
from hvdkit.runtime.stop import StopRequest
from hvdkit.train.background import BackgroundSaver
from hvdkit.train.checkpoints import CheckpointFolder
from hvdkit.train.state import check_tensors


class World:
    """The ranks that train together. Every method but `print` must be called by all of them."""

    def __init__(self, engine: str = "auto") -> None:
        # As early as possible: a rank can be asked to stop, or for its stacks, from its first second on.
        self._stop = StopRequest().listen()
        stacks.install()
        self._session = session(engine)
        self._engine: Engine | None = None
        self._checkpoints: list[Checkpoints] = []

    def __enter__(self) -> World:
        engine = self._engine = self._session.__enter__()
        self.rank, self.size = engine.rank, engine.size
        self.local_rank, self.local_size = engine.local_rank, engine.local_size
        self.device, self.library, self.hosts = engine.device, engine.library, engine.hosts
        return self

    def __exit__(self, *failure: Any) -> bool | None:
        # An exception on one rank ends all of them, and its traceback is shown once.
        return self._session.__exit__(*failure)

    def print(self, *values: object) -> None:
        """Print on rank 0 only, at once."""
        if self.rank == 0:
            print(*values, flush=True)

    def prepare(self, model: nn.Module, optimizer: Optimizer, **reduction: Any) -> tuple[nn.Module, Optimizer]:
        """Rank 0's weights on all ranks, and an optimizer whose step averages the gradients of all.

        `reduction`: op ("average", "sum", "adasum"), compression ("none", "fp16"), accumulate, groups,
        deterministic, as in hvdkit.runtime.engine.Reduction.
        """
        prepared = on_every_rank(self._engine, lambda: self._engine.prepare(model, optimizer, Reduction(**reduction)))
        if self._engine.name == "ddp":  # which averages in the backward pass; Horovod's step waits for itself
            prepared.optimizer.register_step_pre_hook(lambda *_: prepared.synchronize())
        return prepared.model, prepared.optimizer

    def average(self, **values: float) -> dict[str, float]:
        """The mean of each value over all ranks."""
        return self._engine.average(values)

    def gather(self, value: Any) -> list[Any]:
        """The value of each rank, in the order of ranks."""
        return self._engine.gather(value)

    def sampler(self, data: Sized, epoch: int, seed: int = 1) -> list[int]:
        """This rank's share of an epoch, in random order: equally many samples on every rank, none twice."""
        order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed + epoch)).tolist()
        return order[self.rank : len(order) - len(order) % self.size : self.size]

    def checkpoints(self, folder: str | Path, model: nn.Module, optimizer: Optimizer, keep: int = 3) -> Checkpoints:
        """Checkpoints of a prepared model and optimizer in a folder."""
        self._checkpoints.append(Checkpoints(self._engine, Path(folder), model, optimizer, keep))
        return self._checkpoints[-1]

    def metrics(self, port: int, job: str = "train") -> LiveMetrics:
        """Prometheus metrics of this rank on `port` + local rank; tell it of each step with `observe_step`."""
        names = {"model": "own", "data": "own", "engine": self._engine.name, "library": self.library}
        place = {"rank": self.rank, "local_rank": self.local_rank, "world_size": self.size}
        host = self.hosts[self.rank]
        return on_every_rank(self._engine, lambda: LiveMetrics(port=port, job=job, host=host, **place, **names))

    def leave_if_asked(self) -> None:
        """End all ranks in good order, with exit code 75, if one was asked to stop (SIGTERM); save before it."""
        if self.asked_to_stop():
            for checkpoints in self._checkpoints:
                checkpoints.wait()  # a launcher may end rank 0 as soon as another one has left
            raise AllRanksLeave("stopped in good order, as asked.", EXIT_RESTART_ME)

    def asked_to_stop(self) -> bool:
        """Whether any rank was asked to stop; the same answer on all of them."""
        return any(asked for (asked,) in self._engine.gather_numbers([bool(self._stop)]))


class Checkpoints:
    """Written by rank 0 beside the training, whole or not at all; read back by `resume`."""

    def __init__(self, engine: Engine, folder: Path, model: nn.Module, optimizer: Optimizer, keep: int) -> None:
        self._engine = engine
        self._model = model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
        self._optimizer = optimizer
        self._folder = CheckpointFolder(folder, keep)
        self._saver: BackgroundSaver | None = None
        on_every_rank(engine, self._open)

    def _open(self) -> None:
        if self._engine.rank == 0:
            self._folder.prepare()
            self._saver = BackgroundSaver(self._folder, lambda text: print(f"hvdkit: {text}", flush=True))

    def save(self, step: int, **extra: Any) -> None:
        """Save model, optimizer, every rank's random state, and `extra` (tensors and plain values)."""
        state = {
            "model": dict(self._model.state_dict()),
            "optimizer": self._optimizer.state_dict(),
            "random": self._engine.gather(random_state.capture(self._engine.device)),
            "extra": extra,
        }
        if self._saver is not None:
            self._saver.save(step, state)

    def resume(self) -> Mapping[str, Any]:
        """Go on from the newest whole checkpoint: its `extra` and its `step`, which is 0 when there was none."""
        small = self._engine.broadcast(on_every_rank(self._engine, self._load))
        if small is None:
            return {"step": 0}
        self._engine.broadcast_state(self._model, self._optimizer)
        if len(small["random"]) == self._engine.size:
            random_state.restore(small["random"][self._engine.rank], self._engine.device)
        return {**small["extra"], "step": small["step"]}

    def _load(self) -> dict[str, Any] | None:
        if self._engine.rank != 0:
            return None
        loaded = self._folder.newest_whole(lambda text: print(f"hvdkit: {text}", flush=True))
        if loaded is None:
            return None
        check_tensors(dict(self._model.state_dict()), loaded.state["model"])
        self._model.load_state_dict(loaded.state["model"])
        self._optimizer.load_state_dict(loaded.state["optimizer"])
        return {"step": loaded.step, "extra": loaded.state["extra"], "random": loaded.state["random"]}

    def wait(self) -> None:
        """Return when everything saved is on the disk."""
        if self._saver is not None:
            self._saver.wait()

    def __iter__(self) -> Iterator[Path]:
        """The files, newest first."""
        return iter(sorted(self._folder.folder.glob("step-*.pt"), reverse=True))
