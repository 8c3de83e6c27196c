"""`hvdkit bench allreduce`: how fast ranks of this machine add up tensors, by library and size."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hvdkit.errors import InputError

if TYPE_CHECKING:
    from hvdkit.bench.allreduce import Measurement

EXAMPLES = """\b
Examples:
  hvdkit bench allreduce                                         2 ranks, MPI and Gloo, 1 KiB to 256 MiB
  hvdkit bench allreduce --workers 2,3,4 --output allreduce.json  for `hvdkit bench project --allreduce`
  hvdkit bench allreduce --controllers mpi --sizes 1K,1M,64M --plot allreduce.svg
"""
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@click.command(epilog=EXAMPLES)
@click.option("--workers", default="2", show_default=True, metavar="2,3,4", help="Numbers of ranks, one after another.")
@click.option("--controllers", default="mpi,gloo", show_default=True, help="How Horovod's ranks talk.")
@click.option("--sizes", metavar="1K,1M,…", help="Bytes of a message.  [default: 1K to 256M, each 4 times the last]")
@click.option("--batches", type=click.IntRange(min=1), default=5, show_default=True, help="Measurements of a size.")
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), help="Write the result as JSON.")
@click.option("--plot", type=click.Path(path_type=Path, dir_okay=False), help="Draw time and bandwidth (.svg, .png).")
@click.option("--json", "as_json", is_flag=True, help="The result as JSON on stdout.")
def command(
    workers: str,
    controllers: str,
    sizes: str | None,
    batches: int,
    output: Path | None,
    plot: Path | None,
    as_json: bool,
) -> int:
    """Measure allreduces on this machine: correct, how long, which bandwidth.

    Horovod over MPI is held against mpi4py, and Horovod over Gloo against torch.distributed, in the same processes.
    Below the table are the ratios of their times, and a warning where Horovod seems faster than the MPI call it makes.
    Small messages show what a call costs, large ones the bandwidth. Bus bandwidth is that of a link by the best
    algorithm, 2 (n - 1) / n of the bytes, and comparable between numbers of ranks.

    Exit code 1 when a sum is wrong.
    """
    from hvdkit.bench import allreduce

    ranks = [_whole("--workers", word) for word in _words(workers)]
    lengths = [size_of(word) for word in _words(sizes)] if sizes else list(allreduce.SIZES)
    allreduce.check_request(ranks, _words(controllers), lengths)
    check_files(output, plot)
    result = allreduce.measure(
        ranks, _words(controllers), lengths, batches=batches, say=lambda text: click.echo(text, err=True)
    )
    click.echo(result.to_json() if as_json else describe(result))  # first: a disk that is full by now loses nothing
    if output:
        try:
            output.write_text(result.to_json() + "\n")
        except OSError as error:
            raise InputError(f"--output {output} cannot be written: {error.strerror}.") from None
    if plot:
        from hvdkit.bench import allreduce_plot

        allreduce_plot.plot(result, plot)
    return int(bool(result.wrong))


def check_files(output: Path | None, plot: Path | None) -> None:
    """A typo or a missing matplotlib is said now, and not after minutes of measuring."""
    for flag, file in (("--output", output), ("--plot", plot)):
        if file is None:
            continue
        if not file.parent.is_dir():
            raise InputError(f"{flag} {file} cannot be written: there is no folder {file.parent}.")
        if not os.access(file if file.exists() else file.parent, os.W_OK):
            raise InputError(f"{flag} {file} cannot be written: Permission denied.")
    if plot is not None:
        from hvdkit.bench import allreduce_plot

        allreduce_plot.check_name(plot)


def describe(result: "Measurement") -> str:
    """The result for people."""
    lines = [
        f"{'library':<14} {'ranks':>5} {'size':>8} {'time':>12} {'fastest-slowest':>23} {'algorithm':>12} {'bus':>12}"
    ]
    for row in result.rows:
        between = f"{_time(row.fastest)} - {_time(row.slowest)}"
        lines.append(
            f"{row.library:<14} {row.ranks:>5} {_size(row.bytes):>8} {_time(row.seconds):>12} {between:>23} "
            f"{row.algorithm_bytes_per_second / 1e9:>7.3f} GB/s {row.bus_bytes_per_second / 1e9:>7.3f} GB/s"
        )
    if compared := _compared(result):
        lines += ["", *compared]
    lines += ["", *(f"wrong: {text}" for text in result.wrong)] if result.wrong else ["", "all sums correct."]
    return "\n".join(lines)


def _compared(result: "Measurement") -> list[str]:
    """Horovod's time over that of the library beside it, a line for each number of ranks; and what cannot be."""
    lines: dict[tuple[str, str, int], list[str]] = {}
    warnings = []
    for one in result.comparisons():
        ratios = lines.setdefault((one.library, one.against, one.ranks), [])
        ratios.append(f"{_size(one.bytes)} {one.ratio:.2f}")
        if one.impossible:
            warnings.append(
                f"warning: {one.library} took {one.ratio:.2f} of {one.against}'s time for {_size(one.bytes)} on "
                f"{one.ranks} ranks, though it makes the same call; something disturbed the run: measure again."
            )
    said = [f"{library} / {other}, {ranks} ranks: {', '.join(own)}" for (library, other, ranks), own in lines.items()]
    return said + warnings


def size_of(text: str) -> int:
    """Bytes of 1K, 64M or 4096; InputError for anything else."""
    digits, unit = (text[:-1], text[-1].upper()) if text[-1:].isalpha() else (text, "")
    if not digits.isdecimal() or unit not in UNITS:
        raise InputError(f"--sizes '{text}' is no size; say bytes, or a number and K, M or G, as 64M.")
    return int(digits) * UNITS[unit]


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _whole(flag: str, text: str) -> int:
    if not text.isdecimal():
        raise InputError(f"{flag} '{text}' is no number of ranks.")
    return int(text)


def _size(count: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= unit:
            return f"{count / unit:g} {name}"
    return f"{count} B"


def _time(seconds: float) -> str:
    return f"{1e6 * seconds:.0f} us" if seconds < 1e-3 else f"{1e3 * seconds:.2f} ms"
