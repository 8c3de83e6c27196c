"""Settings of a run, the learning rate of each step, models by name, and the choice of the engine."""

import math
import os

import pytest
import torch

from hvdkit.cli.train import set_horovod_variables
from hvdkit.errors import EnvironmentProblem, InputError
from hvdkit.runtime.engine import choose
from hvdkit.train import loop, models
from hvdkit.train.schedule import learning_rate
from hvdkit.train.settings import TrainSettings

TORCHRUN = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1234"}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"epochs": 0}, "--epochs is 0"),
        ({"batch_size": 0}, "--batch-size is 0"),
        ({"batch_size": -3}, "--batch-size is -3"),
        ({"accumulate": 0}, "--accumulate is 0"),
        ({"learning_rate": 0.0}, "--lr is 0"),
        ({"learning_rate": float("nan")}, "--lr is nan"),
        ({"clip": -1.0}, "--clip is -1"),
        ({"warmup": 1.0}, "--warmup is 1"),
        ({"momentum": -0.1}, "--momentum is -0.1"),
        ({"weight_decay": math.inf}, "--weight-decay is inf"),
        ({"loader_workers": -1}, "--loader-workers is -1"),
        ({"checkpoint_every": 0}, "--checkpoint-every is 0"),
        ({"metrics_port": 70000}, "--metrics-port is 70000"),
        ({"seed": -1}, "--seed is -1"),
        ({"data": "words"}, "there is mnist, cifar10, imagefolder, synthetic"),
        ({"data": "cifar"}, "did you mean 'cifar10'?"),
        ({"precision": "amp16"}, "--precision: there is no 'amp16'; did you mean 'amp-fp16'?"),
        ({"resume": "/no/such/file.pt"}, "--resume: there is no file '/no/such/file.pt'"),
        ({"reduction": "adasum", "clip": 1.0}, "--clip: Adasum"),
        ({"reduction": "adasum", "precision": "amp-fp16"}, "--precision amp-fp16: Adasum"),
    ],
)
def test_a_wrong_setting_is_named(wrong, said):
    with pytest.raises(InputError) as failure:
        TrainSettings(**wrong)
    assert said in str(failure.value)


@pytest.mark.parametrize(
    ("changes", "limit"),
    [
        ({}, 1.0),
        ({"clip": 0.0}, 0.0),
        ({"clip": 0.5}, 0.5),
        ({"model": "resnet18"}, None),
        ({"model": "resnet18", "clip": 2.0}, 2.0),
        ({"reduction": "sum"}, 1.0),
        ({"reduction": "adasum"}, None),
        ({"reduction": "adasum", "clip": 0.0}, 0.0),
    ],
)
def test_our_own_models_gradients_are_limited_unless_asked_otherwise(changes, limit):
    assert TrainSettings(**changes).clip == limit


def rates(settings: TrainSettings, factor: int) -> list[float]:
    return [learning_rate(step / 100, settings, factor) for step in range(100)]


def test_autotune_frees_what_hvdkit_launch_has_set(monkeypatch):
    launched = {"HVDKIT_WORLD_SIZE": "2", "HOROVOD_CONTROLLER": "mpi", "HOROVOD_AUTOTUNE": "0"}
    tuned = {"HOROVOD_FUSION_THRESHOLD": "0", "HOROVOD_CYCLE_TIME": "5"}
    for name, value in (launched | tuned).items():
        monkeypatch.setenv(name, value)
    set_horovod_variables(TrainSettings(), None, False)
    assert tuned.items() <= os.environ.items()
    set_horovod_variables(TrainSettings(), None, True)
    assert os.environ["HOROVOD_AUTOTUNE"] == "1" and not set(tuned) & set(os.environ)


def test_the_learning_rate_warms_up_to_the_world_and_falls_towards_zero():
    found = rates(TrainSettings(learning_rate=0.1), factor=4)
    assert found[0] == pytest.approx(0.1)
    assert found[10] == pytest.approx(0.4)
    assert max(found) == pytest.approx(0.4)
    assert found[:11] == sorted(found[:11])
    assert found[10:] == sorted(found[10:], reverse=True)
    assert 0 < found[99] < 0.01


@pytest.mark.parametrize(("scaling", "peak"), [("none", 0.1), ("linear", 0.4), ("sqrt", 0.2)])
def test_the_learning_rate_scales_with_the_world(scaling, peak):
    found = rates(TrainSettings(learning_rate=0.1, lr_scaling=scaling, schedule="constant"), factor=4)
    assert found[10:] == [pytest.approx(peak)] * 90


def test_the_step_schedule_divides_by_ten_three_times():
    found = rates(TrainSettings(learning_rate=1.0, warmup=0, schedule="step"), factor=1)
    assert [found[share] for share in (0, 33, 34, 66, 67, 88, 89)] == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01, 0.001])


@pytest.mark.parametrize("mark", ["OMPI_COMM_WORLD_SIZE", "HOROVOD_RANK", "HOROVOD_SIZE", "HVDKIT_WORLD_SIZE"])
def test_auto_is_horovod_under_a_launcher(mark):
    assert choose("auto", {mark: "1"}) == "horovod"


def test_auto_is_ddp_under_torchrun():
    assert choose("auto", TORCHRUN) == "ddp"
    assert choose("auto", TORCHRUN | {"TORCHELASTIC_RUN_ID": "x", "OMPI_COMM_WORLD_SIZE": "1"}) == "ddp"
    assert choose("auto", TORCHRUN | {"OMPI_COMM_WORLD_SIZE": "2"}) == "horovod"


def test_ddp_without_a_world_is_refused():
    with pytest.raises(EnvironmentProblem, match="torchrun --nproc-per-node"):
        choose("ddp", {"WORLD_SIZE": "2"})


def test_auto_refuses_to_train_alone_among_many():
    with pytest.raises(EnvironmentProblem, match="not Open MPI"):
        choose("auto", {"PMI_SIZE": "2"})
    assert choose("auto", {"PMI_SIZE": "1"}) == "single"
    assert choose("single", {"PMI_SIZE": "2"}) == "single"


def test_auto_is_single_alone_and_a_choice_stands():
    assert choose("auto", {"PATH": "/bin"}) == "single"
    assert choose("single", {"HOROVOD_RANK": "0"}) == "single"
    assert choose("horovod", {}) == "horovod"


@pytest.mark.parametrize(
    ("name", "channels", "side"), [("mnist-cnn", 3, 32), ("resnet18", 1, 32), ("googlenet", 3, 64)]
)
def test_a_model_by_name_fits_the_data(name, channels, side):
    model = models.create(name, classes=7, channels=channels, image_size=side)
    assert model(torch.zeros(2, channels, side, side)).shape == (2, 7)


def test_an_unknown_model_brings_the_nearest_name():
    with pytest.raises(InputError, match="there is no 'resnet81'; did you mean 'resnet18'"):
        models.create("resnet81", classes=10, channels=3, image_size=32)


OWN = """
import torch
def wide(classes, image_size): return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(image_size**2, classes))
def number(): return 3
"""


def test_a_model_of_the_users_own(tmp_path, monkeypatch):
    (tmp_path / "their_models.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    facts = {"classes": 5, "channels": 1, "image_size": 4}
    assert models.create("their_models:wide", **facts)(torch.zeros(2, 1, 4, 4)).shape == (2, 5)
    for name, said in (
        ("their_models:narrow", "has no function 'narrow'"),
        ("no_such_models:wide", "there is no module 'no_such_models'"),
        ("their_models:number", "returned a int"),
    ):
        with pytest.raises(InputError, match=said):
            models.create(name, **facts)


@pytest.mark.parametrize(
    ("world_count", "accumulate", "batch_size", "passes"),
    [
        (32, 2, 8, 2),  # a whole step of two ranks
        (9, 2, 4, 2),  # 5 images for one rank, 4 for the other: both take two passes
        (7, 2, 2, 1),  # 4 and 3: in two passes one of them would have a single image, which batch norm refuses
        (1, 4, 8, 1),
    ],
)
def test_all_ranks_take_as_many_passes(world_count, accumulate, batch_size, passes):
    settings = TrainSettings(accumulate=accumulate, batch_size=batch_size)
    assert loop.passes_of(world_count, settings, size=2) == passes


def test_a_model_that_takes_other_images_is_named():
    model = models.create("vit_b_16", classes=10, channels=1, image_size=28)
    with pytest.raises(InputError, match=r"--model vit_b_16: images of 1 x 28 x 28 do not go through it"):
        models.check("vit_b_16", model, torch.zeros(1, 1, 28, 28), 10)


def test_a_model_with_another_number_of_classes_is_named():
    with pytest.raises(InputError, match=r"--model their:net: .* give \(1, 3\), not a row of 10 numbers"):
        net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3))
        models.check("their:net", net, torch.zeros(1, 1, 2, 2), 10)
