"""Lines of many ranks: nothing lost, nothing mixed, however the bytes arrive."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hvdkit.local.output import LONGEST_LINE, RankOutput

lines = st.lists(st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=40), max_size=8)


@settings(max_examples=60)
@given(lines, lines, st.integers(1, 7), st.sampled_from(["\n", "\r\n"]))
def test_lines_of_two_ranks_stay_apart(first: list[str], second: list[str], cut: int, end: str) -> None:
    output = RankOutput(2, None)
    shown: list[tuple[int, str]] = []
    output._show = lambda rank, line, *, error: shown.append((rank, line.decode()))
    streams = ["".join(line + end for line in lines).encode() for lines in (first, second)]
    for position in range(0, max(map(len, streams), default=0), cut):
        for rank, stream in enumerate(streams):
            output.write(rank, stream[position : position + cut], error=False)
    for rank in (0, 1):
        output.finish(rank)
    assert [line for rank, line in shown if rank == 0] == first
    assert [line for rank, line in shown if rank == 1] == second


def test_a_progress_bar_is_thinned_out_on_the_terminal_and_whole_in_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = RankOutput(1, tmp_path)
    for percent in range(101):
        output.write(0, f"\r{percent} %".encode(), error=False)
    output.write(0, b"\n", error=False)
    output.finish(0)
    assert len(capsys.readouterr().out.splitlines()) < 10
    assert len((tmp_path / "rank-0.log").read_text().splitlines()) == 102


def test_a_line_without_end_does_not_fill_the_memory(capsys: pytest.CaptureFixture[str]) -> None:
    output = RankOutput(1, None)
    for _ in range(5):
        output.write(0, b"x" * LONGEST_LINE, error=False)
    assert len(output._buffers[0, False]) <= LONGEST_LINE
    output.finish(0)
    assert capsys.readouterr().out.count("x") == 5 * LONGEST_LINE


def test_a_full_disk_costs_the_log_and_not_the_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "rank-0.log").symlink_to("/dev/full")
    output = RankOutput(1, tmp_path)
    output.write(0, b"one\ntwo\n", error=False)
    printed = capsys.readouterr()
    assert printed.out == "[0] one\n[0] two\n"
    assert printed.err.count("not written any more: No space left on device") == 1
