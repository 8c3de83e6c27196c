"""The projection against what Horovod's authors published; hvdkit/bench/project_published.py cites the inputs."""

import json

import pytest
from click.testing import CliRunner

from hvdkit.bench.networks import BANDWIDTH_FACTOR, LATENCY_FACTOR
from hvdkit.bench.project_models import named_layers
from hvdkit.bench.project_published import FITTED_AT, Comparison, Constants, compare
from hvdkit.cli.bench_project import command
from hvdkit.errors import InputError

# As published: arXiv:1512.00567 without the second head, arXiv:1512.03385, arXiv:1409.1556.
PARAMETERS = {"inception_v3": 23_834_568, "resnet101": 44_549_160, "vgg16": 138_357_544}


@pytest.fixture(scope="module")
def compared() -> tuple[Constants, dict[str, Comparison]]:
    constants, comparisons = compare(named_layers)
    return constants, {one.published.model: one for one in comparisons}


@pytest.mark.parametrize("model", PARAMETERS)
def test_gradients_are_those_of_the_published_models(model: str) -> None:
    layers = named_layers(model)
    assert sum(layer.gradient_bytes for layer in layers) == 4 * PARAMETERS[model]
    assert sum(layer.backward_share for layer in layers) == pytest.approx(1)


def test_the_layers_come_in_the_order_of_the_backward_pass() -> None:
    """VGG-16 begins with three linear layers that hold 90 % of its bytes and next to no work."""
    layers = named_layers("vgg16")
    assert [layer.gradient_bytes // 4 for layer in layers[:3]] == [4_097_000, 16_781_312, 102_764_544]
    assert sum(layer.backward_share for layer in layers[:3]) < 0.02


@pytest.mark.parametrize("model", PARAMETERS)
def test_the_figures_at_512_gpus_come_within_7_points(compared, model: str) -> None:
    assert abs(compared[1][model].error_points) <= 7


def test_the_fitted_constants_can_be_those_of_a_network(compared) -> None:
    """Not more than the line rate, not absurdly slow, and near the figures that they were fitted to."""
    constants, comparisons = compared
    assert 0.01 < constants.spread < 0.08
    assert 0.7 < constants.bandwidth <= 1
    assert 1 <= constants.latency < 5
    for one in comparisons.values():
        for gpus in FITTED_AT:
            assert one.projected[gpus].efficiency == pytest.approx(one.published.efficiency[gpus], abs=0.03)


def test_the_miss_without_a_fit_is_not_hidden(compared) -> None:
    assert compared[1]["vgg16"].unfitted_points > 7


def test_the_error_is_reported_for_each_constant(compared) -> None:
    for one in compared[1].values():
        assert set(one.sensitivity) == {
            "latency",
            "bandwidth",
            "spread",
            "single-GPU throughput",
            "fusion buffer",
            "cycle",
        }
    vgg16 = compared[1]["vgg16"]
    less, more = vgg16.sensitivity["bandwidth"]
    assert less + 3 < vgg16.error_points < more - 3  # its 550 MB make it a test of the network
    less, more = vgg16.sensitivity["spread"]
    assert less > vgg16.error_points > more


def test_the_named_networks_have_what_was_fitted(compared) -> None:
    assert compared[0].latency == pytest.approx(LATENCY_FACTOR, rel=0.1)
    assert compared[0].bandwidth == pytest.approx(BANDWIDTH_FACTOR, rel=0.02)


def test_the_command_shows_it() -> None:
    text = CliRunner().invoke(command, ["--published"], catch_exceptions=False).output
    assert "vgg16" in text and "bandwidth" in text
    made = json.loads(CliRunner().invoke(command, ["--published", "--json"], catch_exceptions=False).output)
    assert {one["published"]["model"] for one in made["models"]} == set(PARAMETERS)


def test_an_unknown_model_is_named() -> None:
    with pytest.raises(InputError, match="--model 'resnet9000'"):
        named_layers("resnet9000")
