"""Synthetic digits as a data set: needs no files, and a model really learns them."""

from hvdkit.train.datasets import digits
from hvdkit.train.datasets.memory import MemorySource
from hvdkit.train.datasets.source import DataSet
from hvdkit.train.settings import TrainSettings

# MNIST's, which the digits stand in for, so that the same recipe fits both.
MEAN, DEVIATION = 0.1307, 0.3081
_SHIFT = 2
_FEWEST_TESTS = 1000  # with fewer, the accuracy says little
MOST_DRAWN = 60_000  # as many as MNIST has; more would only take memory and time in every rank


def make(settings: TrainSettings) -> DataSet:
    """As many images as asked for and a sixth of that to test with; the same on every rank.

    Beyond MOST_DRAWN images come again, and tests are no more: a long epoch is for benchmarks, which must not meet its
    end.
    """
    count = settings.synthetic_images
    test_count = max(min(count, MOST_DRAWN) // 6, min(count, _FEWEST_TESTS))
    train_seed, test_seed = 2 * settings.seed % 2**63, (2 * settings.seed + 1) % 2**63
    side = settings.image_size or digits.SIDE
    return DataSet(
        train=_source(count, train_seed, side),
        test=_source(test_count, test_seed, side),
        name="synthetic digits",
        classes=10,
        channels=1,
        image_size=side,
        mean=(MEAN,),
        deviation=(DEVIATION,),
    )


def _source(count: int, seed: int, side: int) -> MemorySource:
    images, labels = digits.make(min(count, MOST_DRAWN), seed)
    # Kept small and resized batch by batch: 60,000 images of 224 x 224 would take 3 GB in every rank.
    resized = None if side == digits.SIDE else side
    again = count if count > MOST_DRAWN else None
    return MemorySource(images=images.unsqueeze(1), labels=labels, shift=_SHIFT, flip=False, side=resized, count=again)
