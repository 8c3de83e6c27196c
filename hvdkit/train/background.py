"""Saves checkpoints off the training path: the caller pays for one copy in memory, a thread for the rest."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch

from hvdkit.train.checkpoints import CheckpointFolder, plain


class BackgroundSaver:
    """Hands states to a thread that writes them. Used by one thread, that of the training.

    The writer has the priority of the others: a lower one made the training wait for Python's lock, which the writer
    holds between two writes, until the writer got its turn (saving every 20 steps then cost 8 %).
    """

    saved_step: int | None = None
    """The last step that is on the disk."""

    saved_at: float | None = None
    """When it was, by time.time()."""

    saved_path: Path | None = None
    """Its file."""

    failures: int = 0
    """Saves that failed, each with one warning."""

    def __init__(self, folder: CheckpointFolder, warn: Callable[[str], None]) -> None:
        self._folder = folder
        self._warn = warn
        self._snapshot = Snapshot()
        self._writer: threading.Thread | None = None

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Copy the state and return; a save that is still under way is waited for, so memory holds one copy."""
        self.wait()
        copy = self._snapshot.take(state)
        # Not a daemon: at its end the interpreter waits for such threads, so that no save is lost.
        self._writer = threading.Thread(target=self._write, args=(step, copy), name="hvdkit-checkpoint")
        self._writer.start()

    def wait(self) -> None:
        """Return when all that was handed over is on the disk, or has failed with a warning."""
        if self._writer is not None:
            self._writer.join()
            self._writer = None

    def close(self) -> None:
        """Wait, and give the memory of the copy back."""
        self.wait()
        self._snapshot = Snapshot()

    def _write(self, step: int, state: dict[str, Any]) -> None:
        try:
            path = self._folder.save(step, state)
        except Exception as error:
            # Whatever it was: training goes on, and the older checkpoints are still there.
            self.failures += 1
            reason = getattr(error, "strerror", None) or str(error).partition("\n")[0].rstrip(".")
            self._warn(f"the checkpoint of step {step} was not saved in {self._folder.folder}: {reason}.")
        else:
            self.saved_step, self.saved_at, self.saved_path = step, time.time(), path


class Snapshot:
    """A copy of a state in host memory that is reused from one copy to the next.

    What is copied are storages, not tensors: strides stay as they are, and tensors that share memory still do in the
    copy. Of a storage of which the state holds only a part, only that part is copied.
    """

    def __init__(self) -> None:
        self._buffers: list[torch.Tensor] = []

    def take(self, state: dict[str, Any]) -> dict[str, Any]:
        """A copy of the state; the next one overwrites it."""
        parts: dict[tuple, _Part] = {}
        members: list[tuple[torch.Tensor, torch.Tensor, _Part]] = []

        def register(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.numel() == 0:
                return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype)
            storage = tensor.untyped_storage()
            # By type too: torch.save refuses two types in one storage.
            key = (storage.data_ptr(), storage.nbytes(), tensor.device, tensor.dtype)
            part = parts.setdefault(key, _Part(tensor))
            part.widen(tensor)
            copy = torch.empty(0, dtype=tensor.dtype)
            members.append((copy, tensor, part))
            return copy

        result = plain(state, register)
        self._copy(list(parts.values()))
        for copy, tensor, part in members:
            offset = tensor.storage_offset() - part.begin
            copy.set_(part.copy.untyped_storage(), offset, tensor.size(), tensor.stride())
        return result

    def _copy(self, parts: list[_Part]) -> None:
        """Copy each part to a buffer, that of the last time where it fits."""
        gpus = {part.source.device for part in parts if part.source.is_cuda}
        old, self._buffers = self._buffers, []
        for part, buffer in zip_longest(parts, old[: len(parts)]):
            row = part.source.as_strided((part.end - part.begin,), (1,), part.begin)
            if buffer is None or (buffer.shape, buffer.dtype) != (row.shape, row.dtype):
                # Pinned memory is what a GPU copies to without making the caller wait for each copy.
                buffer = torch.empty(row.shape, dtype=row.dtype, pin_memory=row.is_cuda)
            part.copy = buffer.copy_(row, non_blocking=row.is_cuda)
            self._buffers.append(buffer)
        for gpu in gpus:
            torch.cuda.current_stream(gpu).synchronize()


class _Part:
    """The elements of a storage from the first to the last that the state holds."""

    copy: torch.Tensor

    def __init__(self, source: torch.Tensor) -> None:
        self.source = source  # any tensor of the storage
        self.begin = self.end = source.storage_offset()

    def widen(self, tensor: torch.Tensor) -> None:
        """Take in the elements of a tensor."""
        begin = tensor.storage_offset()
        if tensor.is_contiguous():
            reach = tensor.numel()
        else:
            reach = 1 + sum((size - 1) * step for size, step in zip(tensor.size(), tensor.stride(), strict=True))
        self.begin, self.end = min(self.begin, begin), max(self.end, begin + reach)
