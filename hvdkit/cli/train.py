"""`hvdkit train`: the training that every rank runs, alone or under a launcher."""

import os
from pathlib import Path

import click

from hvdkit.errors import InputError
from hvdkit.runtime.engine import ENGINES
from hvdkit.train import settings as choices
from hvdkit.train.settings import DATA_SETS, TrainSettings

EXAMPLES = """\b
Examples:
  hvdkit train                                     one process
  hvdkit launch --workers 2 -- hvdkit train        two Horovod ranks on this machine
  horovodrun -np 2 hvdkit train --data mnist       the same under stock horovodrun
  torchrun --nproc-per-node 2 -m hvdkit.train      two DDP ranks
  hvdkit train --model resnet18 --data cifar10 --data-dir /data --epochs 30 --lr 0.1
  hvdkit train --output runs/a --checkpoint-every 500   run again: goes on where it stopped
  hvdkit train --model mypackage.nets:make_net --data mypackage.data:load
"""

FOLDER = click.Path(path_type=Path, file_okay=False)

# Flag → parameters of click.option; the default of each stands in TrainSettings, so that there is only one.
OPTIONS: dict[str, dict] = {
    "--data": {"help": f"{', '.join(DATA_SETS)}, or your own as module:function."},
    "--data-dir": {
        "type": click.Path(path_type=Path),
        "help": "Folder with the data. Without it: HVDKIT_DATA_DIR, ../shared/data, the cache, else a download.",
    },
    "--cache-dir": {"type": FOLDER, "help": "Local folder for copies of the files, so that NFS is read only once."},
    "--augment": {"type": click.Choice(choices.AUGMENT), "help": "Random shifts, crops and flips in training."},
    "--image-size": {"type": int, "help": "Side of the images, for imagefolder (224) and synthetic (28)."},
    "--synthetic-images": {"type": int, "help": "Training images of --data synthetic; beyond 60,000 they repeat."},
    "--loader-workers": {"type": int, "help": "Processes a rank that load data; chosen by itself if not given."},
    "--model": {"help": "mnist-cnn, a torchvision classifier, or your own as module:function."},
    "--channels-last": {"is_flag": True, "help": "Channels innermost in memory; faster on many GPUs."},
    "--compile": {"is_flag": True, "help": "Compile the model with torch.compile."},
    "--precision": {"type": click.Choice(choices.PRECISIONS), "help": "Weights in fp32 or bf16, or autocast (amp-…)."},
    "--loss-scale": {"type": float, "help": "First loss scale of amp-fp16."},
    "--epochs": {"type": int, "help": "Passes over the training data."},
    "--max-steps": {"type": int, "help": "Stop after so many steps."},
    "--batch-size": {"type": int, "help": "Images a forward pass, on each rank."},
    "--accumulate": {"type": int, "help": "Forward and backward passes a step."},
    "--lr": {"type": float, "help": "Learning rate of one rank."},
    "--lr-scaling": {
        "type": click.Choice(choices.LR_SCALINGS),
        "help": "How it grows with ranks x --accumulate, over the warm-up.",
    },
    "--warmup": {"type": float, "help": "Share of the training that the warm-up takes."},
    "--schedule": {"type": click.Choice(choices.SCHEDULES), "help": "How the learning rate falls after it."},
    "--momentum": {"type": float, "help": "Of SGD with Nesterov's look ahead; 0 for none."},
    "--weight-decay": {"type": float, "help": "Pulls weights towards 0."},
    "--label-smoothing": {"type": float, "help": "Share of each label spread over all classes."},
    "--clip": {
        "type": float,
        "help": "Largest norm of the world's mean gradient; 0: none. If not given, 1 for mnist-cnn, none for others.",
    },
    "--seed": {"type": int, "help": "Of weights, order, augmentation and synthetic data."},
    "--deterministic": {"is_flag": True, "help": "The same bits in every run of the same world; slower."},
    "--compression": {"type": click.Choice(choices.COMPRESSION), "help": "What gradients travel as."},
    "--reduction": {"type": click.Choice(choices.REDUCTIONS), "help": "How gradients of the ranks become one."},
    "--groups": {"type": int, "help": "Reduce gradients in so many groups; 0: as they come."},
    "--output": {"type": FOLDER, "help": "Folder for metrics.jsonl and checkpoints."},
    "--checkpoint-every": {"type": int, "help": "Steps between checkpoints; without it one an epoch."},
    "--keep": {"type": int, "help": "Checkpoints kept."},
    "--resume": {"help": "auto: from the newest whole checkpoint in --output; never; or a checkpoint's path."},
    "--tensorboard": {"type": FOLDER, "help": "Folder for TensorBoard's files."},
    "--metrics-port": {
        "type": int,
        "envvar": "HVDKIT_METRICS_PORT",  # a job's --metrics-port
        "help": "Prometheus metrics on this port + local rank.",
    },
    "--pushgateway": {"help": "Pushgateway for the result, as host:port or URL."},
    "--report-seconds": {"type": float, "help": "Seconds between two lines of output."},
    "--result-lines": {"is_flag": True, "help": "Print the result as HVDKIT_RESULT lines, for benchmarks."},
    "--skip-evaluation": {"is_flag": True, "help": "Leave the test images alone, for benchmarks."},
    "--elastic": {"is_flag": True, "help": "Go on when ranks come and go, under horovodrun --min-np."},
}
FIELDS = {"lr": "learning_rate"}  # where the flag is shorter than the field


def settings_options(function):
    """A flag for each field of TrainSettings."""
    for flag, parameters in reversed(OPTIONS.items()):
        name = flag.removeprefix("--").replace("-", "_")
        field = TrainSettings.__dataclass_fields__[FIELDS.get(name, name)]
        shown = field.default is not None and not parameters.get("is_flag")
        function = click.option(flag, default=field.default, show_default=shown, **parameters)(function)
    return function


@click.command(epilog=EXAMPLES)
@settings_options
@click.option(
    "--engine",
    type=click.Choice(ENGINES),
    default="auto",
    show_default=True,
    help="What reduces gradients; auto: horovod under hvdkit, mpirun and horovodrun, ddp under torchrun, else single.",
)
@click.option("--timeline", type=click.Path(), help="Record Horovod's timeline in this file.")
@click.option("--autotune", is_flag=True, help="Let Horovod tune itself while it trains.")
@click.option("--json", "as_json", is_flag=True, help="Result as JSON on stdout; progress goes to stderr.")
def command(engine: str, timeline: str | None, autotune: bool, as_json: bool, **flags) -> None:
    """Train a model on this rank; started alone, on one process.

    Asked to stop (SIGTERM), all ranks finish the same step, save a checkpoint and leave with exit code 75; the
    same command then goes on from there. SIGQUIT prints the stacks of a rank.
    """
    import gc

    from hvdkit.runtime import stacks
    from hvdkit.runtime.stop import StopRequest

    # Both before the slow imports below: a rank can be asked from its first second on.
    stop = StopRequest().listen()
    stacks.install()
    settings = TrainSettings(**{FIELDS.get(name, name): value for name, value in flags.items()})
    set_horovod_variables(settings, timeline, autotune)

    from hvdkit.runtime.session import session

    gc.disable()
    with session(engine) as world:
        from hvdkit.train.start import train

        # Torch and the rest stay until the end: Python need not look through them for garbage again and again, least of
        # all when it leaves, which took a quarter of a short rank's time.
        gc.freeze()
        gc.enable()
        summary = train(settings, world, stop, to_stderr=as_json)
        if as_json and world.rank == 0:
            import json

            from hvdkit.train.history import VERSION, plain

            print(json.dumps(plain({"version": VERSION, **summary})), flush=True)


def set_horovod_variables(settings: TrainSettings, timeline: str | None, autotune: bool) -> None:
    """Horovod reads its settings from the environment, once, when it starts."""
    if autotune and settings.deterministic:
        raise InputError("--autotune changes the order of additions as it searches; leave out it or --deterministic.")
    if settings.deterministic:
        # Which gradients share a buffer depends on when they are ready, and with it the order of additions.
        os.environ["HOROVOD_FUSION_THRESHOLD"] = "0"
    if timeline is not None:
        os.environ["HOROVOD_TIMELINE"] = str(Path(timeline).absolute())
    if autotune:
        from hvdkit.jobs.tuning import AUTOTUNE, leave_to_autotune

        os.environ[AUTOTUNE] = "1"
        leave_to_autotune(os.environ)  # `hvdkit launch` did not know of it
