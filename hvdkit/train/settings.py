"""What a training run is told to do. Pure data; each field checks itself and the error names it."""

import difflib
import math
from dataclasses import dataclass
from pathlib import Path

from hvdkit.errors import InputError

DATA_SETS = ("mnist", "synthetic")
MODELS = ("mnist-cnn",)


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """The settings of one run."""

    data: str = "mnist"
    """Which data set."""

    data_dir: Path | None = None
    """Folder that holds it; None looks in HVDKIT_DATA_DIR and ../shared/data, then downloads."""

    model: str = "mnist-cnn"
    """Which model."""

    epochs: int = 1
    """Passes over the training data."""

    batch_size: int = 64
    """Images in a step of one rank; the world steps with size times as many."""

    learning_rate: float = 0.02
    """Of one rank; it is multiplied by the world size, because the world's batch is."""

    seed: int = 1
    """Of weights, order of samples and synthetic data."""

    output: Path | None = None
    """Folder for metrics.jsonl; None writes nothing."""

    def __post_init__(self) -> None:
        _require_known("data", self.data, DATA_SETS)
        _require_known("model", self.model, MODELS)
        if self.epochs < 1:
            raise InputError(f"--epochs is {self.epochs}; it must be 1 or more.")
        if self.batch_size < 1:
            raise InputError(f"--batch-size is {self.batch_size}; it must be 1 or more.")
        if not (math.isfinite(self.learning_rate) and self.learning_rate > 0):
            raise InputError(f"--lr is {self.learning_rate}; it must be a number above 0.")
        if not 0 <= self.seed < 2**63:
            raise InputError(f"--seed is {self.seed}; it must be 0 or more and fit in 63 bits.")


def _require_known(field: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        near = difflib.get_close_matches(value, known, n=1)
        hint = f"did you mean '{near[0]}'?" if near else f"there is {', '.join(known)}."
        raise InputError(f"--{field}: there is no '{value}'; {hint}")
