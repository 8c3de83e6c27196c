"""CIFAR-10 in its public forms, whole and damaged."""

import gzip
import io
import os
import pickle
import struct
import tarfile

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hvdkit.errors import EXIT_USAGE, HvdkitError, InputError
from hvdkit.runtime.single_engine import SingleEngine
from hvdkit.train import datasets
from hvdkit.train.datasets import cifar10
from hvdkit.train.settings import TrainSettings

NAMES = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
COUNT = 4  # images in a file; the public ones have 10,000


class PublicPickler(pickle._Pickler):
    """Writes as Python 2 and the NumPy of that time did, which the public files come from."""

    dispatch = dict(pickle._Pickler.dispatch)  # noqa: RUF012

    def __init__(self, file):
        super().__init__(file, protocol=2)

    def save_string(self, text):
        self.write(pickle.BINSTRING + struct.pack("<i", len(text)) + text)
        self.memoize(text)

    dispatch[bytes] = save_string

    def save_global(self, found, name=None):
        if getattr(found, "__name__", None) == "_reconstruct":
            self.write(pickle.GLOBAL + b"numpy.core.multiarray\n_reconstruct\n")
            self.memoize(found)
        else:
            super().save_global(found, name)

    dispatch[type(np.empty(0).__reduce__()[0])] = save_global


def batch(number):
    random = np.random.default_rng(number)
    return random.integers(0, 256, (COUNT, 3072), dtype=np.uint8), random.integers(0, 10, COUNT).tolist()


def pickled(images, labels):
    file = io.BytesIO()
    content = {
        b"batch_label": b"training batch 1 of 5",
        b"labels": labels,
        b"data": images,
        b"filenames": [b"leptodactylus_pentadactylus_s_000004.png"] * COUNT,
    }
    PublicPickler(file).dump(content)
    return file.getvalue()


def binary(images, labels):
    return b"".join(bytes([label]) + image.tobytes() for image, label in zip(images, labels, strict=True))


def write(folder, form):
    """The six batches in that form; what they are called."""
    inner = folder / f"cifar-10-batches-{form}"
    inner.mkdir(parents=True)
    for number, name in enumerate(NAMES):
        path = inner / (f"{name}.bin" if form == "bin" else name)
        path.write_bytes((binary if form == "bin" else pickled)(*batch(number)))
    return inner


def pack(folder, form):
    """The .tar.gz of the batches instead of the batches."""
    inner = write(folder, form)
    archive = folder / f"cifar-10-{'binary' if form == 'bin' else 'python'}.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(inner, inner.name)
    for path in inner.iterdir():
        path.unlink()
    inner.rmdir()
    return archive


def load(folder, **others):
    settings = TrainSettings(data="cifar10", data_dir=folder, **others)
    return datasets.load(settings, SingleEngine(), print)


def check(data):
    expected = [batch(number) for number in range(6)]
    for source, batches in ((data.train, expected[:5]), (data.test, expected[5:])):
        images, labels = source.batch(torch.arange(len(source)), None)
        assert np.array_equal(images.flatten(1).numpy(), np.concatenate([some for some, _ in batches]))
        assert labels.tolist() == [label for _, some in batches for label in some]
        assert images.shape[1:] == (3, 32, 32)
    assert (data.name, data.classes, data.channels, data.image_size) == ("CIFAR-10", 10, 3, 32)
    assert (len(data.mean), len(data.deviation)) == (3, 3)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize("form", ["py", "bin"])
def test_batches_are_read(tmp_path, form):
    inner = write(tmp_path / "data", form)
    check(load(tmp_path / "data"))
    check(load(inner))
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("form", ["py", "bin"])
@pytest.mark.parametrize("named", [True, False])
def test_an_archive_is_unpacked_once(tmp_path, form, named):
    archive = pack(tmp_path / "data", form)
    cache = {"cache_dir": tmp_path / "disk"} if named else {}
    check(load(tmp_path / "data", **cache))
    where = tmp_path / "disk" if named else tmp_path / "cache" / "hvdkit" / "data"
    (unpacked,) = where.glob("*/cifar-10-batches-*/data_batch_1*")
    before = unpacked.stat()
    check(load(tmp_path / "data", **cache))
    assert unpacked.stat() == before
    assert [path.name for path in (tmp_path / "data").iterdir()] == [archive.name], "the data folder is only read"

    if named:
        archive.unlink()  # all that is needed is on the disk
        check(load(tmp_path / "data", **cache))


def test_another_archive_of_the_same_name_is_unpacked_anew(tmp_path):
    archive = pack(tmp_path / "data", "bin")
    check(load(tmp_path / "data"))
    archive.unlink()
    inner = write(tmp_path / "data", "bin")
    (inner / "test_batch.bin").write_bytes(binary(*batch(77)))
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(inner, inner.name)
    (inner / "test_batch.bin").unlink()
    assert load(tmp_path / "data").test.batch(torch.arange(COUNT), None)[1].tolist() == batch(77)[1]


def test_only_batches_are_taken_out_of_an_archive(tmp_path):
    archive = pack(tmp_path / "data", "bin")
    with tarfile.open(archive) as tar:
        members = [(member, tar.extractfile(member).read() if member.isfile() else b"") for member in tar]
    link = tarfile.TarInfo("cifar-10-batches-bin/link")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc"
    outside = tarfile.TarInfo("../outside")
    outside.size = 4
    with tarfile.open(archive, "w:gz") as tar:
        for member, content in [(link, b""), (outside, b"evil"), *members]:
            tar.addfile(member, io.BytesIO(content))
    check(load(tmp_path / "data"))
    unpacked = [path for path in (tmp_path / "cache").rglob("*") if path.is_file() and not path.name.startswith(".")]
    assert sorted(path.name for path in unpacked) == sorted(f"{name}.bin" for name in NAMES)
    assert not list(tmp_path.rglob("outside"))


def damaged(path):
    return pytest.raises(HvdkitError, match=f"^{path} is damaged: ")


@pytest.mark.parametrize("form", ["py", "bin"])
@pytest.mark.parametrize("what", ["cut", "flipped", "checksum", "text", "lacks one"])
def test_a_damaged_archive_is_named_and_leaves_nothing(tmp_path, form, what):
    archive = pack(tmp_path / "data", form)
    content = archive.read_bytes()
    if what == "lacks one":
        inner = write(tmp_path / "data", form)
        next(inner.glob("data_batch_3*")).unlink()
        with tarfile.open(archive, "w:gz") as tar:
            tar.add(inner, inner.name)
    else:
        archive.write_bytes(
            {
                "cut": content[: len(content) // 2],
                "flipped": content[:5000] + bytes([content[5000] ^ 1]) + content[5001:],
                "checksum": content[:-8] + bytes([content[-8] ^ 1]) + content[-7:],
                "text": b"<html>not found</html>",
            }[what]
        )
    with damaged(archive) as failure:
        load(tmp_path / "data")
    assert failure.value.exit_code == EXIT_USAGE
    assert not [path for path in (tmp_path / "cache").rglob("*") if not path.name.startswith(".") and path.is_file()]


@pytest.mark.parametrize(
    ("form", "content", "said"),
    [
        ("bin", binary(*batch(1))[:-1], "not whole images"),
        ("bin", b"", "no images"),
        ("bin", binary(batch(1)[0], [1, 2, 10, 3]), "a label 10"),
        ("bin", binary(*(some[:3] for some in batch(1))), "it has 3 images, another batch has 4"),
        ("py", pickled(*batch(1))[:-100], "not a batch of CIFAR-10"),
        ("py", b"", "not a batch of CIFAR-10"),
        ("py", b"<html>not found</html>", "not a batch of CIFAR-10"),
        ("py", pickled(batch(1)[0][:, :-1], batch(1)[1]), "not rows of 3,072 bytes"),
        ("py", pickled(batch(1)[0].astype(np.float32), batch(1)[1]), "not bytes"),
        ("py", pickled(batch(1)[0], [1, 2, 3]), "labels of shape (3,) for 4 images"),
        ("py", pickled(batch(1)[0], [1, 2, -1, 3]), "a label -1"),
        ("py", pickled(batch(1)[0], [1.5, 2, 0, 3]), "labels of shape"),
        ("py", pickle.dumps([1, 2]), "not a batch of CIFAR-10"),
    ],
)
def test_a_damaged_batch_is_named(tmp_path, form, content, said):
    path = write(tmp_path, form) / ("data_batch_2.bin" if form == "bin" else "data_batch_2")
    path.write_bytes(content)
    with damaged(path) as failure:
        load(tmp_path)
    assert failure.value.exit_code == EXIT_USAGE
    assert said in str(failure.value)


class Harm:
    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize(
    "harm",
    [
        Harm(os.system, "touch done"),
        Harm(eval, "open('done', 'w')"),
        Harm(open, "done", "w"),
        Harm(getattr, np.ndarray, "tofile"),
        Harm(np.loadtxt, "done"),
        Harm(__import__, "this"),
    ],
    ids=lambda harm: harm.call[0].__name__,
)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_that_calls_something_is_refused(tmp_path, harm, protocol, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path, "py") / "test_batch"
    path.write_bytes(pickle.dumps({b"data": harm, b"labels": [1]}, protocol=protocol))
    with damaged(path) as failure:
        load(tmp_path)
    assert "it asks for " in str(failure.value)
    assert not (tmp_path / "done").exists()


@settings(deadline=None, max_examples=300)
@given(place=st.integers(0, len(pickled(*batch(1))) - 1), byte=st.integers(0, 255), cut=st.booleans())
def test_no_altered_pickle_gives_more_than_an_input_error(tmp_path_factory, place, byte, cut):
    path = tmp_path_factory.getbasetemp() / "altered"
    content = pickled(*batch(1))
    path.write_bytes(content[:place] if cut else content[:place] + bytes([byte]) + content[place + 1 :])
    try:
        images, labels = cifar10._read_batch(path)
    except InputError as error:
        assert str(error).startswith(f"{path} is damaged: ")
    else:
        assert images.shape == (len(labels), 3072)
        assert images.dtype == np.uint8
        assert 0 <= labels.min() <= labels.max() <= 9


def test_a_gap_in_the_batches_is_named(tmp_path):
    (write(tmp_path, "bin") / "data_batch_4.bin").unlink()
    with pytest.raises(HvdkitError) as failure:
        load(tmp_path)
    assert failure.value.exit_code == EXIT_USAGE
    assert f"--data-dir: {tmp_path} on " in str(failure.value)
    assert " lacks cifar-10-batches-bin/data_batch_4.bin; " in str(failure.value)


def test_a_checksum_of_gzip_is_compared(tmp_path):
    """The end of the archive's tape comes before the end of the gzip file, where its checksum is."""
    path = pack(tmp_path / "data", "bin")
    content = gzip.decompress(path.read_bytes())
    packed = gzip.compress(content + bytes(10_000))
    path.write_bytes(packed[:-8] + bytes([packed[-8] ^ 1]) + packed[-7:])
    with damaged(path):
        load(tmp_path / "data")
