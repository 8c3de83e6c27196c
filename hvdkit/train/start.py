"""Starts a run on a rank, plain or elastic."""

import contextlib
import os
import sys

import torch

from hvdkit.errors import InputError
from hvdkit.runtime import amx
from hvdkit.runtime.engine import Engine
from hvdkit.runtime.stop import StopRequest
from hvdkit.train import loop
from hvdkit.train.observer import Observer
from hvdkit.train.saving import Saving
from hvdkit.train.settings import TrainSettings


def train(settings: TrainSettings, engine: Engine, stop: StopRequest, *, to_stderr: bool = False) -> dict[str, object]:
    """Train to the end and return the summary."""
    if settings.deterministic:
        make_deterministic()
    if settings.precision in ("bf16", "amp-bf16") and engine.device.type == "cpu":
        compute_without_broken_amx(engine)
    if settings.elastic:
        if engine.name != "horovod":
            raise InputError(f"--elastic needs --engine horovod; this is {engine.name}.")
        from hvdkit.train.elastic import train_elastic

        return train_elastic(settings, engine, stop, to_stderr=to_stderr)
    with (
        contextlib.closing(Observer(settings, engine, to_stderr=to_stderr)) as observer,
        contextlib.closing(Saving(settings, engine, observer.note)) as saving,
    ):
        return loop.run(settings, engine, stop, observer, saving)


def compute_without_broken_amx(engine: Engine) -> None:
    """A rank must not die of its first bfloat16 product."""
    if amx.leave_out_if_broken() and engine.rank == 0:
        print("hvdkit: AMX of this machine's processor does not work; bfloat16 goes without it.", file=sys.stderr)


def make_deterministic() -> None:
    """Kernels whose result does not depend on the order in which threads finish."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS refuses to be deterministic
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
