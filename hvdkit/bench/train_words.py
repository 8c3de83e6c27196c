"""The training that every run of a sweep does, the same on all backends. Pure."""

from hvdkit.bench.points import Point, SweepSettings

MOST_SYNTHETIC = 60_000


def train_words(settings: SweepSettings, point: Point) -> list[str]:
    """The flags of `hvdkit train` for a run; the user's come last and win."""
    largest = max(settings.workers) * settings.slots
    world_batch = settings.batch_of_a_rank(largest) * largest
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
        # As many as the steps take, so that no run is disturbed by the end of an epoch.
        "--synthetic-images": max(world_batch, min(settings.steps * world_batch, MOST_SYNTHETIC)),
    }
    return [str(word) for pair in words.items() for word in pair] + [
        "--skip-evaluation",
        "--result-lines",
        *settings.train_args,
    ]
