"""A user's own data set: its form, its errors, and its random transforms."""

import random
import sys
import textwrap

import numpy as np
import pytest
import torch

from hvdkit.errors import EXIT_USAGE, HvdkitError, InputError
from hvdkit.runtime.single_engine import SingleEngine
from hvdkit.train import datasets
from hvdkit.train.datasets import sampling
from hvdkit.train.settings import TrainSettings

MODULE = """
import random
import numpy, torch

class Noisy:
    classes = ["even", "odd"]

    def __init__(self, count, folder):
        self.count, self.folder = count, folder

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        noise = random.random() + numpy.random.random() + torch.rand(()).item()
        return torch.full((1, 4, 4), index + noise), index % 2

def make(folder):
    return Noisy(10, folder), Noisy(6, folder)

def plain(folder):
    images = torch.arange(10 * 48, dtype=torch.uint8).view(10, 3, 4, 4)
    data = torch.utils.data.TensorDataset(images, torch.arange(10) % 3)
    return data, data
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes a module into the current folder; forgets it afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    names = []

    def to_module(text, name="own_data"):
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
        names.append(name)

    yield to_module
    for name in names:
        sys.modules.pop(name, None)


def load(function="make", said=None, **others):
    settings = TrainSettings(data=f"own_data:{function}", **others)
    return datasets.load(settings, SingleEngine(), (said if said is not None else []).append)


def test_a_function_in_the_current_folder_gives_both_halves(write, tmp_path, monkeypatch):
    monkeypatch.delenv("HVDKIT_DATA_DIR", raising=False)
    write(MODULE)
    data = load()
    assert (data.name, data.classes, data.channels, data.image_size) == ("own_data:make", 2, 1, 4)
    assert (len(data.train), len(data.test)) == (10, 6)
    assert (data.mean, data.deviation) == ((0.0,), (1.0,)), "floats are left as they are"
    assert data.train.samples.folder is None
    assert load(data_dir=tmp_path).train.samples.folder == tmp_path


def test_random_transforms_follow_the_draws_and_leave_no_trace(write):
    write(MODULE)
    source = load().train
    indices = torch.arange(10)
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    states = random.getstate(), str(np.random.get_state()), torch.get_rng_state()
    draws = sampling.draws(1, 0, indices)
    images, labels = source.batch(indices, draws)
    assert (random.getstate(), str(np.random.get_state())) == states[:2]
    assert torch.equal(torch.get_rng_state(), states[2])
    assert labels.tolist() == [0, 1] * 5

    torch.manual_seed(2)
    backwards, _ = source.batch(indices.flip(0), draws.flip(0))
    assert torch.equal(backwards, images.flip(0)), "a sample does not depend on those before it"
    another, _ = source.batch(indices, sampling.draws(1, 1, indices))
    assert (images != another).all(), "each epoch has its own"
    noise = images[:, 0, 0, 0] - indices
    assert len(set(noise.tolist())) == 10, "each sample has its own"
    assert torch.equal(source.batch(indices, None)[0], source.batch(indices, None)[0]), "evaluation can be repeated"


def test_bytes_and_classes_that_nobody_counted(write):
    write(MODULE)
    said = []
    data = load("plain", said)
    assert (data.classes, data.channels, data.image_size) == (3, 3, 4)
    assert (data.mean, data.deviation) == ((0.5,) * 3, (0.5,) * 3)
    assert said == [
        "--data own_data:plain: the training half has no attribute 'classes', so its 10 labels are read."
    ]
    images, labels = data.train.batch(torch.tensor([3, 1]), None)
    assert images.dtype == torch.uint8
    assert torch.equal(images[1], torch.arange(48, 96, dtype=torch.uint8).view(3, 4, 4))
    assert labels.tolist() == [0, 1]
    assert labels.dtype == torch.int64


def test_a_batch_may_be_empty(write):
    write(MODULE)
    images, labels = load().train.batch(torch.empty(0, dtype=torch.int64), None)
    assert images.shape == (0, 1, 4, 4)
    assert labels.shape == (0,)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return 5", "it gave a int, not a training and a test data set."),
        ("return [], [1]", "the training half is empty."),
        ("return good, iter(good)", "the test half is a list_iterator, not a data set with a length"),
        ("return [3, 4], good", "training half: sample 0 is a int, not a pair of image and label."),
        ("return [('cat', 1)] * 2, good", "sample 0 is a str, not a tensor of channels x height x width"),
        ("return [(torch.ones(5), 1)] * 2, good", "sample 0 is a tensor of float32 (5,), not a tensor of channels"),
        ("return [(image, 'cat')] * 2, good", "training half: the label of sample 0 is a str, not a number."),
        ("return [(image, -1)] * 2, good", "training half: the label of sample 0 is -1; labels begin at 0."),
    ],
)
def test_a_result_of_the_wrong_form_is_an_input_error(write, body, said):
    write(f"import torch\nimage = torch.ones(1, 2, 2)\ngood = [(image, 1)] * 2\ndef make(folder):\n    {body}\n")
    with pytest.raises(HvdkitError) as failure:
        load()
    assert failure.value.exit_code == EXIT_USAGE
    assert str(failure.value).startswith("--data own_data:make")
    assert said in str(failure.value)


def test_samples_that_differ_are_named(write):
    write(
        """
        import torch
        def make(folder):
            train = [(torch.ones(1, 2, 2), 1), (torch.ones(1, 2, 3), 0)]
            return train, [(torch.ones(1, 2, 2), 2)]
        """
    )
    data = load()
    with pytest.raises(InputError, match=r"training half: sample 1 is a tensor of float32 \(1, 2, 3\), another one"):
        data.train.batch(torch.tensor([0, 1]), None)
    with pytest.raises(InputError, match=r"test half: the label of sample 0 is 2; there are 2 classes, 0 to 1"):
        data.test.batch(torch.tensor([0]), None)


def test_a_missing_module_or_function_is_an_input_error(write, tmp_path):
    with pytest.raises(HvdkitError, match=r"there is no module 'own_data'") as failure:
        load()
    assert failure.value.exit_code == EXIT_USAGE
    write(MODULE)
    with pytest.raises(HvdkitError, match=rf"{tmp_path}/own_data.py has no function 'nothing'") as failure:
        load("nothing")
    assert failure.value.exit_code == EXIT_USAGE


def test_an_exception_of_the_users_code_stays_what_it_is(write):
    write("def make(folder):\n    return {}['nothing']\n")
    with pytest.raises(KeyError, match="nothing"):
        load()
