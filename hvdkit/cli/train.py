"""`hvdkit train`: the training that every rank runs, alone or under a launcher."""

from pathlib import Path

import click

from hvdkit.runtime.engine import ENGINES
from hvdkit.train.settings import DATA_SETS, MODELS, TrainSettings

EXAMPLES = """\b
Examples:
  hvdkit train                                   one process
  hvdkit launch --workers 2 -- hvdkit train      two Horovod ranks on this machine
  horovodrun -np 2 hvdkit train --epochs 3       the same under stock horovodrun
  hvdkit train --data synthetic --json           no files needed, result as JSON
"""


@click.command(epilog=EXAMPLES)
@click.option("--data", default="mnist", show_default=True, help=f"Data set: {' or '.join(DATA_SETS)}.")
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    help="Folder with MNIST/raw/*.gz. Without it: HVDKIT_DATA_DIR, ../shared/data, else a download; when that "
    "fails, synthetic digits.",
)
@click.option("--model", default="mnist-cnn", show_default=True, help=f"Model: {' or '.join(MODELS)}.")
@click.option("--epochs", type=int, default=1, show_default=True, help="Passes over the training data.")
@click.option("--batch-size", type=int, default=64, show_default=True, help="Images a step, on each rank.")
@click.option("--lr", type=float, default=0.02, show_default=True, help="Learning rate; x world size after warm-up.")
@click.option("--seed", type=int, default=1, show_default=True, help="Of weights, order and synthetic data.")
@click.option(
    "--engine",
    type=click.Choice(ENGINES),
    default="auto",
    show_default=True,
    help="What reduces gradients; auto is horovod under a launcher, else single.",
)
@click.option("--output", type=click.Path(path_type=Path), help="Folder for metrics.jsonl.")
@click.option("--json", "as_json", is_flag=True, help="Result as JSON on stdout; progress goes to stderr.")
def command(
    data: str,
    data_dir: Path | None,
    model: str,
    epochs: int,
    batch_size: int,
    lr: float,
    seed: int,
    engine: str,
    output: Path | None,
    as_json: bool,
) -> None:
    """Train a model on this rank; started alone, on one process.

    Asked to stop (SIGTERM), all ranks finish the same step and leave with exit code 75. SIGQUIT prints
    the stacks of a rank.
    """
    from hvdkit.runtime import stacks
    from hvdkit.runtime.stop import StopRequest

    # Both before the slow imports below: a rank can be asked from its first second on.
    stop = StopRequest().listen()
    stacks.install()
    settings = TrainSettings(
        data=data,
        data_dir=data_dir,
        model=model,
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=lr,
        seed=seed,
        output=output,
    )

    from hvdkit.runtime.session import session

    with session(engine) as world:
        from hvdkit.train.loop import run

        summary = run(settings, world, stop, lambda line: print_now(line, to_stderr=as_json))
        if as_json and world.rank == 0:
            import json

            from hvdkit.train.history import VERSION

            print_now(json.dumps({"version": VERSION, **summary}))


def print_now(line: str, to_stderr: bool = False) -> None:
    """Print at once: behind a pipe a line would otherwise wait for the buffer to fill."""
    import sys

    print(line, file=sys.stderr if to_stderr else sys.stdout, flush=True)
