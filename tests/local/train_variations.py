"""Run by two ranks (test_train_engines.py): trains with one setting after another and compares with one process.

Many short trainings in one world, because starting a world takes longer than any of them.
"""

import hashlib
import json
import os
import sys
from pathlib import Path

import torch

from hvdkit.errors import HvdkitError
from hvdkit.runtime import amx
from hvdkit.runtime.session import session
from hvdkit.runtime.single_engine import SingleEngine
from hvdkit.runtime.stop import StopRequest
from hvdkit.train import loop
from hvdkit.train.checkpoints import CheckpointFolder
from hvdkit.train.history import read
from hvdkit.train.settings import TrainSettings
from hvdkit.train.start import train
from hvdkit.train.state import TrainState

COMMON = {
    "data": "synthetic",
    "synthetic_images": 600,
    "model": "mnist-cnn",
    "lr_scaling": "none",
    "max_steps": 20,
    "epochs": 2,
    "report_seconds": 1e-6,  # every step is an interval, with its own loss
}
# Setting of the two ranks → that of one process which must come to the same.
EXACT = {
    "plain": ({"batch_size": 16}, {"batch_size": 32}),
    "accumulate": ({"batch_size": 8, "accumulate": 2}, {"batch_size": 32}),
    "clip": ({"batch_size": 16, "clip": 0.05}, {"batch_size": 32, "clip": 0.05}),
    "sum": (
        {"batch_size": 16, "reduction": "sum", "learning_rate": 0.01, "clip": 0.05},
        {"batch_size": 32, "clip": 0.05},
    ),
    # The last step of an epoch has 5 images for one rank and 4 for the other.
    "uneven": (
        {"synthetic_images": 57, "epochs": 5, "batch_size": 8},
        {"synthetic_images": 57, "epochs": 5, "batch_size": 16},
    ),
    "channels-last": ({"batch_size": 16, "channels_last": True}, {"batch_size": 32}),
    "smoothing, decay": (
        {"batch_size": 16, "label_smoothing": 0.1, "weight_decay": 0.01},
        {"batch_size": 32, "label_smoothing": 0.1, "weight_decay": 0.01},
    ),
    "deterministic": ({"batch_size": 16, "deterministic": True}, {"batch_size": 32}),
    "loader workers": (
        {"batch_size": 16, "loader_workers": 1, "augment": "standard"},
        {"batch_size": 32, "augment": "standard"},
    ),
}
GROUPS = {
    "groups": ({"batch_size": 16, "groups": 3}, {"batch_size": 32}),
    # The last step of an epoch has 5 images for one rank and 4 for the other.
    "uneven groups": (
        {"synthetic_images": 57, "epochs": 5, "batch_size": 4, "accumulate": 2, "groups": 2},
        {"synthetic_images": 57, "epochs": 5, "batch_size": 16},
    ),
}
# These round differently by design; they must train, and alike on both ranks.
ROUGH = {
    "fp16 on the wire": {"batch_size": 16, "compression": "fp16"},
    "bf16 weights": {"batch_size": 16, "precision": "bf16"},
    "amp-bf16": {"batch_size": 16, "precision": "amp-bf16", "clip": 1.0},
    # Few images: CPUs compute with fp16 very slowly.
    "few images": {"batch_size": 4, "clip": 1.0},
    "amp-fp16": {"batch_size": 4, "precision": "amp-fp16", "loss_scale": 2.0**24, "clip": 1.0},
    "compiled": {"batch_size": 16, "compile": True},
    "resnet18": {"batch_size": 4, "model": "resnet18", "max_steps": 3},
}
ADASUM = {"adasum": {"batch_size": 16, "reduction": "adasum"}}


class Watched(TrainState):
    """Remembers the model of the last training, on every rank."""

    last: TrainState

    def capture(self) -> dict:
        Watched.last = self
        return super().capture()


def alike(engine) -> bool:
    """Whether all ranks ended with the same weights, bit for bit."""
    own = hashlib.sha256(b"".join(p.detach().float().numpy().tobytes() for p in Watched.last.model.parameters()))
    return len(set(engine.gather(own.hexdigest()))) == 1


def outcome(engine, output: Path, **changes) -> tuple[list[float], dict[str, torch.Tensor]]:
    """The loss of each step and the last weights of a training."""
    train(TrainSettings(output=output, **COMMON | changes), engine, StopRequest())
    return read_outcome(output)


def read_outcome(output: Path) -> tuple[list[float], dict[str, torch.Tensor]]:
    losses = [line["loss"] for line in read(output / "metrics.jsonl") if line["kind"] == "interval"]
    loaded = CheckpointFolder(output / "checkpoints").newest_whole(print)
    return losses, {name: tensor.float() for name, tensor in loaded.state["model"].items()}


def main(folder: Path) -> None:
    loop.TrainState = Watched
    amx.leave_out_if_broken()  # each training does that, but here they share a process, and the first has no bfloat16
    with session("auto") as engine:
        horovod_mpi = engine.library == "MPI"
        found = {}
        exact = EXACT | (GROUPS if engine.name == "horovod" else {})
        same = {}
        for name, (ours, _) in exact.items():
            train(TrainSettings(output=folder / name.replace(" ", "-"), **COMMON | ours), engine, StopRequest())
            same[name] = alike(engine)
            torch.use_deterministic_algorithms(False)
        for number, (name, (_, theirs)) in enumerate(exact.items()):
            if number % engine.size == engine.rank:  # side by side: a rank that waits takes the other's processor
                output = folder / name.replace(" ", "-")
                losses, weights = read_outcome(output)
                alone, weights_alone = outcome(SingleEngine(), output.with_name(f"{output.name}-alone"), **theirs)
                found[name] = {
                    "losses": losses,
                    "alike": same[name],
                    "alone": alone,
                    "weights": max(float((weights[key] - weights_alone[key]).abs().max()) for key in weights),
                }
        found = {name: values for part in engine.gather(found) for name, values in part.items()}
        for name, changes in (ROUGH | (ADASUM if horovod_mpi else {})).items():
            output = folder / name.replace(" ", "-")
            try:
                train(TrainSettings(output=output, **COMMON | changes), engine, StopRequest())
            except HvdkitError as error:
                found[name] = {"error": str(error)}
                continue
            same = alike(engine)
            if engine.rank == 0:
                intervals = [line for line in read(output / "metrics.jsonl") if line["kind"] == "interval"]
                found[name] = {"losses": [line["loss"] for line in intervals], "alike": same}
        if engine.rank == 0:
            (folder / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main(Path(sys.argv[1]))
