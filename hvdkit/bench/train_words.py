"""The training that every run of a sweep does, the same on all backends. Pure."""

from itertools import pairwise

from hvdkit.bench.points import Point, SweepSettings


def train_words(settings: SweepSettings, point: Point) -> list[str]:
    """The flags of `hvdkit train` for a run; the user's come last and win."""
    largest = max(settings.workers) * settings.slots
    world_batch = settings.batch_of_a_rank(largest) * largest * _passes(settings)
    words = {
        "--model": settings.model,
        "--data": point.data,
        "--batch-size": settings.batch_of_a_rank(point.ranks),
        "--max-steps": settings.steps,
        "--epochs": 1_000_000,  # the steps decide
        # What is measured does not depend on them, and a loss that explodes would end the run.
        "--lr": 0.0001,
        "--lr-scaling": "none",
        "--warmup": 0,
        "--schedule": "constant",
        "--resume": "never",
        # As many as the steps take, so that no run is disturbed by the end of an epoch; of many, most are the same.
        "--synthetic-images": settings.steps * world_batch,
    }
    return [str(word) for pair in words.items() for word in pair] + [
        "--skip-evaluation",
        "--result-lines",
        *settings.train_args,
    ]


def _passes(settings: SweepSettings) -> int:
    """Batches of a rank in a step, if the user said so; nonsense is for `hvdkit train` to refuse."""
    passes = 1
    for word, value in pairwise((*settings.train_args, "")):
        given = value if word == "--accumulate" else word.removeprefix("--accumulate=")
        if word.startswith("--accumulate") and given.isdecimal():
            passes = max(1, int(given))
    return passes
