"""`hvdkit bench allreduce` with real ranks, and a fit to what they measured."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hvdkit.bench import allreduce
from hvdkit.bench.project_fit import fit

LIBRARIES = {"horovod-mpi": (2, 3), "mpi4py": (2, 3), "horovod-gloo": (2,), "torch-gloo": (2,)}
SIZES = (1 << 10, 256 << 10, 8 << 20)


def bench(file: Path, *flags: str) -> allreduce.Measurement:
    command = [sys.executable, "-m", "hvdkit", "bench", "allreduce", *flags, "--batches", "2", "--json"]
    done = subprocess.run([*command, "--output", str(file)], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == json.loads(file.read_text())
    return allreduce.load(file)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> allreduce.Measurement:
    folder = tmp_path_factory.mktemp("allreduce")
    over_mpi = bench(folder / "mpi.json", "--workers", "2,3", "--controllers", "mpi", "--sizes", "1K,256K,8M")
    over_gloo = bench(folder / "gloo.json", "--workers", "2", "--controllers", "gloo", "--sizes", "1K,8M")
    return replace(over_mpi, rows=over_mpi.rows + over_gloo.rows, wrong=over_mpi.wrong + over_gloo.wrong)


def test_a_disk_that_is_full_in_the_end_does_not_lose_the_figures() -> None:
    words = ["--controllers", "mpi", "--sizes", "1K", "--batches", "1", "--json", "--output", "/dev/full"]
    command = [sys.executable, "-m", "hvdkit", "bench", "allreduce", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 2 and "--output /dev/full cannot be written: No space left" in done.stderr, done.stderr
    assert len(json.loads(done.stdout)["rows"]) == 2


def test_every_library_adds_up_correctly(measured: allreduce.Measurement) -> None:
    assert measured.wrong == ()
    found = {(row.library, row.ranks) for row in measured.rows}
    assert found == {(library, ranks) for library, worlds in LIBRARIES.items() for ranks in worlds}


def test_horovod_is_held_against_its_counterpart_at_every_size(measured: allreduce.Measurement) -> None:
    found = {(one.library, one.against, one.ranks, one.bytes) for one in measured.comparisons()}
    mpi = {("horovod-mpi", "mpi4py", ranks, size) for ranks in (2, 3) for size in SIZES}
    assert found == mpi | {("horovod-gloo", "torch-gloo", 2, size) for size in (1 << 10, 8 << 20)}


def test_times_are_those_of_real_work(measured: allreduce.Measurement) -> None:
    """Between ranks that share memory no allreduce is faster than 100 GB/s, and more bytes take longer."""
    for row in measured.rows:
        assert 0 < row.fastest <= row.seconds <= row.slowest
        assert row.bus_bytes_per_second < 100e9
    for library in ("mpi4py", "torch-gloo"):  # Horovod's cycle, tens of milliseconds over Gloo, hides such sizes
        seconds = {row.bytes: row.seconds for row in measured.rows if (row.library, row.ranks) == (library, 2)}
        assert seconds[8 << 20] > seconds[1 << 10]


@pytest.mark.parametrize("library", ["mpi4py", "horovod-mpi"])
def test_a_model_is_fitted_to_what_ranks_measured(measured: allreduce.Measurement, library: str) -> None:
    """How well it predicts a world of 4 is a matter of the machine: benchmarks/allreduce_fit.py measures that."""
    made = fit(measured.rows, library, measured.cores)
    assert made.ranks == (2, 3)
    predicted = [made.predict(size, 4) for size in SIZES]
    assert predicted == sorted(predicted) and predicted[0] > 0
