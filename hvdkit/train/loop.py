"""The training loop: reads top to bottom, and does not know which engine it has."""

import math
import time
from collections.abc import Callable

import torch
from torch.nn.functional import cross_entropy

from hvdkit.errors import EXIT_RESTART_ME
from hvdkit.runtime.engine import Engine
from hvdkit.runtime.session import AllRanksLeave, on_every_rank
from hvdkit.runtime.stop import StopRequest
from hvdkit.train import models
from hvdkit.train.data import Samples, evaluation_batches, load, training_batches
from hvdkit.train.history import History
from hvdkit.train.schedule import learning_rate
from hvdkit.train.settings import TrainSettings

WINDOW = 10  # steps between two agreements of the ranks; a request to stop waits no longer than this
REPORT = 10  # windows between two lines of output
WARMUP_SHARE = 0.1  # of all steps; longer gains nothing on one epoch of MNIST
EVALUATION_BATCH = 1000  # larger than in training: there are no gradients to keep
TABLE_ROWS = 32  # a person reads no longer table of ranks
MEAN, DEVIATION = 0.1307, 0.3081  # of MNIST's pixels between 0 and 1


def run(
    settings: TrainSettings, engine: Engine, stop: StopRequest, print_line: Callable[[str], None]
) -> dict[str, object]:
    """Train, evaluate after each epoch, and return the summary."""
    say = print_line if engine.rank == 0 else _say_nothing
    history = on_every_rank(engine, lambda: History(settings.output if engine.rank == 0 else None))
    for line in describe_world(engine):
        say(line)

    data = load(settings, engine, say)
    train, test = (Samples(*(part.to(engine.device) for part in half)) for half in (data.train, data.test))

    torch.manual_seed(settings.seed)
    model = models.create(settings.model).to(engine.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=settings.learning_rate, momentum=0.9, nesterov=True)
    optimizer = engine.prepare(model, optimizer)

    steps_per_epoch = math.ceil(len(train.labels) / (settings.batch_size * engine.size))
    steps = settings.epochs * steps_per_epoch
    warmup = round(steps * WARMUP_SHARE)
    say(
        f"{settings.model} on {data.name}: {len(train.labels):,} images, "
        f"{plural(settings.epochs, 'epoch')} of {steps_per_epoch} steps, batch {settings.batch_size} x "
        f"{engine.size}, learning rate {settings.learning_rate:g} x {engine.size}"
    )

    step = 0
    windows: list[tuple[float, int, float]] = []  # mean loss, images of the world, seconds
    for epoch in range(settings.epochs):
        model.train()
        loss_sum = torch.zeros((), device=engine.device)
        images, losses, began = 0, 0, time.perf_counter()
        for indices, world_batch in training_batches(
            len(train.labels), settings.batch_size, epoch, settings.seed, engine.rank, engine.size
        ):
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step, steps, settings.learning_rate, engine.size, warmup)
            optimizer.zero_grad()
            output = model(normalise(train.images[indices]))
            # Summed here and divided by the world's batch: the mean over ranks is then the mean over
            # samples, also in the last step, where ranks have unequal shares.
            loss = cross_entropy(output, train.labels[indices], reduction="sum") * engine.size / world_batch
            loss.backward()
            optimizer.step()
            step += 1
            loss_sum += loss.detach()
            images += world_batch
            losses += 1

            if step % WINDOW == 0 or step % steps_per_epoch == 0:
                agreed = engine.average({"loss": loss_sum.item() / losses, "stop": bool(stop)})
                now = time.perf_counter()
                windows.append((agreed["loss"], images, now - began))
                loss_sum.zero_()
                images, losses, began = 0, 0, now
                leave_if_needed(agreed, step, steps, settings, engine)
                if len(windows) % REPORT == 0:
                    report(windows[-REPORT:], step, steps, epoch, say, history)

        correct, judged = evaluate(model, test, engine)
        if settings.epochs > 1:
            say(f"epoch {epoch + 1}: test accuracy {100 * correct / judged:.2f} %")

    summary = summarise(settings, engine, data.name, windows, correct, judged, steps)
    history.write("summary", **summary)
    say(
        f"test accuracy {summary['test_accuracy_percent']:.2f} % over {judged:,} images of {data.name}; "
        f"{summary['images_per_second']:,.0f} images/s over {plural(engine.size, 'rank')} "
        f"({'steps after warm-up' if len(windows) > 1 else 'all steps'})"
    )
    return summary


def describe_world(engine: Engine) -> list[str]:
    """A table of the ranks: where each one is, what it computes on, and which library reduces."""
    devices = engine.gather(_describe(engine.device))
    libraries = engine.gather(engine.library)
    rows = [("rank", "host", "device", "reduced by")]
    rows += [
        (str(rank), host, device, library)
        for rank, (host, device, library) in enumerate(zip(engine.hosts, devices, libraries, strict=True))
    ][:TABLE_ROWS]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    if engine.size > TABLE_ROWS:
        hosts = len(set(engine.hosts))
        lines.append(f"... {engine.size - TABLE_ROWS} more; {engine.size} ranks on {hosts} hosts in all")
    return [line.rstrip() for line in lines]


def normalise(images: torch.Tensor) -> torch.Tensor:
    """Bytes to the range that the model learns best from, with a dimension for the one channel."""
    return images.unsqueeze(1).float().div_(255).sub_(MEAN).div_(DEVIATION)


def leave_if_needed(agreed: dict[str, float], step: int, steps: int, settings: TrainSettings, engine: Engine) -> None:
    """All ranks see the same averages, so all of them leave here or none does."""
    if not math.isfinite(agreed["loss"]):
        raise AllRanksLeave(
            f"the loss is {agreed['loss']} at step {step} of {steps}; try a lower learning rate than "
            f"--lr {settings.learning_rate:g} (x {engine.size} ranks) and look for bad values in the data."
        )
    if agreed["stop"] > 0 and step < steps:
        raise AllRanksLeave(f"stopped after step {step} of {steps}, as asked.", EXIT_RESTART_ME)


def report(
    windows: list[tuple[float, int, float]],
    step: int,
    steps: int,
    epoch: int,
    say: Callable[[str], None],
    history: History,
) -> None:
    """One line for people and one for metrics.jsonl about the last windows."""
    loss = sum(loss for loss, _, _ in windows) / len(windows)
    pace = sum(images for _, images, _ in windows) / sum(seconds for _, _, seconds in windows)
    say(f"step {step}/{steps}  loss {loss:.4f}  {pace:,.0f} images/s")
    history.write("interval", step=step, epoch=epoch + 1, loss=loss, images_per_second=pace)


@torch.no_grad()
def evaluate(model: torch.nn.Module, test: Samples, engine: Engine) -> tuple[int, int]:
    """How many test images the model gets right, of how many; each image is judged on one rank."""
    model.eval()
    correct = judged = 0
    for indices in evaluation_batches(len(test.labels), EVALUATION_BATCH, engine.rank, engine.size):
        answers = model(normalise(test.images[indices])).argmax(dim=1)
        correct += int((answers == test.labels[indices]).sum())
        judged += len(indices)
    mean = engine.average({"correct": correct, "judged": judged})
    return round(mean["correct"] * engine.size), round(mean["judged"] * engine.size)


def summarise(
    settings: TrainSettings,
    engine: Engine,
    data_name: str,
    windows: list[tuple[float, int, float]],
    correct: int,
    judged: int,
    steps: int,
) -> dict[str, object]:
    """What came out, for `--json` and metrics.jsonl."""
    # The first window pays for allocation and first connections; with a single one there is no other.
    timed = windows[1:] or windows
    slowest = max(engine.gather(sum(seconds for _, _, seconds in timed)))
    return {
        "model": settings.model,
        "data": data_name,
        "ranks": engine.size,
        "hosts": len(set(engine.hosts)),
        "library": engine.library,
        "device": engine.device.type,
        "epochs": settings.epochs,
        "steps": steps,
        "test_accuracy_percent": 100 * correct / judged,
        "test_images": judged,
        "train_loss": windows[-1][0],
        "images_per_second": sum(images for _, images, _ in timed) / slowest,
    }


def plural(count: int, noun: str) -> str:
    """'1 rank', '2 ranks'."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _describe(device: torch.device) -> str:
    return f"{device} {torch.cuda.get_device_name(device)}" if device.type == "cuda" else "cpu"


def _say_nothing(line: str) -> None:
    pass
