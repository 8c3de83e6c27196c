"""Which sample comes when, on which rank and with which random numbers."""

from collections import Counter

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hvdkit.train.datasets import sampling
from hvdkit.train.datasets.sampling import DRAWS, draws, evaluation_indices, order, share, step_bounds

worlds = st.tuples(st.integers(1, 7), st.integers(1, 9))  # ranks, and samples of each in a step


def seen_by_all_ranks(count, epoch, first, size, per_rank, most_steps=None):
    """The samples of the steps from `first` on, over all ranks, and the position after them."""
    indices = order(count, epoch, seed=3)
    bounds = step_bounds(count, first, per_rank * size, size)[:most_steps]
    seen = [
        index
        for begin, end in bounds
        for rank in range(size)
        for index in indices[share(begin, end, rank, size)].tolist()
    ]
    return seen, bounds[-1][1] if bounds else first


@settings(deadline=None)
@given(count=st.integers(0, 300), world=worlds, epoch=st.integers(0, 3))
def test_an_epoch_has_every_sample_once(count, world, epoch):
    seen, position = seen_by_all_ranks(count, epoch, 0, *world)
    assert sorted(seen) == list(range(count))
    assert position == count


@settings(deadline=None)
@given(count=st.integers(1, 300), parts=st.lists(st.tuples(worlds, st.integers(0, 12)), max_size=4), last=worlds)
def test_every_sample_comes_once_though_the_world_changes_in_mid_epoch(count, parts, last):
    seen, position = [], 0
    for world, steps in parts:
        more, position = seen_by_all_ranks(count, 1, position, *world, most_steps=steps)
        seen += more
    more, position = seen_by_all_ranks(count, 1, position, *last)
    assert sorted(seen + more) == list(range(count))
    assert position == count


@settings(deadline=None)
@given(count=st.integers(1, 300), world=worlds, steps=st.integers(0, 20))
def test_a_resumed_epoch_has_the_steps_that_were_left(count, world, steps):
    size, per_rank = world
    bounds = step_bounds(count, 0, per_rank * size, size)
    position = bounds[steps - 1][1] if 0 < steps <= len(bounds) else 0
    assert step_bounds(count, position, per_rank * size, size) == [one for one in bounds if one[0] >= position]


@settings(deadline=None)
@given(size=st.integers(1, 7), per_rank=st.integers(2, 9), data=st.data())
def test_every_rank_has_two_samples_in_every_step(size, per_rank, data):
    count = data.draw(st.integers(2 * size, 400))
    for begin, end in step_bounds(count, 0, per_rank * size, size):
        shares = [len(range(count)[share(begin, end, rank, size)]) for rank in range(size)]
        assert min(shares) >= 2
        assert sum(shares) == end - begin
        assert end - begin < per_rank * size + 2 * size


def test_batches_of_one_are_not_made_larger_than_they_must():
    assert step_bounds(8, 0, world_batch=4, size=4) == [(0, 4), (4, 8)]
    assert step_bounds(9, 0, world_batch=4, size=4) == [(0, 4), (4, 9)]


def test_what_is_left_after_a_resume_is_a_step_however_small():
    assert step_bounds(100, 99, world_batch=64, size=4) == [(99, 100)]
    assert step_bounds(100, 100, world_batch=64, size=4) == []


def test_a_world_batch_does_not_depend_on_how_many_ranks_share_it():
    assert step_bounds(70, 0, 16, size=1) == step_bounds(70, 0, 16, size=3)


@settings(deadline=None)
@given(count=st.integers(0, 200), size=st.integers(1, 9))
def test_evaluation_judges_every_sample_once(count, size):
    shares = [evaluation_indices(count, rank, size).tolist() for rank in range(size)]
    assert sorted(index for indices in shares for index in indices) == list(range(count))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_epochs_and_seeds_give_different_orders():
    orders = {tuple(order(50, epoch, seed).tolist()) for epoch in range(5) for seed in range(5)}
    assert len(orders) == 25


def test_every_order_is_equally_likely():
    seen = Counter(tuple(order(4, epoch, seed=9).tolist()) for epoch in range(2400))
    assert len(seen) == 24
    expected = 100
    squares = sum((found - expected) ** 2 for found in seen.values()) / expected
    assert squares < 49.7  # chi square of 23 degrees of freedom: one seed in a thousand is worse


@settings(deadline=None)
@given(indices=st.lists(st.integers(0, 2**40), max_size=30), seed=st.integers(0, 2**63 - 1), epoch=st.integers(0, 99))
def test_draws_depend_on_the_sample_and_not_on_its_neighbours(indices, seed, epoch):
    together = draws(seed, epoch, torch.tensor(indices, dtype=torch.int64))
    assert together.shape == (len(indices), DRAWS)
    assert together.dtype == torch.float64
    assert ((together >= 0) & (together < 1)).all()
    for index, row in zip(indices, together, strict=True):
        assert torch.equal(row, draws(seed, epoch, torch.tensor([index]))[0])


def test_draws_are_the_same_on_every_world():
    indices = order(100, epoch=2, seed=3)
    whole = draws(3, 2, indices)
    for size in (2, 3, 7):
        for rank in range(size):
            mine = share(0, 100, rank, size)
            assert torch.equal(draws(3, 2, indices[mine]), whole[mine])


def test_draws_look_random():
    numbers = draws(1, 0, torch.arange(20_000))
    counts = torch.histc(numbers.float(), bins=100, min=0, max=1)
    assert ((counts - 1000) ** 2 / 1000).sum() < 148.2  # chi square of 99: one seed in a thousand is worse
    some = torch.arange(19_999)
    columns = np.column_stack([numbers[:-1], numbers[1:], draws(1, 1, some), draws(2, 0, some)])
    related = np.corrcoef(columns, rowvar=False)
    assert np.abs(related - np.eye(len(related))).max() < 0.04  # numbers, neighbours, epochs and seeds


def test_the_numbers_stay_what_they_are():
    """A checkpoint resumes with the same samples and augmentation under any later version."""
    assert int(sampling._mix(np.array([0x9E3779B97F4A7C15], dtype=np.uint64))[0]) == 0xE220A8397B1DCDAF  # SplitMix64
    assert order(8, epoch=1, seed=1).tolist() == [1, 7, 6, 0, 4, 5, 2, 3]
    assert draws(1, 1, torch.tensor([7]))[0].tolist() == [
        0.4251800052056237,
        0.8649527536847234,
        0.5748157121993369,
        0.9246849428651266,
        0.32598990026046515,
    ]
