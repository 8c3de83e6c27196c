"""Two Horovod ranks, two DDP ranks and one process train alike, with every setting."""

import json
import math
import sys
from pathlib import Path

import pytest
from running import LAUNCHERS, run

SCRIPT = str(Path(__file__).with_name("train_variations.py"))


@pytest.fixture(scope="module", params=["hvdkit-mpi", "torchrun"])
def found(request, tmp_path_factory):
    """What each setting came to, on two ranks and in one process."""
    folder = tmp_path_factory.mktemp("variations")
    python = () if request.param == "torchrun" else (sys.executable,)
    done = run(*LAUNCHERS[request.param], *python, SCRIPT, str(folder))
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((folder / "found.json").read_text())


def test_losses_and_weights_equal_those_of_one_process(found):
    exact = {name: values for name, values in found.items() if "alone" in values}
    assert {"plain", "accumulate", "clip", "sum", "channels-last", "deterministic"} <= exact.keys()
    for name, values in exact.items():
        assert len(values["losses"]) == len(values["alone"]) == 20, name
        assert values["losses"] == pytest.approx(values["alone"], abs=1e-4), name
        assert values["weights"] < 1e-4, name


def test_every_setting_learns_something(found):
    rough = {name: values for name, values in found.items() if "alone" not in values}
    assert {"fp16 on the wire", "bf16 weights", "amp-bf16", "amp-fp16", "compiled", "resnet18"} <= rough.keys()
    for name, values in rough.items():
        losses = values["losses"]
        assert all(map(math.isfinite, losses)), name
        if len(losses) == 20:
            assert sum(losses[-5:]) < sum(losses[:5]), name


def test_all_ranks_end_with_the_same_weights(found):
    assert {name for name, values in found.items() if not values["alike"]} == set()


def test_the_settings_really_differ(found):
    """A flag that does nothing would pass the comparisons above."""
    plain = found["plain"]["losses"]
    for name in ("clip", "smoothing, decay", "loader workers"):
        assert found[name]["losses"] != pytest.approx(plain, abs=1e-4), name
    for name in ("fp16 on the wire", "bf16 weights", "amp-bf16"):
        assert found[name]["losses"] != plain, name
    assert found["amp-fp16"]["losses"] != found["few images"]["losses"]
