"""Brings a rank its batches, if need be from processes of its own that read ahead."""

import functools
import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import resource_tracker
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader

from hvdkit.errors import HvdkitError, InputError
from hvdkit.runtime.processes import die_with_parent
from hvdkit.train.datasets import sampling
from hvdkit.train.datasets.source import Source

_MOST_WORKERS = 8  # more of them wait for the disk rather than for a core
_STOP_SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGUSR1}


class Batch(NamedTuple):
    """A rank's share of a step."""

    images: torch.Tensor
    labels: torch.Tensor
    world_count: int
    """Samples of the whole world in this step."""

    position: int
    """Samples of the epoch that are done after this step; `Loader.epoch` resumes there."""


class Loader:
    """The batches of one rank. Workers begin with an iterator and end with it, also when it is closed early."""

    def __init__(
        self,
        source: Source,
        *,
        seed: int,
        augment: bool,
        rank: int,
        size: int,
        workers: int,
        world_batch: int,
        pin_memory: bool,
    ) -> None:
        self._source = source
        self._seed = seed
        self._augment = augment
        self._rank, self._size = rank, size
        self._workers = workers
        self._world_batch = world_batch
        self._pin_memory = pin_memory

    def epoch(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        """This rank's share of every step from position `first` of that epoch on."""
        count = len(self._source)
        steps = _Steps(
            source=self._source,
            order=sampling.order(count, epoch, self._seed),
            bounds=sampling.step_bounds(count, first, self._world_batch, self._size),
            rank=self._rank,
            size=self._size,
            draws=functools.partial(sampling.draws, self._seed, epoch) if self._augment else None,
        )
        return self._load(steps)

    def evaluation(self, batch_size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """This rank's share of all samples, as they are."""
        indices = sampling.evaluation_indices(len(self._source), self._rank, self._size)
        parts = indices.split(batch_size) if len(indices) else ()
        return self._load(_Parts(source=self._source, parts=parts))

    def _load(self, items: Sequence[Any]) -> Iterator[Any]:
        workers = min(self._workers, len(items))
        if workers == 0 and not self._pin_memory:
            yield from map(items.__getitem__, range(len(items)))
            return
        loader = DataLoader(
            _Guarded(items),
            batch_size=None,
            sampler=range(len(items)),
            num_workers=workers,
            collate_fn=_as_it_is,
            pin_memory=self._pin_memory,
            worker_init_fn=functools.partial(_begin_worker, os.getpid(), not self._pin_memory),
            multiprocessing_context=self._context() if workers else None,
            # Of its own: it would draw from the rank's random state, which dropout draws from too.
            generator=torch.Generator(),
        )
        others = set(multiprocessing.active_children())
        iterator = _start(loader)
        started = set(multiprocessing.active_children()) - others
        try:
            for item in iterator:
                if isinstance(item, HvdkitError):
                    raise item
                yield item
        finally:
            del iterator  # which ends the workers, but for one that hangs (in a read from a dead server, say)
            for worker in started:
                worker.kill()
                worker.join(timeout=5)

    def _context(self) -> Any:
        """How workers start: as copies of this process, unless it may hold a GPU, which a copy must not touch."""
        if not self._pin_memory:
            return multiprocessing.get_context("fork")
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])  # imports torch once rather than in each worker
        return context


def default_workers(source: Source, device_type: str, cores_per_rank: int) -> int:
    """How many workers a rank has when the user does not say."""
    if source.in_memory:
        return 0
    if device_type == "cpu":
        return 1  # it reads ahead while files come; more would take the core that trains
    return max(1, min(cores_per_rank - 1, _MOST_WORKERS))


@dataclass(frozen=True, kw_only=True)
class _Steps:
    """Item n is all that a rank needs for step n, so that data in memory costs no work a sample."""

    source: Source
    order: torch.Tensor
    bounds: list[tuple[int, int]]
    rank: int
    size: int
    draws: Any

    def __len__(self) -> int:
        return len(self.bounds)

    def __getitem__(self, number: int) -> Batch:
        begin, end = self.bounds[number]
        indices = self.order[sampling.share(begin, end, self.rank, self.size)]
        images, labels = self.source.batch(indices, self.draws(indices) if self.draws else None)
        return Batch(images, labels, world_count=end - begin, position=end)


@dataclass(frozen=True, kw_only=True)
class _Parts:
    """Item n is the n-th batch of an evaluation."""

    source: Source
    parts: Sequence[torch.Tensor]

    def __len__(self) -> int:
        return len(self.parts)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.source.batch(self.parts[number], None)


class _Guarded:
    """Errors that are sentences travel as items: DataLoader would hand on a worker's traceback in their place."""

    def __init__(self, items: Sequence[Any]) -> None:
        self._items = items

    def __getitem__(self, number: int) -> Any:
        try:
            return self._items[number]
        except HvdkitError as error:
            return error


def _start(loader: DataLoader) -> Iterator[Any]:
    """Start the workers, deaf to stop signals: these reach the whole process group, but only the rank decides."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)  # children inherit it; the rank hears them after
    try:
        if loader.num_workers and loader.pin_memory:
            resource_tracker.ensure_running()  # the server's helper, whose start lets some of the signals through again
            signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
        return iter(loader)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise InputError(
            f"--loader-workers: the data set cannot be sent to another process ({error}); say --loader-workers 0."
        ) from error
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin_worker(rank_pid: int, forked: bool, worker: int) -> None:
    """Leave it to the rank when to end, and end with it, however it ends."""
    for signum in _STOP_SIGNALS:
        signal.signal(signum, signal.SIG_IGN)  # for good: libraries may unblock them
    if forked:
        die_with_parent()
        if os.getppid() != rank_pid:  # it ended before that call
            os._exit(1)
    else:
        # The parent is multiprocessing's server, which lives as long as its children do.
        threading.Thread(target=_end_with, args=(multiprocessing.parent_process(),), daemon=True).start()


def _end_with(rank: Any) -> None:
    rank.join()
    os._exit(1)


def _as_it_is(item: Any) -> Any:
    return item
