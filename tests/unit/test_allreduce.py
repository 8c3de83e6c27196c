"""`hvdkit bench allreduce` without ranks: flags, files and text. Real ranks: tests/local/test_bench_allreduce.py."""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from hvdkit.bench.allreduce import SIZES, Measurement, Row, bus_factor, calls_for, load, make_row
from hvdkit.bench.allreduce_rank import Library, has_gpus_for, is_correct, measure_all, numbers_of
from hvdkit.cli.bench_allreduce import command, describe, size_of
from hvdkit.errors import HvdkitError, InputError


def measurement(wrong: tuple[str, ...] = ()) -> Measurement:
    batches = {"library": "mpi4py", "bytes": 1 << 20, "calls": 50, "batches": [0.002, 0.001, 0.004]}
    rows = (make_row(2, batches), make_row(4, batches | {"library": "horovod-mpi", "bytes": 1 << 10}))
    return Measurement(rows=rows, wrong=wrong, device="cpu", cores=2, created="2026-01-01T00:00:00+00:00")


def test_sizes_go_from_1_kib_to_256_mib_in_batches_of_fixed_length() -> None:
    assert (SIZES[0], SIZES[-1]) == (1 << 10, 256 << 20)
    assert [calls_for(size) for size in (1 << 10, 4 << 20, 64 << 20, 256 << 20)] == [20, 20, 2, 1]


def test_a_row_is_the_median_over_batches() -> None:
    row = measurement().rows[0]
    assert (row.seconds, row.fastest, row.slowest) == (0.002, 0.001, 0.004)
    assert row.algorithm_bytes_per_second == (1 << 20) / 0.002
    assert row.bus_bytes_per_second == row.algorithm_bytes_per_second  # 2 (2 - 1) / 2 = 1
    assert (bus_factor(2), bus_factor(4)) == (1, 1.5)


def test_the_text_has_every_row_and_says_what_is_wrong() -> None:
    text = describe(measurement())
    assert "mpi4py             2    1 MiB      2.00 ms       1.00 ms - 4.00 ms   0.524 GB/s   0.524 GB/s" in text
    assert "1 KiB" in text and text.endswith("all sums correct.")
    assert describe(measurement(("mpi4py on rank 1 of 2",))).endswith("wrong: mpi4py on rank 1 of 2")


def times(library: str, *batches: float, size: int = 1 << 20, ranks: int = 2) -> Row:
    return make_row(ranks, {"library": library, "bytes": size, "calls": 5, "batches": batches})


def test_horovod_is_held_against_the_library_beside_it() -> None:
    rows = (times("mpi4py", 1e-3, 1.2e-3), times("horovod-mpi", 2e-3, 2.4e-3), times("torch-gloo", 4e-3))
    rows += (times("horovod-gloo", 3e-3), times("horovod-mpi", 1e-3, ranks=3))  # that one has no counterpart
    made = replace(measurement(), rows=rows)
    found = {(one.library, one.against): (one.ratio, one.impossible) for one in made.comparisons()}
    # Gloo of torch is another program, which Horovod may well be faster than.
    expected = {("horovod-mpi", "mpi4py"): (pytest.approx(2), False)}
    assert found == expected | {("horovod-gloo", "torch-gloo"): (pytest.approx(0.75), False)}
    text = describe(made)
    assert "horovod-mpi / mpi4py, 2 ranks: 1 MiB 2.00\nhorovod-gloo / torch-gloo, 2 ranks: 1 MiB 0.75\n" in text
    assert [one["ratio"] for one in json.loads(made.to_json())["comparisons"]] == pytest.approx([2, 0.75])


@pytest.mark.parametrize(
    ("batches", "impossible"),
    [((0.5e-3, 0.6e-3), True), ((0.5e-3, 1.1e-3), False), ((0.92e-3, 0.95e-3), False), ((1e-3, 3e-3), False)],
)
def test_horovod_cannot_be_faster_than_the_call_it_makes(batches: tuple[float, ...], impossible: bool) -> None:
    made = replace(measurement(), rows=(times("mpi4py", 1e-3, 1.3e-3), times("horovod-mpi", *batches)))
    assert [one.impossible for one in made.comparisons()] == [impossible]
    assert ("warning: horovod-mpi took 0.48 of mpi4py's time for 1 MiB on 2 ranks" in describe(made)) == impossible


def test_a_file_comes_back_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text(measurement().to_json())
    assert load(file) == measurement()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is no JSON"),
        ("[]", "is not the result"),
        ('{"version": 2, "kind": "allreduce"}', "is not the result"),
        ('{"version": 1, "kind": "allreduce"}', "is damaged: 'rows'"),
        ('{"version": 1, "kind": "allreduce", "rows": [{"a": 1}]}', "is damaged"),
    ],
)
def test_a_file_that_is_none_is_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(InputError, match=message):
        load(tmp_path / "a.json")


def library(add: Callable[[torch.Tensor, str], torch.Tensor], rank: int = 0) -> Library:
    """Rank 0 or 1 of a world of two, of which the other one is made up."""
    device = torch.device("cpu")
    return Library(name="made-up", rank=rank, size=2, device=device, add=add, gather=lambda value: [value])


def sum_of_two(tensor: torch.Tensor, rank: int = 0) -> torch.Tensor:
    other = numbers_of(1 - rank)
    return tensor + other.repeat(len(tensor) // len(other) + 1)[: len(tensor)]


@pytest.mark.parametrize("size", [4, 1024, 4 * 1003, 1 << 20, (1 << 20) + 4])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_right_sum_of_any_size_is_called_right(size: int, rank: int) -> None:
    assert is_correct(library(lambda tensor, _: sum_of_two(tensor, rank), rank), size)


@pytest.mark.parametrize("size", [4, 1024, 4 * 1003, 1 << 20])
def test_a_wrong_sum_is_found_at_every_size(size: int) -> None:
    def last_is_wrong(tensor: torch.Tensor, _: str) -> torch.Tensor:
        answer = sum_of_two(tensor)
        answer[-1] += 1
        return answer

    assert not is_correct(library(last_is_wrong), size)
    assert not is_correct(library(lambda tensor, _: tensor), size)  # nothing was added
    assert not is_correct(library(lambda tensor, _: 2 * tensor), size)  # as if the other rank had the same


def test_each_size_that_is_measured_is_checked() -> None:
    def breaks_when_large(tensor: torch.Tensor, _: str) -> torch.Tensor:
        return sum_of_two(tensor) if len(tensor) < 1 << 16 else tensor

    report = measure_all(library(breaks_when_large), {"sizes": [(1 << 10, 1), (1 << 20, 1)], "batches": 1})
    assert [row["bytes"] for row in report["rows"]] == [1 << 10, 1 << 20]
    assert report["wrong"] == ["made-up, 1048576 bytes, on rank 0"]


@pytest.mark.parametrize(("text", "size"), [("4", 4), ("1K", 1024), ("64m", 64 << 20), ("1G", 1 << 30)])
def test_sizes_are_read(text: str, size: int) -> None:
    assert size_of(text) == size


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--workers", "1"], "at least 2 ranks"),
        (["--workers", "two"], "--workers 'two'"),
        (["--controllers", "smoke"], "--controllers 'smoke': there are mpi, gloo"),
        (["--sizes", "1X"], "--sizes '1X'"),
        (["--sizes", "2"], "--sizes: the smallest"),
    ],
)
def test_a_mistake_is_named(flags: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        CliRunner().invoke(command, flags, catch_exceptions=False)


def at_once(*flags: str) -> HvdkitError:
    """The mistake that is told before a rank starts."""
    result = CliRunner().invoke(command, ["--sizes", "1K", "--batches", "1", *flags])
    assert isinstance(result.exception, HvdkitError) and "ranks over" not in result.stderr, result.stderr
    return result.exception


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--output", "missing/a.json"], "--output missing/a.json cannot be written: there is no folder missing."),
        (["--plot", "missing/a.svg"], "--plot missing/a.svg cannot be written: there is no folder missing."),
        (["--plot", "a.jpeg"], "--plot a.jpeg: the name must end in .svg, .png or .pdf."),
    ],
)
def test_a_file_that_cannot_be_is_refused_before_it_is_measured(flags: list[str], message: str) -> None:
    assert str(at_once(*flags)) == message


def test_a_plot_without_matplotlib_is_refused_before_it_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    import hvdkit.bench

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for name in ("plots", "allreduce_plot"):
        monkeypatch.delitem(sys.modules, f"hvdkit.bench.{name}", raising=False)
        monkeypatch.delattr(hvdkit.bench, name, raising=False)
    assert str(at_once("--plot", "a.svg")).startswith("plots need matplotlib")


@pytest.mark.parametrize(("gpus", "answer"), [(0, False), (1, False), (2, True), (8, True)])
def test_a_gpu_for_some_ranks_is_none_for_the_world(gpus: int, answer: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPUs are made up."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert has_gpus_for(2) == answer


def test_a_plot_is_drawn(tmp_path: Path) -> None:
    from hvdkit.bench.allreduce_plot import plot

    made = measurement()
    made = replace(made, rows=(*made.rows, replace(made.rows[0], bytes=4 << 20)))
    plot(made, tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text()
    assert "mpi4py, 2 ranks" in text and "horovod-mpi, 4 ranks" in text and "bus bandwidth, GB/s" in text
    with pytest.raises(InputError, match="--plot"):
        plot(made, tmp_path / "a.txt")


def test_json_has_a_version() -> None:
    assert {"version": 1, "kind": "allreduce"}.items() <= json.loads(measurement().to_json()).items()
