"""What a training run is told to do. Pure data; each field checks itself and the error names it."""

import difflib
import math
from dataclasses import dataclass
from pathlib import Path

from hvdkit.errors import InputError

DATA_SETS = ("mnist", "cifar10", "imagefolder", "synthetic")
AUGMENT = ("auto", "none", "standard")
COMPRESSION = ("none", "fp16")
REDUCTIONS = ("average", "sum", "adasum")
PRECISIONS = ("fp32", "bf16", "amp-bf16", "amp-fp16")
LR_SCALINGS = ("none", "linear", "sqrt")
SCHEDULES = ("constant", "cosine", "step")


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """The settings of one run."""

    # Data
    data: str = "mnist"
    """Which data set: one of DATA_SETS, or 'module:function' of the user's."""

    data_dir: Path | None = None
    """Folder that holds it; None looks in HVDKIT_DATA_DIR and ../shared/data, then downloads."""

    cache_dir: Path | None = None
    """Folder on a local disk that files are copied to on first use, so that later epochs do not touch NFS."""

    augment: str = "auto"
    """Random shifts, crops and flips of training images; auto: for photographs, not for digits."""

    image_size: int | None = None
    """Side of the images that the model sees, for imagefolder and synthetic; None: 224 and 28."""

    synthetic_images: int = 60_000
    """Training images of `synthetic`; a sixth as many test images come on top. Beyond 60,000 they repeat."""

    loader_workers: int | None = None
    """Processes a rank that load data; None: none for data in memory, else as many as its cores allow."""

    # Model
    model: str = "mnist-cnn"
    """mnist-cnn, a torchvision classifier by name, or 'module:function' of the user's."""

    channels_last: bool = False
    """Keep images and weights with channels innermost, which convolutions on tensor cores prefer."""

    compile: bool = False
    """Compile the model with torch.compile."""

    precision: str = "fp32"
    """fp32; bf16 weights; or autocast (amp-…), which keeps weights in fp32. amp-fp16 scales the loss."""

    loss_scale: float = 65536.0
    """The scale that amp-fp16 starts from; it adapts by itself."""

    # Recipe
    epochs: int = 1
    """Passes over the training data."""

    max_steps: int | None = None
    """Stop after so many steps, for benchmarks and trials; None: all of the epochs."""

    batch_size: int = 64
    """Images in a forward pass of one rank; the world steps with size x accumulate times as many."""

    accumulate: int = 1
    """Forward and backward passes whose gradients are added up before a step."""

    learning_rate: float = 0.02
    """Of one rank; lr_scaling says what a larger world makes of it."""

    lr_scaling: str = "linear"
    """How the learning rate grows with ranks x accumulate, since the world's batch does."""

    warmup: float = 0.1
    """Share of the training over which the learning rate rises from that of one rank to that of the world."""

    schedule: str = "cosine"
    """How it falls after the warm-up."""

    momentum: float = 0.9
    weight_decay: float = 0.0
    label_smoothing: float = 0.0
    clip: float | None = None
    """Largest norm of the world's mean gradient; larger ones are shortened to it. 0: none. If it is not given: 1 for
    mnist-cnn, which in larger worlds may learn nothing without (on 8 ranks it did not), and none for other models."""

    seed: int = 1
    """Of weights, order of samples, augmentation and synthetic data; dropout differs by rank."""

    deterministic: bool = False
    """Same result, bit for bit, in every run of the same world: no fused buffers, deterministic kernels."""

    # Reduction
    compression: str = "none"
    """What gradients travel as: fp16 halves the bytes and loses precision."""

    reduction: str = "average"
    """How the gradients of the ranks become one."""

    groups: int = 0
    """Gradients are reduced in so many groups at once; 0: each as it comes, fused by Horovod."""

    # Output
    output: Path | None = None
    """Folder for metrics.jsonl and checkpoints; None writes nothing."""

    checkpoint_every: int | None = None
    """Steps between checkpoints; None: at the end of each epoch."""

    keep: int = 3
    """Checkpoints kept, the newest ones."""

    resume: str = "auto"
    """auto: continue from the newest whole checkpoint in --output; never: start anew; or a checkpoint's path."""

    tensorboard: Path | None = None
    """Folder for TensorBoard's files."""

    metrics_port: int | None = None
    """Port of the Prometheus metrics of local rank 0; local rank r listens on this + r."""

    pushgateway: str | None = None
    """Pushgateway that gets the result at the end, as host:port or URL."""

    result_lines: bool = False
    """Print the result, with every rank's step times, as HVDKIT_RESULT lines that a benchmark reads from a log."""

    skip_evaluation: bool = False
    """Never judge the model on the test images: a benchmark has no use for it."""

    report_seconds: float = 5.0
    """Seconds between two lines of output."""

    elastic: bool = False
    """Go on when ranks come and go (under horovodrun with --min-np and --host-discovery-script)."""

    def __post_init__(self) -> None:
        _require_known("data", self.data, DATA_SETS, own_allowed=True)
        for flag in ("augment", "compression", "reduction", "precision", "lr_scaling", "schedule"):
            _require_known(flag.replace("_", "-"), getattr(self, flag), _CHOICES[flag])
        for flag in ("epochs", "batch_size", "accumulate", "synthetic_images", "keep"):
            _require(flag, getattr(self, flag), getattr(self, flag) >= 1, "it must be 1 or more")
        for flag in ("max_steps", "checkpoint_every", "image_size"):
            value = getattr(self, flag)
            _require(flag, value, value is None or value >= 1, "it must be 1 or more")
        _require("groups", self.groups, self.groups >= 0, "it must be 0 or more")
        workers = self.loader_workers
        _require("loader_workers", workers, workers is None or workers >= 0, "it must be 0 or more")
        _require("lr", self.learning_rate, _positive(self.learning_rate), "it must be a number above 0")
        _require("loss_scale", self.loss_scale, _positive(self.loss_scale), "it must be a number above 0")
        _require("report_seconds", self.report_seconds, _positive(self.report_seconds), "it must be above 0")
        clip = self.clip
        _require("clip", clip, clip is None or 0 <= clip < math.inf, "it must be a number above 0, or 0 for none")
        _require("weight_decay", self.weight_decay, 0 <= self.weight_decay < math.inf, "it must be 0 or more")
        for flag in ("momentum", "label_smoothing", "warmup"):
            value = getattr(self, flag)
            _require(flag, value, 0 <= value < 1, "it must be at least 0 and below 1")
        _require("seed", self.seed, 0 <= self.seed < 2**63, "it must be 0 or more and fit in 63 bits")
        self._check_reduction()
        port = self.metrics_port
        _require("metrics_port", port, port is None or 1 <= port <= 65535, "a port is 1 to 65535")
        if self.resume not in ("auto", "never") and not Path(self.resume).is_file():
            raise InputError(f"--resume: there is no file '{self.resume}'; say auto, never or a checkpoint's path.")

    def _check_reduction(self) -> None:
        if self.reduction != "adasum" and self.clip is None:
            object.__setattr__(self, "clip", _RECIPE_CLIPS.get(self.model))  # here, so that every record has it
        if self.reduction == "adasum" and self.clip:
            raise InputError("--clip: Adasum combines the steps of the ranks, not gradients; there is nothing to clip.")
        if self.reduction == "adasum" and self.precision == "amp-fp16":
            raise InputError("--precision amp-fp16: Adasum cannot skip an overflow on all ranks; use amp-bf16 or fp32.")


_RECIPE_CLIPS = {"mnist-cnn": 1.0}

_CHOICES = {
    "augment": AUGMENT,
    "compression": COMPRESSION,
    "reduction": REDUCTIONS,
    "precision": PRECISIONS,
    "lr_scaling": LR_SCALINGS,
    "schedule": SCHEDULES,
}


def is_own(name: str) -> bool:
    """Whether a model or data set is a user's 'module:function'."""
    module, colon, function = name.partition(":")
    return bool(colon) and function.isidentifier() and all(part.isidentifier() for part in module.split("."))


def unknown(field: str, value: str, known: tuple[str, ...], own_allowed: bool = False) -> InputError:
    """The error for a name that does not exist, with the nearest one that does."""
    near = difflib.get_close_matches(value, known, n=1)
    hint = f"did you mean '{near[0]}'?" if near else f"there is {', '.join(known)}."
    own = " Your own is named as module:function." if own_allowed else ""
    return InputError(f"--{field}: there is no '{value}'; {hint}{own}")


def _require_known(field: str, value: str, known: tuple[str, ...], own_allowed: bool = False) -> None:
    if value not in known and not (own_allowed and is_own(value)):
        raise unknown(field, value, known, own_allowed)


def _require(field: str, value: object, holds: bool, what: str) -> None:
    if not holds:
        raise InputError(f"--{field.replace('_', '-')} is {value}; {what}.")


def _positive(value: float) -> bool:
    return math.isfinite(value) and value > 0
