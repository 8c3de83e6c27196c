"""The ideal: as many processes as a point has ranks, with the same work and nothing to say to each other.

    python -m hvdkit.bench.independent --barrier FOLDER --count 4 --max-steps 100 …    one of four

Without a folder in common, as in pods, they meet once through torch.distributed (torchrun's variables), before their
first step.

What they lose against one process alone, the machine takes (shared cores, caches, memory): no network is to blame.
"""

import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import click

from hvdkit.cli.train import FIELDS, settings_options
from hvdkit.errors import HvdkitError
from hvdkit.runtime import late_compiler
from hvdkit.runtime.engine import Reduction, pick_device
from hvdkit.runtime.single_engine import SingleEngine, SinglePrepared
from hvdkit.runtime.stop import StopRequest
from hvdkit.train.settings import TrainSettings
from hvdkit.train.start import train

PATIENCE = 120.0  # seconds that the slowest process may take to get ready


class IndependentEngine(SingleEngine):
    """One process that starts its first step together with the others and is alone from then on."""

    def __init__(self, barrier: Path | None, count: int) -> None:
        late_compiler.put_off()  # as in the ranks that they are compared with
        super().__init__()
        self._barrier = barrier
        self._count = count
        # To each other they are nobody, but on one host they share GPUs and ports.
        self.local_rank = int(os.environ.get("LOCAL_RANK") or os.environ.get("HOROVOD_LOCAL_RANK") or 0)
        self.device = pick_device(local_rank=self.local_rank)

    def prepare(self, model: object, optimizer: object, reduction: Reduction | None = None) -> SinglePrepared:
        prepared = super().prepare(model, optimizer, reduction)
        if self._barrier is None:
            meet_in_pods(self._count)
        else:
            meet_in_folder(self._barrier, self._count)
        return prepared


def meet_in_folder(folder: Path, count: int) -> None:
    """Return when so many processes of this machine are here."""
    (folder / str(os.getpid())).touch()
    deadline = time.monotonic() + PATIENCE
    while len(list(folder.iterdir())) < count:
        if time.monotonic() > deadline:
            raise _late(count)
        time.sleep(0.002)


def meet_in_pods(count: int) -> None:
    """Return when so many ranks, wherever they are, are here; nothing of the connection stays."""
    import torch.distributed as dist

    try:
        dist.init_process_group("gloo", timeout=timedelta(seconds=PATIENCE))
        if dist.get_world_size() != count:
            raise HvdkitError(f"{dist.get_world_size()} independent processes came instead of {count}.")
        dist.barrier()
        dist.destroy_process_group()
    except (RuntimeError, ValueError) as error:  # as torch has it: too late, or no such variables
        raise _late(count) from error


def _late(count: int) -> HvdkitError:
    return HvdkitError(f"not all of the {count} independent processes were ready in {PATIENCE:g} s.")


@click.command()
@click.option("--barrier", type=click.Path(path_type=Path, exists=True))
@click.option("--count", type=int, required=True)
@settings_options
def main(barrier: Path | None, count: int, **flags) -> None:
    stop = StopRequest().listen()
    try:
        settings = TrainSettings(**{FIELDS.get(name, name): value for name, value in flags.items()})
        train(settings, IndependentEngine(barrier, count), stop)
    except HvdkitError as error:
        click.echo(f"hvdkit: {error}", err=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
