"""Which sample comes when, on which rank and with which random numbers: pure functions of seed and epoch.

Nothing here keeps a state, so a run that resumes in mid-epoch, on more or fewer ranks or with other loader workers,
goes on with exactly the samples and the augmentation that would have come.
"""

from itertools import pairwise

import numpy as np
import torch

DRAWS = 5
"""Random numbers a sample: a crop takes four, a flip one."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # odd, so that its multiples run through all 64-bit words
_DRAWS_STREAM, _ORDER_STREAM = 1, 2  # so that augmentation and order have nothing to do with each other


def draws(seed: int, epoch: int, indices: torch.Tensor) -> torch.Tensor:
    """The random numbers (float64, 0 <= x < 1, one row a sample) of these samples in that epoch."""
    counters = indices.numpy().astype(np.uint64)[:, None] * np.uint64(DRAWS) + np.arange(DRAWS, dtype=np.uint64)
    words = _words(counters, seed, epoch, _DRAWS_STREAM)
    return torch.from_numpy((words >> np.uint64(11)) * 2.0**-53)  # as many bits as a float64 holds


def order(count: int, epoch: int, seed: int) -> torch.Tensor:
    """The indices of all samples in the order of that epoch, the same on every rank."""
    words = _words(np.arange(count, dtype=np.uint64), seed, epoch, _ORDER_STREAM)
    return torch.from_numpy(np.argsort(words))  # no two words are equal, so that any sorting gives the same


def step_bounds(count: int, first: int, world_batch: int, size: int) -> list[tuple[int, int]]:
    """The steps from position `first` of an epoch's order to its end, as (begin, end) positions.

    A last step of fewer than 2 samples a rank joins the one before: batch normalisation fails on one sample, and
    every rank must take part in every step. Only what is left after a resume can be smaller than that.
    """
    begins = list(range(first, count, world_batch))
    if len(begins) > 1 and count - begins[-1] < min(2 * size, world_batch):
        begins.pop()
    return list(pairwise([*begins, count]))


def share(begin: int, end: int, rank: int, size: int) -> slice:
    """The positions of a step that are this rank's: every `size`-th one."""
    return slice(begin + rank, end, size)


def evaluation_indices(count: int, rank: int, size: int) -> torch.Tensor:
    """This rank's share of the samples, each of which is on exactly one rank."""
    return torch.arange(count)[rank::size]


def _words(counters: np.ndarray, *key: int) -> np.ndarray:
    """A random 64-bit word for each counter: different counters give different words under the same key."""
    base = np.zeros(1, dtype=np.uint64)
    for part in key:
        base = _mix(base + np.uint64(part) + _GOLDEN)
    return _mix(base + (counters + np.uint64(1)) * _GOLDEN)


def _mix(words: np.ndarray) -> np.ndarray:
    """SplitMix64's output function: one to one, and each bit of the result depends on all bits of the word."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
