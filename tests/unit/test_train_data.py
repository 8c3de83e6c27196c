"""IDX files, synthetic digits, and which rank sees which sample."""

import gzip
import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hvdkit.errors import InputError
from hvdkit.train import digits, idx
from hvdkit.train.data import evaluation_batches, training_batches

IMAGES = np.arange(3 * 4 * 5, dtype=np.uint8).reshape(3, 4, 5)
CONTENT = struct.pack(">IIII", 0x803, 3, 4, 5) + IMAGES.tobytes()


@pytest.mark.parametrize("name", ["images", "images.gz"])
def test_idx_is_read_plain_and_gzipped(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(gzip.compress(CONTENT) if name.endswith(".gz") else CONTENT)
    assert np.array_equal(idx.read(path, dimensions=3), IMAGES)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("short", CONTENT[:-1], "59 follow"),
        ("long", CONTENT + b"x", "61 follow"),
        ("header", CONTENT[:9], "less than its header"),
        ("empty", b"", "less than its header"),
        ("magic", b"\0\0\x08\x01" + CONTENT[4:], "0x00000801"),
        ("floats", b"\0\0\x0d\x03" + CONTENT[4:], "0x00000d03"),
        ("text.gz", b"<html>not found</html>", "does not unpack"),
        ("cut.gz", gzip.compress(CONTENT)[:-9], "does not unpack"),
        ("flipped.gz", gzip.compress(CONTENT)[:-6] + b"\xff\xff\xff\xff\xff\xff", "does not unpack"),
    ],
)
def test_a_damaged_idx_file_is_named(tmp_path, name, content, said):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError) as failure:
        idx.read(path, dimensions=3)
    assert str(path) in str(failure.value)
    assert said in str(failure.value)


def test_idx_files_are_found_where_torchvision_puts_them_and_beside(tmp_path):
    assert idx.find(tmp_path, "labels") is None
    beside = tmp_path / "labels.gz"
    beside.touch()
    assert idx.find(tmp_path, "labels") == beside
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    (raw / "labels").touch()
    assert idx.find(tmp_path, "labels") == raw / "labels"


@settings(deadline=None)
@given(count=st.integers(1, 200), per_rank=st.integers(1, 17), size=st.integers(1, 7), epoch=st.integers(0, 3))
def test_an_epoch_has_every_sample_once_over_all_ranks(count, per_rank, size, epoch):
    ranks = [list(training_batches(count, per_rank, epoch, 1, rank, size)) for rank in range(size)]
    assert len({len(batches) for batches in ranks}) == 1, "all ranks take the same number of steps"
    seen = [int(index) for batches in ranks for indices, _ in batches for index in indices]
    assert sorted(seen) == list(range(count))
    for step in zip(*ranks, strict=True):
        assert len({world_batch for _, world_batch in step}) == 1
        assert sum(len(indices) for indices, _ in step) == step[0][1]


@settings(deadline=None)
@given(count=st.integers(1, 200), per_rank=st.integers(1, 17), size=st.integers(1, 7))
def test_evaluation_judges_every_sample_once(count, per_rank, size):
    batches = [indices for rank in range(size) for indices in evaluation_batches(count, per_rank, rank, size)]
    assert sorted(torch.cat(batches).tolist()) == list(range(count))
    assert max(len(indices) for indices in batches) <= per_rank


def test_epochs_come_in_different_orders():
    first, second = (next(iter(training_batches(1000, 100, epoch, 1, 0, 1)))[0] for epoch in (0, 1))
    assert first.tolist() != second.tolist()


def test_the_world_batch_does_not_depend_on_how_many_ranks_share_it():
    alone = [sorted(indices.tolist()) for indices, _ in training_batches(70, 16, 0, 1, 0, 1)]
    ranks = [[indices for indices, _ in training_batches(70, 4, 0, 1, rank, 4)] for rank in range(4)]
    shared = [sorted(torch.cat(step).tolist()) for step in zip(*ranks, strict=True)]
    assert alone == shared


def test_synthetic_digits_follow_their_seed():
    images, labels = digits.make(500, seed=3)
    again, labels_again = digits.make(500, seed=3)
    other, _ = digits.make(500, seed=4)
    assert images.shape == (500, 28, 28)
    assert images.dtype == torch.uint8
    assert torch.equal(images, again)
    assert torch.equal(labels, labels_again)
    assert not torch.equal(images, other)
    assert set(labels.tolist()) == set(range(10))


def test_the_glyphs_are_ten_different_ones():
    glyphs = digits._glyphs().flatten(1).tolist()
    assert len(glyphs) == 10
    assert len({tuple(glyph) for glyph in glyphs}) == 10
