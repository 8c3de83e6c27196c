"""What each rank of tests/soak/bench_verdicts.py runs: several trainings in one world, each with a fault of its own.

    hvdkit launch … -- python tests/local/bench_verdict_ranks.py FOLDER

FOLDER/todo.json says which. A world's start takes longer than a training of a few steps, so one start serves many. What
a training prints, its result above all, goes to a file of its own: FOLDER/<number of the training>-<rank>.log.
"""

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from hvdkit.bench.independent import IndependentEngine
from hvdkit.bench.points import IDEAL
from hvdkit.cli.train import FIELDS, settings_options
from hvdkit.runtime.session import session
from hvdkit.runtime.stop import StopRequest
from hvdkit.train.settings import TrainSettings
from hvdkit.train.start import train


@click.command()
@settings_options
def read(**flags: Any) -> TrainSettings:
    return TrainSettings(**{FIELDS.get(name, name): value for name, value in flags.items()})


@contextlib.contextmanager
def joined(engine: str) -> Iterator[Any]:
    """Horovod's world; independent processes have none."""
    if engine == IDEAL:
        yield None
    else:
        with session(engine) as world:
            yield world


def main() -> None:
    folder = Path(sys.argv[1])
    todo = json.loads((folder / "todo.json").read_text())
    stop = StopRequest().listen()
    with joined(todo["engine"]) as world:
        for number, training in enumerate(todo["trainings"]):
            os.environ.update(training["env"])  # the size of the fault
            engine = world or IndependentEngine(folder / f"barrier-{number}", todo["ranks"])
            rank = engine.local_rank  # all of them are on this machine
            with (folder / f"{number}-{rank}.log").open("w") as log, contextlib.redirect_stdout(log):
                train(read.main(args=training["words"], standalone_mode=False), engine, stop)


if __name__ == "__main__":
    main()
