"""What a run reports: the bar and the lines that people see, metrics.jsonl, TensorBoard's files."""

import contextlib
import dataclasses
import json
import math
import os
import pty
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hvdkit.errors import InputError
from hvdkit.train import history, progress
from hvdkit.train.history import History, read
from hvdkit.train.progress import LineProgress, clock, summary_lines
from hvdkit.train.report import Evaluation, Interval, Reporters
from hvdkit.train.settings import TrainSettings
from hvdkit.train.tensorboard import TensorBoard

SECONDS = 60  # a child that takes longer hangs

INTERVAL = Interval(
    step=100,
    steps=469,
    epoch=1,
    epochs=1,
    seconds=7.9,
    images=12_800,
    loss=0.64571,
    accuracy_percent=81.23,
    images_per_second=1625.4,
    learning_rate=0.02,
    step_seconds=0.08,
    mean_step_seconds=0.079,
    data_wait_seconds=0.001,
    allreduce_wait_seconds=0.002,
    slowest_rank=1,
    slowest_host="vm",
    eta_seconds=12.4,
    checkpoint_age_seconds=None,
)
EVALUATION = Evaluation(step=469, epoch=1, accuracy_percent=98.7, images=10_000, loss=0.0401)
SUMMARY = {
    "model": "mnist-cnn",
    "data": "MNIST",
    "ranks": 2,
    "steps": 469,
    "test_accuracy_percent": 98.7,
    "test_images": 10_000,
    "images_per_second": 1487.3,
    "seconds": 46.2,
    "data_wait_percent": 1.23,
    "allreduce_wait_percent": 4.56,
    "checkpoint": "out/checkpoints/step-469",
    "output": "out",
}
LINE = "step 100/469  loss 0.6457  accuracy 81.2 %  1,625 images/s  ETA 0:12"
SUMMARY_LINES = [
    "test accuracy  98.70 % of 10,000 images of MNIST",
    "speed          1,487 images/s over 2 ranks",
    "time           0:46",
    "waited         1.2 % for data, 4.6 % for allreduce",
    "checkpoint     out/checkpoints/step-469",
    "metrics        out/metrics.jsonl",
]


def at(step: int, **changes: object) -> Interval:
    return dataclasses.replace(INTERVAL, step=step, **changes)


# What people see

SCRIPT = """
import dataclasses, os, sys
sys.path.insert(0, {folder!r})
from test_reporting import EVALUATION, INTERVAL, SUMMARY, at
from hvdkit.train import progress
reporter = progress.create(to_stderr={to_stderr})
{body}
"""
WHOLE_RUN = """
reporter.interval(INTERVAL)
reporter.note("checkpoint [a] is damaged; taking the one before")
print("a line of the user's")
reporter.interval(at(200))
reporter.evaluation(EVALUATION)
reporter.summary(SUMMARY)
reporter.close()
"""


def command(body: str, to_stderr: bool = False) -> list[str]:
    script = SCRIPT.format(folder=str(Path(__file__).parent), to_stderr=to_stderr, body=body)
    return [sys.executable, "-c", script]


def on_a_terminal(body: str, columns: int = 80, to_stderr: bool = False, **environ: str) -> tuple[str, str]:
    """What a real pseudo-terminal got, and what went to stdout where that is no terminal."""
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        process = subprocess.Popen(
            command(body, to_stderr),
            stdin=theirs,
            stdout=subprocess.PIPE if to_stderr else theirs,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm", "NO_COLOR": "", "COLUMNS": str(columns), "LINES": "24", **environ},
        )
        os.close(theirs)
        received = b""
        with contextlib.suppress(OSError):  # EIO: the other side has closed it
            while data := terminal.read(65536):
                received += data
        stdout, _ = process.communicate(timeout=SECONDS)
        assert process.returncode == 0, received.decode()
    return received.decode(), (stdout or b"").decode()


def screen(output: str) -> list[str]:
    """What is left on the terminal in the end."""
    lines, row, column = [""], 0, 0
    for token in re.findall(r"\x1b\[\??[\d;]*[A-Za-z]|[^\x1b]", output):
        if token == "\r":
            column = 0
        elif token == "\n":
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        elif token == "\x1b[2K":
            lines[row] = ""
        elif token == "\x1b[1A":
            row -= 1
        elif len(token) == 1:
            lines[row] = lines[row][:column].ljust(column) + token + lines[row][column + 1 :]
            column += 1
    return [line.rstrip() for line in lines if line.strip()]


def test_plain_lines_on_a_pipe() -> None:
    # Under CI FORCE_COLOR is often set, and must not make a bar of it.
    environ = {**os.environ, "TERM": "xterm", "FORCE_COLOR": "1"}
    output = subprocess.run(command(WHOLE_RUN), capture_output=True, text=True, timeout=SECONDS, env=environ)
    assert output.stderr == ""
    assert output.stdout.splitlines() == [
        LINE,
        "checkpoint [a] is damaged; taking the one before",
        "a line of the user's",
        LINE.replace("100", "200"),
        "epoch 1: test accuracy 98.70 %  loss 0.0401  (10,000 images)",
        *SUMMARY_LINES,
    ]


def test_a_bar_on_a_terminal_leaves_only_lines_that_last() -> None:
    output, _ = on_a_terminal(WHOLE_RUN)
    assert screen(output) == [
        "checkpoint [a] is damaged; taking the one before",
        "a line of the user's",
        "epoch 1: test accuracy 98.70 %  loss 0.0401  (10,000 images)",
        *SUMMARY_LINES,
    ]
    assert re.search(r"\x1b\[[\d;]+m", output), "it has colours"


def test_the_bar_while_it_lives() -> None:
    output, _ = on_a_terminal(
        "reporter.interval(INTERVAL); reporter.note('one'); reporter.interval(at(200))\nos._exit(0)"
    )
    note, bar = screen(output)
    assert note == "one"
    assert re.fullmatch(r"step 200/469 [━╸╺]+ loss 0.6457  accuracy 81.2 %  1,625 images/s  ETA 0:12", bar)
    assert re.findall(r"\x1b\[\?25[lh]", output)[-1] == "\x1b[?25h", "a killed run leaves the cursor visible"


@pytest.mark.parametrize("columns", [40, 60, 80, 120])
def test_the_bar_is_one_line_on_any_terminal(columns: int) -> None:
    body = "reporter.interval(at(200, epochs=3, step_seconds=0.1, mean_step_seconds=0.05))\nos._exit(0)"
    (bar,) = screen(on_a_terminal(body, columns=columns)[0])
    assert len(bar) <= columns
    assert bar.startswith("step 200/469  epoch 1/3 ")
    assert "1,625 images/s" in bar
    assert ("rank 1 on vm 100 % slower" in bar) == (columns >= 80)
    assert ("accuracy" in bar) == (columns >= 120)


def test_no_color_is_honoured() -> None:
    output, _ = on_a_terminal(WHOLE_RUN, NO_COLOR="1")
    assert not re.search(r"\x1b\[[\d;]+m", output)
    assert screen(output)[-1] == SUMMARY_LINES[-1]


def test_a_dumb_terminal_gets_plain_lines() -> None:
    output, _ = on_a_terminal(WHOLE_RUN, TERM="dumb")
    assert "\x1b" not in output
    assert output.splitlines()[0] == LINE


def test_stdout_is_left_to_the_result() -> None:
    output, stdout = on_a_terminal(WHOLE_RUN, to_stderr=True)
    assert stdout == "a line of the user's\n"
    assert "a line of the user's" not in output
    assert screen(output)[-1] == SUMMARY_LINES[-1]


def test_the_slowest_rank_is_named_only_when_it_matters(capsys: pytest.CaptureFixture[str]) -> None:
    lines = LineProgress(sys.stdout)
    lines.interval(at(100, step_seconds=0.108, mean_step_seconds=0.1))
    lines.interval(at(100, step_seconds=0.15, mean_step_seconds=0.1))
    lines.interval(at(100, step_seconds=0.15, mean_step_seconds=None))
    assert capsys.readouterr().out.splitlines() == [LINE, f"{LINE}  rank 1 on vm 50 % slower", LINE]


def test_numbers_that_are_none_and_names_that_are_no_text(capsys: pytest.CaptureFixture[str]) -> None:
    lines = progress.create(to_stderr=False)
    lines.interval(at(100, loss=math.nan, eta_seconds=math.inf))
    lines.note("checkpoint \udcff is damaged")
    assert capsys.readouterr().out.splitlines() == [
        "step 100/469  loss nan  accuracy 81.2 %  1,625 images/s  ETA unknown",
        "checkpoint \\udcff is damaged",
    ]


def test_a_full_disk_under_the_log_does_not_end_the_training() -> None:
    with Path("/dev/full").open("w") as full:
        LineProgress(full).note("nobody will read this")
        with contextlib.suppress(OSError):
            full.close()


def test_clock_and_a_summary_with_little_in_it() -> None:
    assert [clock(seconds) for seconds in (0, 12.4, 59.6, 3599, 93_601)] == [
        "0:00",
        "0:12",
        "1:00",
        "59:59",
        "26:00:01",
    ]
    bare = {"ranks": 1, "images_per_second": 3.2, "checkpoint": None, "output": None, "allreduce_wait_percent": None}
    assert summary_lines(bare) == ["speed  3 images/s over 1 rank"]
    assert summary_lines({}) == []


def test_reporters_tell_all_and_close_all() -> None:
    class Recorder(LineProgress):
        def __init__(self, failing: bool) -> None:
            self.heard, self.failing = [], failing

        def note(self, text: str) -> None:
            self.heard.append(text)

        def close(self) -> None:
            self.heard.append("close")
            if self.failing:
                raise RuntimeError("this one does not close")

    recorders = [Recorder(True), Recorder(True)]
    everyone = Reporters(recorders)
    everyone.interval(INTERVAL)
    everyone.evaluation(EVALUATION)
    everyone.note("hello")
    everyone.summary(SUMMARY)
    with pytest.raises(RuntimeError):
        everyone.close()
    for recorder in recorders:
        assert recorder.heard[0] == LINE
        assert recorder.heard[2] == "hello"
        assert recorder.heard[3:-1] == SUMMARY_LINES
        assert recorder.heard[-1] == "close"


# metrics.jsonl


def begin(folder: Path, step: int | None, warnings: list[str] | None = None) -> History:
    told = History(folder, warn=[].append if warnings is None else warnings.append)
    told.start(step, settings=TrainSettings(epochs=7, output=folder), world={"ranks": 2}, versions=history.versions())
    return told


def steps_of(folder: Path, kind: str = "interval") -> list[int]:
    return [line["step"] for line in read(folder / "metrics.jsonl") if line["kind"] == kind]


def test_a_whole_run_reads_back(tmp_path: Path) -> None:
    told = begin(tmp_path / "new" / "folder", None)
    told.interval(INTERVAL)
    told.evaluation(EVALUATION)
    told.note("for people only")
    told.summary({**SUMMARY, "output": Path("out")})
    told.close()
    start, interval, evaluation, summary = read(told.path)
    assert [line["kind"] for line in (start, interval, evaluation, summary)] == [
        "start", "interval", "evaluation", "summary",
    ]  # fmt: skip
    assert all(line["version"] == 1 and line["time"] > 1.7e9 for line in (start, interval, evaluation, summary))
    assert (start["step"], start["world"]) == (0, {"ranks": 2})
    assert start["settings"].items() >= {"epochs": 7, "output": str(told.path.parent), "max_steps": None}.items()
    assert start["versions"]["python"] == f"{sys.version_info.major}.{sys.version_info.minor}.{sys.version_info.micro}"
    assert "torch" in start["versions"]
    assert interval.items() >= dataclasses.asdict(INTERVAL).items()
    assert evaluation.items() >= dataclasses.asdict(EVALUATION).items()
    assert summary.items() >= SUMMARY.items()


def test_what_is_no_number_is_null_and_every_line_is_json(tmp_path: Path) -> None:
    import numpy

    told = begin(tmp_path, None)
    told.interval(at(1, loss=math.nan, images_per_second=math.inf, learning_rate=numpy.float32(0.5)))
    told.summary({"steps": 1, "losses": [1.0, -math.inf, numpy.float32(math.nan)], "none": None})
    told.close()

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    _, interval, summary = [json.loads(line, parse_constant=refuse) for line in told.path.read_text().splitlines()]
    assert (interval["loss"], interval["images_per_second"], interval["learning_rate"]) == (None, None, 0.5)
    assert (summary["losses"], summary["none"]) == ([1.0, None, None], None)


def test_a_resumed_run_appends_and_takes_out_what_comes_again(tmp_path: Path) -> None:
    killed = begin(tmp_path, None)
    for step in (10, 20, 30, 40):
        killed.interval(at(step))
        killed.evaluation(dataclasses.replace(EVALUATION, step=step))
    with killed.path.open("ab") as file:
        file.write(b'{"version": 1, "kind": "interval", "st')  # the kill came here
    resumed = begin(tmp_path, 20)
    assert resumed.restarts == 1
    resumed.evaluation(dataclasses.replace(EVALUATION, step=20))  # the epoch's end is judged once more
    for step in (30, 40):
        resumed.interval(at(step))
    resumed.summary({"steps": 40})
    assert steps_of(tmp_path) == [10, 20, 30, 40]
    assert steps_of(tmp_path, "evaluation") == [10, 20]
    assert steps_of(tmp_path, "start") == [0, 20]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metrics.jsonl"]

    again = begin(tmp_path, 10)  # from a checkpoint before the last one, which was damaged
    assert again.restarts == 2
    assert steps_of(tmp_path) == [10]
    assert [line["kind"] for line in read(again.path)].count("summary") == 0


def test_a_file_with_nothing_to_take_out_is_not_written_again(tmp_path: Path) -> None:
    first = begin(tmp_path, None)
    first.interval(at(10))
    before, inode = first.path.read_bytes(), first.path.stat().st_ino
    second = begin(tmp_path, 10)
    assert second.path.read_bytes().startswith(before)
    assert second.path.stat().st_ino == inode


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 100), st.integers(0, 6))
def test_killed_anywhere_each_step_is_there_once(
    tmp_path_factory: pytest.TempPathFactory, kept: int, checkpoint: int
) -> None:
    folder = tmp_path_factory.mktemp("run")
    killed = begin(folder, None)
    for step in range(1, 7):
        killed.interval(at(step))
    lost_from = killed.path.stat().st_size * kept // 100
    os.truncate(killed.path, lost_from)
    whole = [step for step in steps_of(folder) if step <= checkpoint]
    resumed = begin(folder, checkpoint)
    for step in range(checkpoint + 1, 7):
        resumed.interval(at(step))
    assert steps_of(folder) == whole + list(range(checkpoint + 1, 7))


def test_a_new_training_in_the_same_folder_keeps_the_old_file(tmp_path: Path) -> None:
    begin(tmp_path, None).interval(at(10))
    old = (tmp_path / "metrics.jsonl").read_bytes()
    new = begin(tmp_path, None)
    new.interval(at(5))
    assert new.restarts == 0
    assert steps_of(tmp_path) == [5]
    assert (tmp_path / "metrics.jsonl.old").read_bytes() == old


def test_a_world_that_changes_goes_on_in_the_same_file(tmp_path: Path) -> None:
    told = begin(tmp_path, None)
    for step in (10, 20, 30):
        told.interval(at(step))
    told.start(20, settings={}, world={"ranks": 1}, versions={})  # elastic: back to what was committed
    told.interval(at(30))
    assert steps_of(tmp_path) == [10, 20, 30]


def test_a_full_disk_costs_one_warning(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    warnings: list[str] = []
    told = History(tmp_path, warnings.append)
    told.interval(at(1))
    told.interval(at(2))
    told.summary(SUMMARY)
    told.close()
    assert warnings == [
        f"{tmp_path}/metrics.jsonl lacks lines from now on: No space left on device; the training goes on."
    ]


@contextlib.contextmanager
def no_file_longer_than(size: int) -> Iterator[None]:
    """A disk that fills up in the middle of a line, as far as this process can see."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_that_has_room_again_gets_whole_lines(tmp_path: Path) -> None:
    warnings: list[str] = []
    told = begin(tmp_path, None, warnings)
    told.interval(at(1))
    whole = told.path.stat().st_size
    with no_file_longer_than(whole + 20):
        told.interval(at(2))
        assert told.path.stat().st_size == whole + 20, "the line was torn"
        told.interval(at(3))
    told.interval(at(4))
    assert steps_of(tmp_path) == [1, 4]
    assert len(warnings) == 1
    assert "File too large" in warnings[0]


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"--output: .*file/out/metrics.jsonl cannot be written: Not a directory"):
        History(tmp_path / "file" / "out", print)


def test_reading_tells_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with pytest.raises(InputError, match=r"metrics.jsonl cannot be read: No such file"):
        read(path)
    good = b'{"version": 1, "kind": "interval", "step": 1}\n'
    path.write_bytes(good + b"\0\0\0\n" + good)
    with pytest.raises(InputError, match="line 2 is damaged"):
        read(path)
    path.write_bytes(good + good.replace(b"1", b"2", 1))
    with pytest.raises(InputError, match="line 2 has version 2 and this hvdkit reads 1"):
        read(path)
    path.write_bytes(good + good[:-1])
    assert len(read(path)) == 1
    path.write_bytes(b"")
    assert read(path) == []


# TensorBoard


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder)).Reload()
    return {
        tag: [(event.step, pytest.approx(event.value, rel=1e-5)) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    board = TensorBoard(tmp_path / "new", print)
    board.interval(INTERVAL)
    board.interval(at(200, loss=0.5, allreduce_wait_seconds=None))
    board.evaluation(EVALUATION)
    board.note("for people only")
    board.summary(SUMMARY)
    running = scalars(tmp_path / "new")
    board.close()
    assert running == scalars(tmp_path / "new"), "a viewer of a running job sees everything"
    assert running == {
        "train/loss": [(100, 0.64571), (200, 0.5)],
        "train/accuracy_percent": [(100, 81.23), (200, 81.23)],
        "train/learning_rate": [(100, 0.02), (200, 0.02)],
        "train/epoch": [(100, 1), (200, 1)],
        "speed/images_per_second": [(100, 1625.4), (200, 1625.4)],
        "speed/step_seconds": [(100, 0.08), (200, 0.08)],
        "speed/data_wait_seconds": [(100, 0.001), (200, 0.001)],
        "speed/allreduce_wait_seconds": [(100, 0.002)],
        "test/accuracy_percent": [(469, 98.7)],
        "test/loss": [(469, 0.0401)],
    }


def test_tensorboard_forgets_steps_that_come_again(tmp_path: Path) -> None:
    killed = TensorBoard(tmp_path, print)
    for step in (10, 20, 30, 40):
        killed.interval(at(step, loss=1.0))
    resumed = TensorBoard(tmp_path, print, step=20)
    for step in (30, 40):
        resumed.interval(at(step, loss=2.0))
    assert scalars(tmp_path)["train/loss"] == [(10, 1.0), (20, 1.0), (30, 2.0), (40, 2.0)]


def test_tensorboard_on_a_full_disk_costs_one_warning(tmp_path: Path) -> None:
    warnings: list[str] = []
    board = TensorBoard(tmp_path, warnings.append)
    board.interval(at(1))
    (file,) = tmp_path.iterdir()
    with no_file_longer_than(file.stat().st_size + 20):
        board.interval(at(2))
    board.interval(at(3))
    board.close()
    assert warnings == [f"{tmp_path} gets no more of TensorBoard's data: File too large; the training goes on."]
    assert [step for step, _ in scalars(tmp_path)["train/loss"]] == [1]


def test_a_folder_that_tensorboard_cannot_write(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"--tensorboard: .*file/out cannot be written: Not a directory"):
        TensorBoard(tmp_path / "file" / "out", print)
