"""The projection: the model by hand, its limits, and Horovod's published figures."""

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from bench_samples import World, make_results
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from hvdkit.bench import result_file
from hvdkit.bench.allreduce import Row, bus_factor
from hvdkit.bench.networks import NETWORKS, Link, Network, find_network, scaled
from hvdkit.bench.project import Layer, Workload, even_layers, project, reduce_gradients, slowest
from hvdkit.bench.project_allreduce import ALGORITHMS, best, hierarchical, ring, tree
from hvdkit.bench.project_fit import fit
from hvdkit.cli.bench_project import command
from hvdkit.errors import InputError
from hvdkit.train.models import create

MS = 1e-3
# One GPU a server, 1 ms a step, 1 MB a millisecond.
PLAIN = Network(
    name="plain",
    description="",
    gpus_per_server=1,
    inside=Link(step_seconds=0.0, bytes_per_second=1e12),
    between=Link(step_seconds=MS, bytes_per_second=1e9),
    start_seconds=0.0,
)
PAIRS = replace(PLAIN, gpus_per_server=2, inside=Link(step_seconds=0.1 * MS, bytes_per_second=1e10))


def test_a_ring_by_hand() -> None:
    # 2 (n - 1) = 6 steps of 1 ms; 2 (n - 1) / n = 1.5 times 8 MB at 1 GB/s = 12 ms.
    assert ring(8e6, 4, PLAIN) == pytest.approx(18 * MS)
    # 4 GPUs in 2 servers: 2 x 2 of the 6 steps cross the network, the other 2 take 0.1 ms.
    assert ring(8e6, 4, PAIRS) == pytest.approx((4 + 0.2 + 12) * MS)
    # One server: only its own links.
    assert ring(8e6, 2, PAIRS) == pytest.approx((0.2 + 0.8) * MS)


def test_a_tree_by_hand() -> None:
    # 8 servers: 3 levels up and 3 down; every byte twice.
    assert tree(8e6, 8, PLAIN) == pytest.approx((6 + 16) * MS)
    assert tree(8e6, 4, PAIRS) == pytest.approx((2 * (0.1 + 1) + 16) * MS)


def test_a_hierarchy_by_hand() -> None:
    # Inside: 2 steps of 0.1 ms and 4 MB at 10 GB/s. Between 2 servers: 2 steps of 1 ms and 4 MB at 1 GB/s.
    assert hierarchical(8e6, 4, PAIRS) == pytest.approx((2 * (0.1 + 0.4) + 2 * (1 + 4)) * MS)


@pytest.mark.parametrize("name", NETWORKS)
def test_small_messages_want_few_steps_and_large_ones_few_bytes(name: str) -> None:
    network = NETWORKS[name]
    assert tree(1e3, 512, network) < ring(1e3, 512, network)
    assert ring(1e9, 8, network) < tree(1e9, 8, network)
    assert best(1e3, 512, network) <= tree(1e3, 512, network)
    assert best(1e9, 8, network) <= ring(1e9, 8, network)


@given(
    st.sampled_from(sorted(ALGORITHMS)),
    st.sampled_from(sorted(NETWORKS)),
    st.floats(1, 1e10),
    st.integers(1, 4096),
)
def test_an_allreduce_takes_longer_with_more_bytes_and_on_worse_networks(
    algorithm: str, name: str, size: float, gpus: int
) -> None:
    allreduce, network = ALGORITHMS[algorithm], NETWORKS[name]
    seconds = allreduce(size, gpus, network)
    assert (seconds == 0) == (gpus == 1)
    assert allreduce(2 * size, gpus, network) >= seconds
    assert allreduce(size, gpus, scaled(network, latency=1.5)) >= seconds
    assert allreduce(size, gpus, scaled(network, bandwidth=1.5)) <= seconds
    if gpus > 1:  # no algorithm beats the links: each rank must send and receive at least the bytes once
        fastest = max(network.between.bytes_per_second, network.inside.bytes_per_second)
        assert seconds >= bus_factor(gpus) * size / fastest / 2


def workload(*layers: tuple[float, float], step: float = 0.3, **more: float) -> Workload:
    made = tuple(Layer(gradient_bytes=size, backward_share=share) for size, share in layers)
    return Workload(name="w", step_seconds=step, layers=made, cycle_seconds=more.pop("cycle_seconds", 0.0), **more)


def test_gradients_are_reduced_while_the_backward_pass_goes_on() -> None:
    # Two ranks: 2 steps of 1 ms and the bytes once. The first 50 MB are ready after 100 ms and take 52 ms, hidden; the
    # second 50 MB after 200 ms, at the end of the backward pass: 52 ms are waited for.
    work = workload((50e6, 0.5), (50e6, 0.5))
    end, busy, count = reduce_gradients(work, 0.2, 2, PLAIN, ring)
    assert (end, busy, count) == (pytest.approx(0.252), pytest.approx(0.104), 2)
    made = project(work, 2, PLAIN, ring)
    assert made.exposed_seconds == pytest.approx(0.052)
    assert made.efficiency == pytest.approx(0.3 / 0.352)


def test_what_is_ready_is_fused_up_to_the_size_of_the_buffer() -> None:
    small = [(1e6, 0.0)] * 100  # all ready at once
    count = reduce_gradients(workload(*small, fusion_bytes=10e6), 0.2, 2, PLAIN, ring)[2]
    assert count == 10
    huge = [(1e6, 0.0), (100e6, 0.0), (1e6, 0.0)]  # a gradient larger than the buffer goes alone
    assert reduce_gradients(workload(*huge, fusion_bytes=10e6), 0.2, 2, PLAIN, ring)[2] == 3


def test_a_cycle_waits_for_the_next_tick() -> None:
    tiny = [(1.0, 0.0)] + [(1.0, 0.01)] * 2
    work = workload(*tiny, cycle_seconds=0.5)
    end, _, count = reduce_gradients(work, 0.02, 2, PLAIN, ring)
    assert count == 2  # the first alone at once, the others together half a second later
    assert end == pytest.approx(0.502)


def test_one_gpu_is_the_baseline_and_stragglers_cost() -> None:
    assert project(workload((1e9, 1.0), spread=0.1), 1, PLAIN, ring).efficiency == 1
    alone = project(workload((0.0, 1.0), spread=0.1), 16, PLAIN, ring)
    assert alone.efficiency == pytest.approx(
        1 / (1 + 0.1 * 1.766), rel=2e-3
    )  # the expected largest of 16 normal values
    assert slowest(512, 0.03) == pytest.approx(1 + 0.03 * 3.04, rel=1e-3)


@given(st.floats(0.01, 10), st.floats(1e5, 1e10), st.sampled_from(sorted(NETWORKS)), st.floats(0, 0.2))
def test_efficiency_stays_within_its_band_and_falls_with_gpus(
    step: float, size: float, name: str, spread: float
) -> None:
    work = Workload(name="w", step_seconds=step, layers=even_layers(size), spread=spread)
    made = [project(work, gpus, NETWORKS[name], ring) for gpus in (1, 8, 512, 4096)]
    for one in made:
        assert 0 < one.low <= one.efficiency <= one.high <= 1 + 1e-9
    assert made[0].efficiency == 1
    # Not quite monotonous: when each allreduce takes a little longer, more gradients may be fused into the last one.
    for fewer, more in itertools.pairwise(made):
        assert more.step_seconds >= fewer.step_seconds - ring(size / 50, fewer.gpus, NETWORKS[name]) - 2 * MS


def test_the_band_grows_beyond_what_was_ever_compared() -> None:
    work = Workload(name="w", step_seconds=0.3, layers=even_layers(4e8), spread=0.03)
    near, far = (project(work, gpus, find_network("25gbe"), ring) for gpus in (512, 8192))
    assert (far.high - far.low) / far.efficiency > 2 * (near.high - near.low) / near.efficiency


def rows(
    step: float, bandwidth: float, cores: int, ranks: tuple[int, ...], noise: float = 0.0, start: float = 0.0
) -> list[Row]:
    """Times that follow the model, every other one longer by `noise`."""
    made = []
    for number, (count, size) in enumerate((count, 4**power) for count in ranks for power in range(5, 15)):
        crowding = math.ceil(count / cores)
        seconds = start + crowding * 2 * (count - 1) * (step + size / count / bandwidth)
        seconds *= 1 + noise * (-1) ** number
        made.append(
            Row(
                library="mpi4py",
                ranks=count,
                bytes=size,
                seconds=seconds,
                fastest=seconds,
                slowest=seconds,
                calls=1,
                algorithm_bytes_per_second=size / seconds,
                bus_bytes_per_second=size / seconds,
            )
        )
    return made


@pytest.mark.parametrize("start", [0.0, 5e-3])
def test_a_fit_finds_the_constants_and_predicts_another_number_of_ranks(start: float) -> None:
    made = fit(rows(2e-5, 3e9, 2, (2, 3), start=start), "mpi4py", cores=2)
    assert made.start_seconds == pytest.approx(start, abs=1e-9)
    assert (made.step_seconds, made.bytes_per_second) == (pytest.approx(2e-5, rel=1e-3), pytest.approx(3e9, rel=1e-3))
    for row in rows(2e-5, 3e9, 2, (4,), start=start):
        assert made.predict(row.bytes, 4) == pytest.approx(row.seconds, rel=1e-3)


def test_a_fit_bears_noise_and_one_number_of_ranks() -> None:
    noisy = fit(rows(2e-5, 3e9, 2, (2, 3), noise=0.1), "mpi4py", cores=2)
    assert noisy.predict(1 << 10, 4) == pytest.approx(rows(2e-5, 3e9, 2, (4,))[0].seconds, rel=0.2)
    assert noisy.bytes_per_second == pytest.approx(3e9, rel=0.15)
    single = fit(rows(2e-5, 3e9, 2, (2,)), "mpi4py", cores=2)  # start and steps cannot be told apart
    assert single.predict(1 << 20, 2) == pytest.approx(rows(2e-5, 3e9, 2, (2,))[5].seconds, rel=1e-3)


def test_a_fitted_network_gives_the_fitted_times() -> None:
    made = fit(rows(2e-5, 3e9, 8, (2, 3), start=1e-3), "mpi4py", cores=8)
    assert ring(1e6, 4, made.network()) == pytest.approx(made.predict(1e6, 4))


def test_what_determines_no_fit_is_refused() -> None:
    with pytest.raises(InputError, match="horovod-mpi; the files have mpi4py"):
        fit(rows(1e-5, 1e9, 2, (2,)), "horovod-mpi", cores=2)
    with pytest.raises(InputError, match="at least 3 sizes"):
        fit(rows(1e-5, 1e9, 2, (2,))[:2], "mpi4py", cores=2)
    falling = [replace(row, seconds=1 / row.bytes) for row in rows(1e-5, 1e9, 2, (2,))]
    with pytest.raises(InputError, match="do not grow"):
        fit(falling, "mpi4py", cores=2)


@pytest.mark.parametrize("field", ["step_seconds", "spread"])
def test_a_workload_that_cannot_be_is_refused(field: str) -> None:
    with pytest.raises(InputError, match=field):
        replace(workload((1.0, 1.0)), **{field: -1.0})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--step-seconds"),
        (["--step-seconds", "1"], "--model, or --gradient-megabytes"),
        (["--step-seconds", "1", "--gradient-megabytes", "5", "--network", "56k"], "--network '56k' is unknown"),
        (["--step-seconds", "1", "--gradient-megabytes", "5", "--gpus", "8,x"], "--gpus 'x'"),
        (["--step-seconds", "1", "--gradient-megabytes", "5", "--allreduce", "no.json"], "no.json cannot be read"),
    ],
)
def test_a_mistake_is_named(arguments: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        CliRunner().invoke(command, arguments, catch_exceptions=False)


def test_the_command_prints_a_line_a_number_of_gpus() -> None:
    flags = ["--gradient-megabytes", "100", "--images-per-second", "400", "--batch-size", "100", "--gpus", "1,8,64"]
    text = CliRunner().invoke(command, flags, catch_exceptions=False).output
    assert "100 MB of gradients, 250 ms a step" in text
    assert [line.split()[0] for line in text.splitlines()[-3:]] == ["1", "8", "64"]
    made = json.loads(CliRunner().invoke(command, [*flags, "--json"], catch_exceptions=False).output)
    assert (made["version"], made["kind"]) == (1, "projection")
    assert [one["gpus"] for one in made["projections"]] == [1, 8, 64]


def test_the_step_of_a_sweep_is_that_of_its_model(tmp_path: Path) -> None:
    """The step of one model with the gradients of another is a projection of nothing."""
    results = make_results({("horovod", 1): World(), ("horovod", 2): World()}, model="resnet18", noise=0.0)
    result_file.save(results, tmp_path / "results.json")
    words = ["--result", str(tmp_path), "--gpus", "8", "--json"]
    with pytest.raises(InputError, match=r"^--model resnet50: .* measured resnet18; say that one, or "):
        CliRunner().invoke(command, [*words, "--model", "resnet50"], catch_exceptions=False)
    for gradients in (["--model", "resnet18"], [], ["--gradient-megabytes", "47"]):
        done = CliRunner().invoke(command, [*words, *gradients], catch_exceptions=False)
        assert json.loads(done.output)["workload"]["step_seconds"] == pytest.approx(0.1025, rel=0.01)


def test_a_sweep_of_the_default_network_can_be_projected(tmp_path: Path) -> None:
    results = make_results({("horovod", 1): World(), ("horovod", 2): World()}, model="mnist-cnn", noise=0.0)
    result_file.save(results, tmp_path / "results.json")
    done = CliRunner().invoke(command, ["--result", str(tmp_path), "--gpus", "8", "--json"], catch_exceptions=False)
    workload = json.loads(done.output)["workload"]
    model = create("mnist-cnn", classes=10, channels=1, image_size=28)
    assert workload["gradient_bytes"] == 4 * sum(parameter.numel() for parameter in model.parameters())
