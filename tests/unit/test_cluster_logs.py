"""Logs against an API server that restarts, forgets and cuts connections."""

import threading

import pytest
from scripted_api import Request, api

from hvdkit.cluster.api import ApiError
from hvdkit.cluster.logs import LogFollower, read_log


@pytest.fixture(autouse=True)
def impatient(monkeypatch) -> None:
    monkeypatch.setattr("hvdkit.cluster.logs.pause", lambda attempt, error=None: 0.01)


def test_every_line_once_through_broken_connections(tmp_path, monkeypatch) -> None:
    whole = [f"2026-01-01T00:00:{second:02}.000000000Z line {second}".encode() for second in range(12)]
    # Three lines of one moment: time alone does not tell which of them were read.
    whole[5:8] = [b"2026-01-01T00:00:05.000000000Z same %d" % number for number in range(3)]
    cuts = [3, 6, 7, 12]

    def answer(request: Request) -> None:
        if not request.route.endswith("/log"):
            phase = "Running" if cuts else "Succeeded"
            request.json(200, {"metadata": {"name": "p"}, "status": {"phase": phase}})
            return
        since = request.query.get("sinceTime", "")[:19].encode()
        lines = [one for one in whole if one[:19] >= since]
        if not cuts:
            with request.stream() as send:
                send(b"\n".join(lines) + b"\n")
            return
        end = cuts.pop(0)
        with request.stream() as send:
            send(b"".join(one + b"\n" for one in lines if whole.index(one) < end))
            if cuts:
                request.cut()

    got: list[bytes] = []
    with api(answer, tmp_path, monkeypatch) as (cluster, _):
        follower = LogFollower(cluster, "p", got.append).start()
        assert follower.join(30) and follower.error is None
    assert got == [one.partition(b" ")[2] for one in whole]


@pytest.mark.parametrize("cut", range(7))
def test_lines_whose_times_go_back_are_shown_once_too(cut: int, tmp_path, monkeypatch) -> None:
    """stdout and stderr are stamped apart: a later line may have an earlier time, or an earlier second."""
    times = ["00.300000000", "00.200000000", "01.000000001", "00.999999999", "01.000000001", "01.000000000"]
    whole = [f"2026-01-01T00:00:{when}Z line {number}".encode() for number, when in enumerate(times)]
    asked: list[str] = []

    def answer(request: Request) -> None:
        if not request.route.endswith("/log"):
            request.json(200, {"metadata": {"name": "p"}, "status": {"phase": "Succeeded"}})
            return
        asked.append(request.query.get("sinceTime", ""))
        lines = [one for one in whole if one[:19] >= asked[-1][:19].encode()]
        with request.stream() as send:
            if len(asked) > 1:
                send(b"".join(one + b"\n" for one in lines))
            else:
                send(b"".join(one + b"\n" for one in lines[:cut]) + b"2026")
                request.cut()

    got: list[bytes] = []
    with api(answer, tmp_path, monkeypatch) as (cluster, _):
        follower = LogFollower(cluster, "p", got.append).start()
        assert follower.join(30) and follower.error is None
    # A line that was not read yet and is of an earlier second than the latest one is not sent again.
    lost = [3] if cut == 3 else []
    assert got == [b"line %d" % number for number in range(6) if number not in lost]


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_server_that_has_just_started_refuses_for_a_moment(status: int, tmp_path, monkeypatch) -> None:
    steps = ["cut", "refuse", "refuse", "speak"]

    def answer(request: Request) -> None:
        if not request.route.endswith("/log"):
            request.json(200, {"metadata": {"name": "p"}, "status": {"phase": "Succeeded"}})
            return
        step = steps.pop(0) if len(steps) > 1 else steps[0]
        if step == "refuse":
            request.status(status, "Forbidden", "not read yet")
            return
        with request.stream() as send:
            send(b"2026-01-01T00:00:00.000000000Z first\n")
            if step == "cut":
                request.cut()
            else:
                send(b"2026-01-01T00:00:01.000000000Z second\n")

    got: list[bytes] = []
    with api(answer, tmp_path, monkeypatch) as (cluster, _):
        follower = LogFollower(cluster, "p", got.append).start()
        assert follower.join(30) and follower.error is None
    assert got == [b"first", b"second"]


def test_one_who_knows_that_the_job_has_ended_need_not_wait(tmp_path, monkeypatch) -> None:
    """The stream ends with the container, and the API server learns of that a little later."""
    monkeypatch.setattr("hvdkit.cluster.logs.pause", lambda attempt, error=None: 1000.0)
    phases, looked = ["Running"], threading.Event()

    def answer(request: Request) -> None:
        if request.route.endswith("/log"):
            with request.stream() as send:
                send(b"2026-01-01T00:00:00.000000000Z last\n")
            return
        request.json(200, {"metadata": {"name": "p"}, "status": {"phase": phases[0]}})
        looked.set()

    got: list[bytes] = []
    with api(answer, tmp_path, monkeypatch) as (cluster, _):
        follower = LogFollower(cluster, "p", got.append).start()
        assert looked.wait(30) and not follower.join(0)
        phases[0] = "Succeeded"
        follower.hurry()
        assert follower.join(30) and follower.error is None
    assert got == [b"last"]


def test_a_pod_that_is_gone_ends_its_log(tmp_path, monkeypatch) -> None:
    with api(lambda request: request.status(404, "NotFound", "gone"), tmp_path, monkeypatch) as (cluster, _):
        follower = LogFollower(cluster, "p", print).start()
        assert follower.join(30) and follower.error is None


def test_a_missing_right_is_reported(tmp_path, monkeypatch) -> None:
    with api(lambda request: request.status(403, "Forbidden", "you cannot"), tmp_path, monkeypatch) as (cluster, _):
        follower = LogFollower(cluster, "p", print).start()
        assert follower.join(30) and "cannot" in str(follower.error)


def test_a_log_that_is_cut_in_the_middle_is_said_in_a_sentence(tmp_path, monkeypatch) -> None:
    def cut_off(request: Request) -> None:
        with request.stream() as send:
            send(b"first\nsec")
            request.cut()

    got: list[bytes] = []
    with api(cut_off, tmp_path, monkeypatch) as (cluster, _):
        with pytest.raises(ApiError, match=r"the API server of context 'test' .* does not answer") as raised:
            for one in read_log(cluster, "p"):
                got.append(one)
    assert got == [b"first"] and raised.value.exit_code == 3
