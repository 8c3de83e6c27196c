"""A run that goes on from any of its checkpoints ends with the same bits as one that was never interrupted.

In one process, so that many runs cost little; real ranks and real kills are in test_train_kill.py.
"""

import copy
import errno
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hvdkit.errors import HvdkitError, InputError
from hvdkit.runtime.single_engine import SingleEngine
from hvdkit.runtime.stop import StopRequest
from hvdkit.train.checkpoints import CheckpointFolder, load
from hvdkit.train.settings import TrainSettings
from hvdkit.train.start import train

NET = """
from torch import nn
def make(classes):
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5),
        nn.Flatten(), nn.Linear(4 * 13 * 13, classes),
    )
"""
STEPS = 16  # two epochs of 8
# Everything whose state has to survive: augmentation, dropout, loader workers, momentum, a falling learning rate, and
# a loss scale so high that the first steps overflow and are skipped.
SETTINGS = {
    "model": "resumed_net:make",
    "data": "synthetic",
    "synthetic_images": 230,
    "augment": "standard",
    "loader_workers": 2,
    "precision": "amp-fp16",
    "loss_scale": 2.0**22,
    "batch_size": 32,
    "epochs": 2,
    "checkpoint_every": 1,
    "keep": 100,
}


@pytest.fixture(scope="module", autouse=True)
def net(tmp_path_factory):
    folder = tmp_path_factory.mktemp("net")
    (folder / "resumed_net.py").write_text(NET)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> Path:
    """The checkpoints of a run from beginning to end."""
    return run(tmp_path_factory.mktemp("uninterrupted"))


def run(output: Path, **changes) -> Path:
    train(TrainSettings(output=output, **SETTINGS | changes), SingleEngine(), StopRequest())
    return output / "checkpoints"


def checkpoint(folder: Path, step: int) -> Path:
    (path,) = folder.glob(f"step-{step:08d}.*")
    return path


def same_bits(one, other) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same_bits(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same_bits, one, other))
    return one == other


def resumed_from(state: dict, step: int, folder: Path, **changes) -> dict:
    """Write `state` as the only checkpoint, run again, and return the last one."""
    checkpoints = CheckpointFolder(folder / "checkpoints")
    checkpoints.prepare()
    checkpoints.save(step, state)
    return CheckpointFolder(run(folder, **changes)).newest_whole(print).state


@pytest.mark.parametrize("step", [1, 3, 8, 11, 16])
def test_from_any_step_the_end_is_the_same_bit_for_bit(step, uninterrupted, tmp_path):
    end = load(checkpoint(uninterrupted, STEPS)).state
    assert same_bits(resumed_from(load(checkpoint(uninterrupted, step)).state, step, tmp_path), end)


def test_the_run_had_something_to_lose(uninterrupted):
    """Overflows were skipped, the scale fell, dropout drew, momentum grew: else the next test would prove nothing."""
    states = [load(checkpoint(uninterrupted, step)).state for step in (1, 3)]
    assert states[1]["scaler"]["scale"] < SETTINGS["loss_scale"]
    assert not same_bits(states[0]["random"], states[1]["random"])
    momenta = [entry["momentum_buffer"] for entry in states[1]["optimizer"]["state"].values()]
    assert all(momentum.abs().sum() > 0 for momentum in momenta)


def without(state: dict, item: str) -> dict:
    """The state as if `item` had never been saved: what stands there is what a new run begins with."""
    state = copy.deepcopy(state)
    if item == "weights":
        for name, tensor in state["model"].items():
            if name.endswith("weight") and tensor.dim() > 1:
                tensor.copy_(torch.full_like(tensor, 0.01))
    elif item == "batch norm":
        state["model"]["1.running_mean"].zero_()
        state["model"]["1.running_var"].fill_(1)
    elif item == "momentum":
        state["optimizer"]["state"] = {}
    elif item == "scaler":
        state["scaler"].update(scale=SETTINGS["loss_scale"], _growth_tracker=0)
    elif item == "random":
        torch.manual_seed(5)
        state["random"][0]["torch"] = torch.get_rng_state()
    elif item == "position":
        state["progress"]["position"] = 0
    elif item == "epoch":
        state["progress"]["epoch"] = 0
    return state


@pytest.mark.parametrize("item", ["weights", "batch norm", "momentum", "scaler", "random", "position", "epoch"])
def test_without_any_one_item_the_end_is_another(item, uninterrupted, tmp_path):
    end = load(checkpoint(uninterrupted, STEPS)).state
    state = without(load(checkpoint(uninterrupted, 10)).state, item)
    assert not same_bits(resumed_from(state, 10, tmp_path)["model"], end["model"])


def test_augmentation_follows_the_epoch_and_the_sample(uninterrupted, tmp_path):
    """It has no state of its own; without it the same checkpoint leads elsewhere."""
    end = load(checkpoint(uninterrupted, STEPS)).state
    state = load(checkpoint(uninterrupted, 10)).state
    state["settings"]["augment"] = "none"
    assert not same_bits(resumed_from(state, 10, tmp_path, augment="none")["model"], end["model"])


def test_loader_workers_change_nothing(uninterrupted, tmp_path):
    end = load(checkpoint(uninterrupted, STEPS)).state
    assert same_bits(load(checkpoint(run(tmp_path, loader_workers=0), STEPS)).state, end)


def test_a_damaged_checkpoint_is_reported_and_the_one_before_taken(uninterrupted, tmp_path, capsys):
    end = load(checkpoint(uninterrupted, STEPS)).state
    target = tmp_path / "checkpoints"
    target.mkdir()
    for step in (8, 9):
        path = checkpoint(uninterrupted, step)
        (target / path.name).write_bytes(path.read_bytes()[: None if step == 8 else -100])
    run(tmp_path)
    said = capsys.readouterr().out
    assert f"{checkpoint(target, 8)}: everything as it was" in said
    assert "step-00000009" in said.split("resumed from")[0]
    assert same_bits(load(checkpoint(target, STEPS)).state, end)


def test_a_checkpoint_of_another_model_names_the_tensors(uninterrupted, tmp_path):
    state = load(checkpoint(uninterrupted, 10)).state
    with pytest.raises(HvdkitError, match=r"another model: 0.weight is 4 x 1 x 3 x 3 .* has 16 x 1 x 5 x 5") as failure:
        resumed_from(state, 10, tmp_path, model="mnist-cnn")
    assert failure.value.exit_code == InputError.exit_code


@pytest.mark.parametrize("changes", [{"seed": 2}, {"synthetic_images": 240}])
def test_other_samples_cannot_go_on(changes, uninterrupted, tmp_path):
    with pytest.raises(HvdkitError, match="the checkpoint comes from a run with"):
        resumed_from(load(checkpoint(uninterrupted, 10)).state, 10, tmp_path, **changes)


def test_another_learning_rate_is_allowed_and_said(uninterrupted, tmp_path, capsys):
    resumed_from(load(checkpoint(uninterrupted, 10)).state, 10, tmp_path, learning_rate=0.01)
    assert "--lr is now 0.01 (was 0.02)" in capsys.readouterr().out


def test_the_recipe_of_today_applies_and_is_said(uninterrupted, tmp_path, capsys):
    last = resumed_from(load(checkpoint(uninterrupted, 10)).state, 10, tmp_path, momentum=0.5, weight_decay=0.3)
    assert [(group["momentum"], group["weight_decay"]) for group in last["optimizer"]["param_groups"]] == [(0.5, 0.3)]
    said = capsys.readouterr().out
    assert "--momentum is now 0.5 (was 0.9)" in said and "--weight-decay is now 0.3 (was 0.0)" in said


def test_fewer_steps_than_are_done_already_take_none(uninterrupted, tmp_path, capsys):
    last = resumed_from(load(checkpoint(uninterrupted, 10)).state, 10, tmp_path, max_steps=5)
    assert last["progress"]["step"] == 10
    assert "0 steps to go" in capsys.readouterr().out


@pytest.mark.parametrize(("step", "name", "goes_on"), [(10, "synthetic digits", False), (8, "synthetic digits", True)])
def test_other_files_can_go_on_at_the_end_of_an_epoch_only(step, name, goes_on, uninterrupted, tmp_path, capsys):
    state = load(checkpoint(uninterrupted, step)).state
    assert state["data"]["name"] == name
    state["data"] |= {"fingerprint": 0}
    if goes_on:
        resumed_from(state, step, tmp_path)
        assert "of other files" in capsys.readouterr().out
    else:
        with pytest.raises(HvdkitError, match="the middle of an epoch of synthetic digits"):
            resumed_from(state, step, tmp_path)


def test_another_data_set_under_the_same_flag_never_goes_on(uninterrupted, tmp_path):
    """MNIST that is not there any more, in whose place `--data mnist` would take synthetic digits."""
    state = load(checkpoint(uninterrupted, 8)).state
    state["data"]["name"] = "MNIST"
    with pytest.raises(HvdkitError, match=r"--data is synthetic digits .* the checkpoint is from MNIST"):
        resumed_from(state, 8, tmp_path)


def test_a_last_checkpoint_that_cannot_be_saved_is_no_success(tmp_path, monkeypatch, capsys):
    def full(self: CheckpointFolder, step: int, state: dict) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(CheckpointFolder, "save", full)
    with pytest.raises(HvdkitError, match="the last checkpoint, of step 16, was not saved"):
        run(tmp_path)
    assert "No space left on device" in capsys.readouterr().out


def test_resume_from_a_file_counts_until_the_run_has_its_own(uninterrupted, tmp_path, capsys):
    origin = str(checkpoint(uninterrupted, 3))
    run(tmp_path, resume=origin, max_steps=5)
    capsys.readouterr()
    run(tmp_path, resume=origin)
    said = capsys.readouterr().out
    assert f"resumed from {checkpoint(tmp_path / 'checkpoints', 5)}" in said
    assert same_bits(
        load(checkpoint(tmp_path / "checkpoints", STEPS)).state, load(checkpoint(uninterrupted, STEPS)).state
    )


def test_a_checkpoint_of_something_else_is_refused_in_a_sentence(tmp_path):
    with pytest.raises(HvdkitError, match="the checkpoint has version None"):
        resumed_from({"model": {}, "extra": {}}, 3, tmp_path)


def test_weights_that_are_not_finite_are_not_saved_over_good_ones(uninterrupted, tmp_path):
    state = load(checkpoint(uninterrupted, 10)).state
    next(iter(state["optimizer"]["state"].values()))["momentum_buffer"].fill_(float("inf"))
    with pytest.raises(HvdkitError, match="not finite"):
        resumed_from(state, 10, tmp_path)
    assert [path.name[5:13] for path in (tmp_path / "checkpoints").glob("step-*.pt")] == ["00000010"]


def test_a_finished_run_is_judged_again_and_ends(uninterrupted, tmp_path):
    end = load(checkpoint(uninterrupted, STEPS)).state
    settings = TrainSettings(output=tmp_path, **SETTINGS)
    checkpoints = CheckpointFolder(tmp_path / "checkpoints")
    checkpoints.prepare()
    checkpoints.save(STEPS, end)
    summary = train(replace(settings), SingleEngine(), StopRequest())
    assert summary["steps"] == STEPS
    assert summary["test_images"] > 0
