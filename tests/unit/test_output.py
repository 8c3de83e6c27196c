"""Lines of many ranks: nothing lost, nothing mixed, however the bytes arrive."""

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hvdkit.local.output import LONGEST_LINE, RankOutput
from hvdkit.local.writer import Writer

lines = st.lists(st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=40), max_size=8)


@settings(max_examples=60)
@given(lines, lines, st.integers(1, 7), st.sampled_from(["\n", "\r\n"]))
def test_lines_of_two_ranks_stay_apart(first: list[str], second: list[str], cut: int, end: str) -> None:
    shown: list[tuple[int, str]] = []
    output = RankOutput(2, None, Writer())
    output._line = lambda rank, line, **_: shown.append((rank, line.decode()))
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
    writer = Writer()
    output = RankOutput(1, tmp_path, writer)
    for percent in range(101):
        output.write(0, f"\r{percent} %".encode(), error=False)
    output.write(0, b"\n", error=False)
    output.finish(0)
    writer.close()
    assert len(capsys.readouterr().out.splitlines()) < 10
    assert len((tmp_path / "rank-0.log").read_text().splitlines()) == 102


def test_a_line_without_end_does_not_fill_the_memory(capsys: pytest.CaptureFixture[str]) -> None:
    writer = Writer()
    output = RankOutput(1, None, writer)
    for _ in range(5):
        output.write(0, b"x" * LONGEST_LINE, error=False)
        assert len(output._unfinished[0, False]) <= LONGEST_LINE
    output.finish(0)
    writer.close()
    assert capsys.readouterr().out.count("x") == 5 * LONGEST_LINE


def test_a_full_disk_costs_the_log_and_not_the_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "rank-0.log").symlink_to("/dev/full")
    writer = Writer()
    output = RankOutput(1, tmp_path, writer)
    output.write(0, b"one\ntwo\n", error=False)
    writer.close()
    printed = capsys.readouterr()
    assert printed.out == "[0] one\n[0] two\n"
    assert printed.err.count("not written any more: No space left on device") == 1


def test_a_reader_who_stops_reading_does_not_stop_the_writer_of_the_queue() -> None:
    read_end, write_end = os.pipe()
    stream = os.fdopen(write_end, "w")
    writer = Writer()
    for _ in range(100):  # far more than a pipe holds
        writer.write(stream, b"x" * (1 << 16))
    assert writer.full
    os.close(read_end)
    writer.close()
    assert writer.closed_by_reader


def test_bytes_that_are_no_text_go_out_as_they_came_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "output"
    with path.open("w", encoding="ascii") as stream:
        monkeypatch.setattr("sys.stdout", stream)
        writer = Writer()
        output = RankOutput(1, None, writer)
        output.write(0, "█ ".encode() + b"\xff\n", error=False)
        writer.close()
    assert path.read_bytes() == "[0] █ ".encode() + b"\xff\n"
