"""Settings of a run, the learning rate of each step, and the choice of the engine."""

import pytest

from hvdkit.errors import EnvironmentProblem, InputError
from hvdkit.runtime.engine import choose
from hvdkit.train.schedule import learning_rate
from hvdkit.train.settings import TrainSettings


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"epochs": 0}, "--epochs is 0"),
        ({"batch_size": 0}, "--batch-size is 0"),
        ({"batch_size": -3}, "--batch-size is -3"),
        ({"learning_rate": 0.0}, "--lr is 0"),
        ({"learning_rate": float("nan")}, "--lr is nan"),
        ({"seed": -1}, "--seed is -1"),
        ({"model": "mnist-cn"}, "did you mean 'mnist-cnn'?"),
        ({"data": "imagenet"}, "there is mnist, synthetic"),
    ],
)
def test_a_wrong_setting_is_named(wrong, said):
    with pytest.raises(InputError) as failure:
        TrainSettings(**wrong)
    assert said in str(failure.value)


def test_the_learning_rate_warms_up_to_the_world_and_falls_towards_zero():
    rates = [learning_rate(step, 100, base=0.1, size=4, warmup=10) for step in range(100)]
    assert 0.1 < rates[0] < 0.2
    assert rates[9] == pytest.approx(0.4)
    assert max(rates) == pytest.approx(0.4)
    assert rates[:10] == sorted(rates[:10])
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert 0 < rates[99] < 0.01


def test_one_rank_without_warm_up_starts_at_the_base():
    assert learning_rate(0, 5, base=0.1, size=1, warmup=0) == pytest.approx(0.1)


@pytest.mark.parametrize("mark", ["OMPI_COMM_WORLD_SIZE", "HOROVOD_RANK", "HOROVOD_SIZE", "HVDKIT_WORLD_SIZE"])
def test_auto_is_horovod_under_a_launcher(mark):
    assert choose("auto", {mark: "1"}) == "horovod"


@pytest.mark.parametrize(("mark", "launcher"), [("WORLD_SIZE", "torchrun"), ("PMI_SIZE", "not Open MPI")])
def test_auto_refuses_to_train_alone_among_many(mark, launcher):
    with pytest.raises(EnvironmentProblem, match=launcher):
        choose("auto", {mark: "2"})
    assert choose("auto", {mark: "1"}) == "single"
    assert choose("single", {mark: "2"}) == "single"


def test_auto_is_single_alone_and_a_choice_stands():
    assert choose("auto", {"PATH": "/bin"}) == "single"
    assert choose("single", {"HOROVOD_RANK": "0"}) == "single"
    assert choose("horovod", {}) == "horovod"
