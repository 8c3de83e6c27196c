"""Data in memory: IDX files, synthetic digits, augmentation, and what `load` checks."""

import gzip
import struct

import numpy as np
import pytest
import torch

from hvdkit.errors import EXIT_USAGE, HvdkitError, InputError
from hvdkit.runtime.single_engine import SingleEngine
from hvdkit.train import datasets
from hvdkit.train.datasets import digits, idx, synthetic
from hvdkit.train.datasets.memory import MemorySource
from hvdkit.train.settings import TrainSettings

IMAGES = np.arange(3 * 4 * 5, dtype=np.uint8).reshape(3, 4, 5)
CONTENT = struct.pack(">IIII", 0x803, 3, 4, 5) + IMAGES.tobytes()


def load(said=None, **settings):
    return datasets.load(TrainSettings(**settings), SingleEngine(), (said if said is not None else []).append)


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
        ("cut.gz", gzip.compress(CONTENT, mtime=0)[:-9], "does not unpack"),
        ("flipped.gz", gzip.compress(CONTENT, mtime=0)[:-6] + b"\xff\xff\xff\xff\xff\xff", "does not unpack"),
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


@pytest.fixture
def mnist_folder(tmp_path):
    """MNIST's four files, with 20 and 10 images."""
    raw = tmp_path / "data" / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for part, count in (("train", 20), ("t10k", 10)):
        images, labels = digits.make(count, seed=count)
        for name, content in (
            ("images-idx3", struct.pack(">IIII", 0x803, count, 28, 28) + images.numpy().tobytes()),
            ("labels-idx1", struct.pack(">II", 0x801, count) + labels.byte().numpy().tobytes()),
        ):
            (raw / f"{part}-{name}-ubyte.gz").write_bytes(gzip.compress(content))
    return raw.parent.parent


def test_mnist_is_read(mnist_folder):
    data = load(data_dir=mnist_folder)
    assert (data.name, data.classes, data.channels, data.image_size) == ("MNIST", 10, 1, 28)
    assert (len(data.mean), len(data.deviation)) == (1, 1)
    images, labels = digits.make(20, seed=20)
    found, found_labels = data.train.batch(torch.tensor([7, 3]), None)
    assert torch.equal(found, images[[7, 3]].unsqueeze(1))
    assert torch.equal(found_labels, labels[[7, 3]])
    assert len(data.test) == 10


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("train-images-idx3-ubyte.gz", struct.pack(">IIII", 0x803, 20, 4, 5) + bytes(400), "4 x 5, not 28 x 28"),
        ("train-labels-idx1-ubyte.gz", struct.pack(">II", 0x801, 19) + bytes(19), "19 labels for 20 images"),
        ("t10k-labels-idx1-ubyte.gz", struct.pack(">II", 0x801, 10) + bytes(9) + b"\x0a", "a label 10"),
    ],
)
def test_mnist_files_that_do_not_fit_are_named(mnist_folder, name, content, said):
    path = mnist_folder / "MNIST" / "raw" / name
    path.write_bytes(gzip.compress(content))
    with pytest.raises(HvdkitError) as failure:
        load(data_dir=mnist_folder)
    assert failure.value.exit_code == EXIT_USAGE
    assert str(path) in str(failure.value)
    assert said in str(failure.value)


@pytest.mark.parametrize("by", ["--data-dir", "HVDKIT_DATA_DIR"])
@pytest.mark.parametrize("exists", [True, False])
def test_a_named_folder_must_hold_the_data(mnist_folder, by, exists, monkeypatch):
    (mnist_folder / "MNIST" / "raw" / "t10k-labels-idx1-ubyte.gz").unlink()
    folder = mnist_folder if exists else mnist_folder / "nowhere"
    if by == "HVDKIT_DATA_DIR":
        monkeypatch.setenv(by, str(folder))
    with pytest.raises(HvdkitError) as failure:
        load(data_dir=folder if by == "--data-dir" else None)
    assert failure.value.exit_code == EXIT_USAGE
    assert str(failure.value).startswith(f"{by}: {folder} on ")
    missing = "MNIST/raw/t10k-labels-idx1-ubyte.gz;" if exists else "MNIST/raw/train-images-idx3-ubyte.gz and 3 more;"
    assert missing in str(failure.value)


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


@pytest.mark.parametrize(("count", "tests"), [(12_000, 2000), (1200, 1000), (10, 10)])
def test_as_many_synthetic_images_as_asked_for(count, tests):
    data = load(data="synthetic", synthetic_images=count)
    assert (len(data.train), len(data.test)) == (count, tests)
    images, labels = digits.make(count, seed=2)
    some = torch.arange(count)[::7]
    assert torch.equal(data.train.batch(some, None)[0], images[some].unsqueeze(1))
    assert torch.equal(data.train.batch(some, None)[1], labels[some])


def test_a_long_synthetic_epoch_shows_the_same_images_again():
    """A benchmark's epoch must outlast it, and not fill the memory of every rank."""
    long, usual = (load(data="synthetic", synthetic_images=count) for count in (1_000_000, synthetic.MOST_DRAWN))
    assert (len(long.train), len(long.test)) == (1_000_000, 10_000) and len(usual.train) == 60_000
    indices = torch.tensor([7, 60_007, 999_999])
    images, labels = long.train.batch(indices, None)
    assert torch.equal(images[0], images[1]) and not torch.equal(images[0], images[2])
    assert torch.equal(images, usual.train.batch(indices % 60_000, None)[0])
    assert torch.equal(labels, usual.train.batch(indices % 60_000, None)[1])
    assert long.train.images.nbytes == usual.train.images.nbytes


@pytest.mark.parametrize("side", [56, 20])
def test_synthetic_images_have_the_size_asked_for(side):
    data = load(data="synthetic", synthetic_images=20, image_size=side)
    images, _ = data.train.batch(torch.arange(20), None)
    assert data.image_size == side
    assert images.shape == (20, 1, side, side)
    assert images.dtype == torch.uint8
    if side == 56:
        assert torch.equal(images[:, :, ::2, ::2], digits.make(20, seed=2)[0].unsqueeze(1))


def cut_out(image, shift, flip, down, right, mirror):
    """What augmentation makes of one image, by the plainest means."""
    padded = np.pad(image, ((0, 0), (shift, shift), (shift, shift)))
    top, left = int(down * (2 * shift + 1)), int(right * (2 * shift + 1))
    cut = padded[:, top : top + image.shape[1], left : left + image.shape[2]]
    return cut[:, :, ::-1] if flip and mirror < 0.5 else cut


@pytest.mark.parametrize(("channels", "shift", "flip"), [(1, 2, False), (3, 4, True)])
def test_augmentation_of_a_batch_is_that_of_each_image(channels, shift, flip):
    random = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (200, channels, 9, 12), dtype=torch.uint8, generator=random)
    source = MemorySource(images=images, labels=torch.arange(200), shift=shift, flip=flip)
    draws = torch.rand(200, 5, generator=random, dtype=torch.float64)
    draws[0], draws[1] = 0, 1 - 2**-53  # the ends of what can come
    indices = torch.randperm(200, generator=random)
    augmented, labels = source.batch(indices, draws)
    assert torch.equal(labels, indices)
    for index, row, found in zip(indices.tolist(), draws.tolist(), augmented, strict=True):
        assert np.array_equal(found.numpy(), cut_out(images[index].numpy(), shift, flip, *row[:3]))
    assert torch.equal(source.batch(indices, None)[0], images[indices])


@pytest.mark.parametrize("side", [28, 56])
def test_a_batch_may_be_empty(side):
    """As that of a rank is which has no sample in the last step after a resume."""
    source = load(data="synthetic", synthetic_images=10, image_size=side).train
    nothing = torch.empty(0, dtype=torch.int64)
    images, labels = source.batch(nothing, torch.empty(0, 5, dtype=torch.float64))
    assert images.shape == (0, 1, side, side)
    assert labels.shape == (0,)


@pytest.mark.parametrize(
    ("data", "augment", "expected"),
    [
        ("mnist", "auto", False),
        ("synthetic", "auto", False),
        ("cifar10", "auto", True),
        ("imagefolder", "auto", True),
        ("mnist", "standard", True),
        ("cifar10", "none", False),
        ("my.data:make", "auto", True),
    ],
)
def test_photographs_are_augmented_and_digits_are_not(data, augment, expected):
    assert datasets.augments(TrainSettings(data=data, augment=augment)) is expected


def test_too_few_images_for_the_ranks_are_an_input_error():
    with pytest.raises(HvdkitError, match=r"--data: 1 training image for 1 rank; every rank needs at least") as failure:
        load(data="synthetic", synthetic_images=1)
    assert failure.value.exit_code == EXIT_USAGE


def test_an_image_size_that_the_images_do_not_have_is_an_input_error(mnist_folder):
    with pytest.raises(HvdkitError, match=r"--image-size is 224, but images of mnist are 28 x 28"):
        load(data_dir=mnist_folder, image_size=224)
    assert load(data_dir=mnist_folder, image_size=28).image_size == 28


def test_a_cache_folder_without_files_to_cache_is_not_ignored_silently(tmp_path):
    said = []
    load(said, data="synthetic", synthetic_images=10, cache_dir=tmp_path)
    assert said == ["--cache-dir has no effect on --data synthetic: hvdkit reads no files for it."]
