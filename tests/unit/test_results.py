"""Results through the log: what comes out is what went in, or is called damaged."""

import functools
import json
import random
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hvdkit.runtime.results import MARK, Result, collect, emit

LONGEST_LINE = 3_500
PREFIXES = (
    "",
    "[0] ",
    "\x1b[36m[11]\x1b[0m ",
    "[1,0]<stdout>:",
    "2026-03-01T12:00:00.123456789Z ",
    "[pod/train-worker-0/worker] 2026-03-01T12:00:00Z stdout F [ 1] ",
)
cases = functools.partial(settings, deadline=None)  # a busy machine is no failure
noise = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=30), max_size=10)
payloads = st.dictionaries(
    st.text(max_size=10),
    st.none() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20) | st.lists(st.integers(), max_size=5),
    max_size=5,
)


def lines_of(payload: dict, kind: str = "summary") -> list[str]:
    lines: list[str] = []
    emit(kind, payload, lines.append)
    return lines


@functools.cache
def large(seed: int = 1) -> dict:
    """Numbers that do not compress, for several lines."""
    samples = random.Random(seed)
    return {"seed": seed, "step_seconds": [samples.random() for _ in range(1_000)]}


@cases()
@given(payloads)
def test_what_goes_in_comes_out(payload: dict) -> None:
    assert collect(lines_of(payload)) == [Result(kind="summary", payload=payload)]


def test_lines_are_short_and_plain() -> None:
    lines = lines_of(large())
    assert len(lines) > 2
    for line in lines:
        assert len(line) <= LONGEST_LINE
        assert line.isascii()
        assert "\n" not in line


def test_a_number_that_is_not_finite_survives() -> None:
    (result,) = collect(lines_of({"loss": float("inf")}))
    assert result.payload == {"loss": float("inf")}


def test_the_kind_is_checked() -> None:
    with pytest.raises(ValueError, match="Two words"):
        emit("Two words", {}, print)


@cases(max_examples=60)
@given(st.data())
def test_ranks_mix_their_lines_behind_any_prefix(data: st.DataObject) -> None:
    """Each rank's lines stay in order, everything else is up to chance."""
    ranks = [large(seed) for seed in range(data.draw(st.integers(1, 4)))]
    queues = [
        [prefix + line for line in lines_of(payload, "samples")]
        for payload in ranks
        for prefix in [data.draw(st.sampled_from(PREFIXES))]
    ]
    queues.append(data.draw(noise))
    log = []
    while any(queues):
        queue = data.draw(st.sampled_from([queue for queue in queues if queue]))
        log.append(queue.pop(0) + data.draw(st.sampled_from(["", "\r", "\x1b[0m", "abc"])))
    for text in (log, [line + "\n" for line in log], "\n".join(log)):
        found = collect(text)
        assert all(result.problem is None for result in found)
        assert sorted(found, key=lambda result: result.payload["seed"]) == [
            Result(kind="samples", payload=payload) for payload in ranks
        ]


def test_two_lines_without_a_newline_between_them() -> None:
    first, second = {"rank": 0}, {"rank": 1}
    glued = "".join(lines_of(first) + lines_of(second))
    assert [result.payload for result in collect(glued)] == [first, second]


def test_a_log_that_was_read_twice_has_each_result_once() -> None:
    lines = lines_of(large())
    assert collect(lines[:3] + lines) == [Result(kind="summary", payload=large())]


@cases(max_examples=100)
@given(st.sets(st.integers(0, 100), min_size=1))
def test_lost_lines_are_told(lost: set[int]) -> None:
    lines = lines_of(large())
    lost = {number % len(lines) for number in lost}
    kept = [line for number, line in enumerate(lines) if number not in lost]
    found = collect([*kept, *lines_of({"whole": 1}, "other")])
    assert found[-1] == Result(kind="other", payload={"whole": 1})
    if kept:
        (broken,) = found[:-1]
        assert broken.kind == "summary"
        assert broken.payload is None
        assert broken.problem.startswith(f"{len(lost)} of its {len(lines)} lines are lost or damaged")
        assert all(str(number + 1) in broken.problem for number in lost)


@cases(max_examples=300)
@given(st.booleans(), st.data())
def test_an_altered_character_is_never_believed(several_lines: bool, data: st.DataObject) -> None:
    payload = large() if several_lines else {"images_per_second": 1625.0}
    lines = lines_of(payload)
    number = data.draw(st.integers(0, len(lines) - 1))
    line = lines[number]
    place = data.draw(st.integers(0, len(line) - 1))
    other = data.draw(
        st.characters(exclude_categories=["Cs"], exclude_characters=line[place]) | st.sampled_from("a0.+ ")
    )
    lines[number] = line[:place] + other + line[place + 1 :]
    found = collect(lines)
    if other == line[place]:
        assert found == [Result(kind="summary", payload=payload)]
        return
    assert all(result.payload is None and result.problem for result in found)
    # Of one line whose mark is gone nothing can be known; in every other case somebody is told.
    assert found or (place < len(MARK) and len(lines) == 1)


@cases(max_examples=100)
@given(st.data())
def test_a_cut_line_is_told(data: st.DataObject) -> None:
    (line,) = lines_of({"images_per_second": 1625.0})
    cut = data.draw(st.integers(len(MARK), len(line) - 1))
    (result,) = collect(line[:cut])
    assert result.payload is None
    assert result.problem


def test_another_version_is_told() -> None:
    (line,) = lines_of({"rank": 0})
    (result,) = collect(line.replace("v1", "v2", 1))
    assert result == Result(kind="unknown", problem="its format has version 2, and this hvdkit reads 1")


def test_a_damaged_copy_does_not_spoil_a_good_one() -> None:
    lines = lines_of(large())
    damaged = [line[:200] + "@" + line[201:] for line in lines]
    assert [result.payload for result in collect(damaged + lines) if result.kind == "summary"] == [large()]


def test_a_line_that_is_whole_in_itself_but_of_another_result_is_told() -> None:
    """The second line of defence: the checksum of all, under which the kind stands as well."""
    (line,) = lines_of({"rank": 0})
    head, part = line.removeprefix(f"{MARK}1 ").rsplit(" ", 2)[::2]
    head = head.replace("summary", "samples")
    checksum = zlib.crc32(f"{head} {part[:-1]}".encode())
    assert collect(f"{MARK}1 {head} {checksum:08x} {part}") == [Result(kind="samples", problem="its checksum is wrong")]


@cases(max_examples=60)
@given(st.integers(0, 2**32), st.sampled_from([20, 500, 5_000]))
def test_pieces_that_mpirun_tags_within_lines(seed: int, longest: int) -> None:
    """As seen with Open MPI 4.1: a tag at each piece it reads and at each line, ranks mixed between pieces."""
    chance = random.Random(seed)
    payloads = [large(rank) for rank in range(3)]
    pieces = []
    for rank, payload in enumerate(payloads):
        text = "".join(line + "\n" for line in lines_of(payload))
        tag, start, of_rank = f"[1,{rank}]<stdout>:", 0, []
        while start < len(text):
            length = chance.randint(1, longest)
            piece = text[start : start + length]
            of_rank.append(tag + piece.removesuffix("\n").replace("\n", f"\n{tag}") + "\n" * piece.endswith("\n"))
            start += length
        pieces.append(of_rank)
    output = ""
    while any(pieces):
        output += chance.choice([of_rank for of_rank in pieces if of_rank]).pop(0)
    found = collect(output)
    assert sorted(json.dumps(result.payload) for result in found) == sorted(json.dumps(p) for p in payloads)
