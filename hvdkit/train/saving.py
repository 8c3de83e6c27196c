"""Checkpoints of a run: rank 0 writes and reads them, all ranks go on from the same one."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from hvdkit.errors import HvdkitError, InputError
from hvdkit.runtime.engine import Engine
from hvdkit.runtime.session import AllRanksLeave, on_every_rank
from hvdkit.train.background import BackgroundSaver
from hvdkit.train.checkpoints import CheckpointFolder, Loaded, load
from hvdkit.train.settings import TrainSettings
from hvdkit.train.state import Progress, TrainState, differences

SMALL = ("progress", "scaler", "random", "world_size")  # the rest are tensors, which the engine sends


class Saving:
    """Writes a run's checkpoints, and finds the one to go on from. Without --output it does neither."""

    def __init__(self, settings: TrainSettings, engine: Engine, note: Callable[[str], None]) -> None:
        self._settings = settings
        self._engine = engine
        self._note = note
        self._folder: CheckpointFolder | None = None
        self.saver: BackgroundSaver | None = None
        self._handed_over: Progress | None = None
        on_every_rank(engine, self._open)

    def _open(self) -> None:
        if self._settings.output is None or self._engine.rank != 0:
            return
        self._folder = CheckpointFolder(self._settings.output / "checkpoints", self._settings.keep, self._note)
        self._folder.prepare()
        self.saver = BackgroundSaver(self._folder, self._note)

    @property
    def enabled(self) -> bool:
        """The same on every rank."""
        return self._settings.output is not None

    def resume(self, state: TrainState) -> None:
        """Put `state` where the newest whole checkpoint left off, if there is one.

        On other ranks than 0 the weights follow when the engine prepares model and optimizer.
        """
        small = self._engine.broadcast(on_every_rank(self._engine, lambda: self._load(state)))
        if small is not None:
            state.restore_small(small)

    def _load(self, state: TrainState) -> dict[str, Any] | None:
        if self._engine.rank != 0:
            return None
        loaded = self._find()
        if loaded is None:
            return None
        changes = differences(state, loaded.state)
        state.restore(loaded.state)
        self._note(f"resumed from {loaded.path}: {'; '.join(changes) if changes else 'everything as it was'}")
        if self.saver is not None and loaded.path.parent == self._folder.folder:
            self.saver.saved_at = loaded.path.stat().st_mtime
        return {name: loaded.state[name] for name in SMALL}

    def _find(self) -> Loaded | None:
        if self._resumes_elsewhere and self._folder is not None and self._folder.steps():
            self._note(f"--resume {self._settings.resume}: this run has begun from it, and has its own checkpoints now")
            return self._folder.newest_whole(self._note)
        if self._settings.resume not in ("auto", "never"):
            return load(Path(self._settings.resume))
        if self._folder is None:
            return None
        if self._settings.resume == "auto":
            return self._folder.newest_whole(self._note)
        if self._folder.steps():
            # Their steps may be higher than ours will be: a later --resume auto would take up the wrong run.
            raise InputError(
                f"--resume never: {self._folder.folder} has checkpoints of an earlier run; choose another --output, "
                "delete them, or go on with --resume auto."
            )
        return None

    @property
    def _resumes_elsewhere(self) -> bool:
        """Whether --resume names a checkpoint of another run: one in our own folder means 'back to this one'."""
        if self._settings.resume in ("auto", "never") or self._settings.output is None:
            return False
        return Path(self._settings.resume).resolve().parent != (self._settings.output / "checkpoints").resolve()

    @property
    def way_on(self) -> str:
        """How a person goes on from the last checkpoint."""
        if self._settings.resume == "auto" or self._resumes_elsewhere:
            return "the same command goes on from there"
        return "the same command with --resume auto goes on from there"

    def agreed(self, state: TrainState) -> None:
        """The ranks have just agreed on how the run goes; an elastic run commits here."""

    def save(self, state: TrainState, *, wait: bool = False) -> None:
        """Save the run as it is now. Every rank must call this; only rank 0 writes, beside the next steps."""
        if not self.enabled:
            return
        if state.progress != self._handed_over:
            try:
                state.check_weights()  # equal on all ranks, so all of them leave or none
            except HvdkitError as error:
                raise AllRanksLeave(f"{error}, so no good checkpoint was written over; try a lower --lr.") from None
            captured = state.capture()
            if self.saver is not None:
                self.saver.save(state.progress.step, captured)
            self._handed_over = replace(state.progress)
        if wait:
            self._wait(state.progress.step)

    def _wait(self, step: int) -> None:
        """Return when the checkpoint of this step is on the disk; all ranks leave when it will never be."""
        if self.saver is not None:
            self.saver.wait()
        if not self._engine.broadcast(self.saver is None or self.saver.saved_step == step):
            raise AllRanksLeave(
                f"the last checkpoint, of step {step}, was not saved (the reason is above); free some space or mend "
                "the disk, and run the same command again: it goes on from the checkpoint before."
            )

    @property
    def newest(self) -> str | None:
        """The path of the newest checkpoint that is on the disk."""
        return str(self.saver.saved_path) if self.saver is not None and self.saver.saved_path is not None else None

    def close(self) -> None:
        """Return when every checkpoint is on the disk."""
        if self.saver is not None:
            self.saver.close()
