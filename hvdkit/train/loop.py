"""The training loop: reads top to bottom, and does not know which engine it has."""

import math
import time
from collections.abc import Iterable, Iterator

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from hvdkit.errors import EXIT_RESTART_ME
from hvdkit.runtime import random_state
from hvdkit.runtime.engine import Engine, Prepared, Reduction
from hvdkit.runtime.session import AllRanksLeave, on_every_rank
from hvdkit.runtime.stop import StopRequest
from hvdkit.train import datasets, models
from hvdkit.train.datasets.loader import Batch, Loader, default_workers
from hvdkit.train.datasets.sampling import step_bounds
from hvdkit.train.observer import Observer
from hvdkit.train.pace import Agreement, Pace, StepTime
from hvdkit.train.saving import Saving
from hvdkit.train.schedule import learning_rate
from hvdkit.train.settings import TrainSettings
from hvdkit.train.state import TrainState


def run(
    settings: TrainSettings, engine: Engine, stop: StopRequest, observer: Observer, saving: Saving
) -> dict[str, object]:
    """Train, evaluate after each epoch, and return the summary."""
    data = datasets.load(settings, engine, observer.note)
    state = on_every_rank(engine, lambda: create_state(settings, engine, data))
    saving.resume(state)
    prepared = on_every_rank(engine, lambda: prepare(state))
    loader, test_loader = create_loaders(settings, engine, data)
    observer.begin(state, data, steps_to_go(state, data))

    model, progress, pace = state.model, state.progress, Pace(engine, settings.report_seconds)
    samples, batch_factor = len(data.train), larger_steps(settings, engine)
    last_step = math.inf if settings.max_steps is None else settings.max_steps
    while progress.epoch < settings.epochs and progress.step < last_step:
        model.train()
        pace.start()
        for batch, data_wait in timed(loader.epoch(progress.epoch, progress.position)):
            set_learning_rate(prepared, learning_rate(progress.share(samples, settings.epochs), settings, batch_factor))
            loss, hits, times = train_step(state, prepared, data, batch, data_wait)
            progress.step += 1
            progress.position = batch.position
            pace.add(loss, hits, batch.world_count, times)
            observer.step(times, len(batch.labels))

            epoch_ends = progress.position == samples
            cut_short = progress.step >= last_step
            save_is_due = settings.checkpoint_every is not None and progress.step % settings.checkpoint_every == 0
            if pace.agreement_is_due or save_is_due or epoch_ends or cut_short:
                agreed = pace.agree(bool(stop))
                observer.interval(agreed, progress, saving)
                leave_if_needed(agreed, state, saving, done=cut_short)
                saving.agreed(state)
                if save_is_due or epoch_ends:  # an epoch is on its way to the disk before its long evaluation
                    saving.save(state)
            if cut_short:
                break
        if progress.position < samples:
            break  # by --max-steps, within an epoch
        if not settings.skip_evaluation:
            observer.evaluation(*evaluate(state, test_loader, data), progress)
        progress.epoch, progress.position = progress.epoch + 1, 0
        saving.save(state)

    # Not judged yet: cut short by --max-steps, or resumed from a run that was complete.
    if not observer.evaluated and not settings.skip_evaluation:
        observer.evaluation(*evaluate(state, test_loader, data), progress)
    saving.save(state, wait=True)
    saving.close()
    return observer.end(state, saving)


def create_state(settings: TrainSettings, engine: Engine, data: datasets.DataSet) -> TrainState:
    """Model and optimizer as they are before the first step."""
    torch.manual_seed(settings.seed)  # the same weights on every rank and in every engine
    model = models.create(settings.model, classes=data.classes, channels=data.channels, image_size=data.image_size)
    models.check(settings.model, model, datasets.first_image(data), data.classes)
    model = model.to(engine.device)
    if settings.channels_last:
        model = model.to(memory_format=torch.channels_last)
    state = TrainState(settings, engine, model, data.identity())
    random_state.seed_rank(settings.seed, engine.rank)
    return state


def prepare(state: TrainState) -> Prepared:
    """Connect the ranks: from here on a step is a step of the world."""
    settings = state.settings
    reduction = Reduction(
        op=settings.reduction,
        compression=settings.compression,
        accumulate=settings.accumulate,
        groups=settings.groups,
        deterministic=settings.deterministic,
    )
    prepared = state.engine.prepare(state.model, state.optimizer, reduction)
    state.optimizer = prepared.optimizer
    if settings.compile:
        prepared.model = torch.compile(prepared.model)
    return prepared


def create_loaders(settings: TrainSettings, engine: Engine, data: datasets.DataSet) -> tuple[Loader, Loader]:
    """What brings each rank its share of every training step, and of the test images."""
    workers = settings.loader_workers
    if workers is None:
        workers = default_workers(data.train, engine.device.type, torch.get_num_threads())
    common = {
        "seed": settings.seed,
        "rank": engine.rank,
        "size": engine.size,
        "workers": workers,
        "world_batch": world_batch(settings, engine),
        "pin_memory": engine.device.type == "cuda",
    }
    train = Loader(data.train, augment=datasets.augments(settings), **common)
    return train, Loader(data.test, augment=False, **common)


def larger_steps(settings: TrainSettings, engine: Engine) -> int:
    """How many times the step of one rank and one pass the world's step may be; summed gradients are larger already."""
    return settings.accumulate * (engine.size if settings.reduction == "average" else 1)


def world_batch(settings: TrainSettings, engine: Engine) -> int:
    """Images of all ranks in a step."""
    return settings.batch_size * settings.accumulate * engine.size


def steps_to_go(state: TrainState, data: datasets.DataSet) -> int:
    """Steps until the end of the last epoch."""
    settings, progress, size = state.settings, state.progress, state.engine.size
    batch = world_batch(settings, state.engine)

    def steps(first: int) -> int:
        return len(step_bounds(len(data.train), first, batch, size))

    if progress.epoch >= settings.epochs:
        return 0
    return steps(progress.position) + (settings.epochs - progress.epoch - 1) * steps(0)


def train_step(
    state: TrainState, prepared: Prepared, data: datasets.DataSet, batch: Batch, data_wait: float
) -> tuple[torch.Tensor, torch.Tensor, StepTime]:
    """One step of the world: this rank's share of loss and right answers, and where the time went."""
    settings, precision, device = state.settings, state.precision, state.engine.device
    begin = time.perf_counter()
    images = to_input(at_least_two(batch.images), data, state)
    labels = batch.labels.to(device, non_blocking=True)
    passes = passes_of(batch.world_count, settings, state.engine.size)
    loss_sum = torch.zeros((), device=device)
    hits = torch.zeros((), device=device, dtype=torch.int64)
    prepared.optimizer.zero_grad()
    for number, (some, answers) in enumerate(
        zip(images.tensor_split(passes), labels.tensor_split(passes), strict=True), start=1
    ):
        with prepared.backward_pass(last=number == passes):
            with precision.autocast():
                output = prepared.model(some)[: len(answers)]
            # Summed here and divided by the world's batch: the mean over ranks is then the mean over
            # samples, also in the last step of an epoch, where ranks have unequal shares.
            loss = cross_entropy(output.float(), answers, reduction="sum", label_smoothing=settings.label_smoothing)
            loss = loss * (state.engine.size / batch.world_count)
            forward_done = time.perf_counter()
            precision.backward(loss)
        loss_sum += loss.detach()
        hits += (output.detach().argmax(dim=1) == answers).sum()

    backward_done = time.perf_counter()
    prepared.synchronize()  # the gradients are those of the world now
    synchronized = time.perf_counter()
    precision.unscale(prepared.optimizer)
    if settings.clip:
        ranks_added = state.engine.size if settings.reduction == "sum" else 1
        nn.utils.clip_grad_norm_(state.model.parameters(), settings.clip * ranks_added)
    prepared.step(precision.scaler)
    precision.update()

    end = time.perf_counter()
    allreduce_wait = synchronized - backward_done if prepared.waits else 0.0
    # Where the wait hides in the backward pass, only what comes before it is surely this rank's own work.
    own = (end - begin - allreduce_wait if prepared.waits else forward_done - begin) + data_wait
    times = StepTime(total=data_wait + end - begin, data_wait=data_wait, allreduce_wait=allreduce_wait, own=own)
    return loss_sum, hits, times


def passes_of(world_count: int, settings: TrainSettings, size: int) -> int:
    """Forward and backward passes of a step: the same on every rank, and no pass of a single image."""
    largest, smallest = math.ceil(world_count / size), world_count // size
    return max(1, min(settings.accumulate, math.ceil(largest / settings.batch_size), smallest // 2))


def at_least_two(images: torch.Tensor) -> torch.Tensor:
    """Black images, whose answers nobody looks at, for a rank that has one image or none in a step.

    That happens only in the last step of an epoch that went on with more ranks than it began with; batch
    normalisation fails on one image, and every rank must take part in the backward pass.
    """
    return images if len(images) > 1 else torch.cat([images, images.new_zeros(2 - len(images), *images.shape[1:])])


def to_input(images: torch.Tensor, data: datasets.DataSet, state: TrainState) -> torch.Tensor:
    """Bytes to the range that a model learns best from; a user's own floating-point images stay as they are."""
    images = images.to(state.engine.device, non_blocking=True)
    if not images.is_floating_point():
        shape = (1, -1, 1, 1)
        mean = torch.tensor(data.mean, device=images.device).view(shape)
        deviation = torch.tensor(data.deviation, device=images.device).view(shape)
        images = images.float().div_(255).sub_(mean).div_(deviation)
    images = images.to(state.precision.weights)
    return images.contiguous(memory_format=torch.channels_last) if state.settings.channels_last else images


def set_learning_rate(prepared: Prepared, rate: float) -> None:
    for group in prepared.optimizer.param_groups:
        group["lr"] = rate


def timed(batches: Iterable[Batch]) -> Iterator[tuple[Batch, float]]:
    """Each batch, and the seconds that it was waited for."""
    begin = time.perf_counter()
    for batch in batches:
        yield batch, time.perf_counter() - begin
        begin = time.perf_counter()


def leave_if_needed(agreed: Agreement, state: TrainState, saving: Saving, *, done: bool) -> None:
    """All ranks know the same, so all of them leave here or none does."""
    step = state.progress.step
    if not math.isfinite(agreed.loss):
        raise AllRanksLeave(
            f"the loss is {agreed.loss} at step {step}; try a lower learning rate than --lr "
            f"{state.settings.learning_rate:g} and look for bad values in the data. Checkpoints stay as they were."
        )
    if agreed.stop and not done:
        saving.save(state, wait=True)
        saving.close()
        kept = saving.way_on if saving.enabled else "nothing was saved, for want of --output"
        raise AllRanksLeave(f"stopped after step {step}, as asked; {kept}.", EXIT_RESTART_ME)


@torch.no_grad()
def evaluate(state: TrainState, loader: Loader, data: datasets.DataSet) -> tuple[int, int, float]:
    """Right answers, images and mean loss over the test set; each image is judged on one rank."""
    engine, model = state.engine, state.model
    # BatchNorm's averages differ by rank, and all ranks must judge by the same model: rank 0's, which is saved.
    engine.broadcast_tensors(model.named_buffers())
    model.eval()
    judged = 0
    # Added up on the device, so that a GPU need not wait for each batch.
    correct = torch.zeros((), device=engine.device, dtype=torch.int64)
    loss = torch.zeros((), device=engine.device, dtype=torch.float64)
    # Batches as in training: where a step fits in memory, this does too.
    for images, labels in loader.evaluation(state.settings.batch_size):
        labels = labels.to(engine.device, non_blocking=True)
        with state.precision.autocast():
            output = model(to_input(images, data, state)).float()
        correct += (output.argmax(dim=1) == labels).sum()
        judged += len(labels)
        loss += cross_entropy(output, labels, reduction="sum")
    rows = engine.gather_numbers([correct.item(), judged, loss.item()])
    correct, judged, loss = (sum(column) for column in zip(*rows, strict=True))
    return int(correct), int(judged), loss / judged
