"""Places and the roll call, over real connections on this machine."""

import json
import selectors
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from hvdkit.errors import EXIT_RESTART_ME, EXIT_USAGE, EnvironmentProblem, InputError
from hvdkit.jobs import local
from hvdkit.runtime import channel, pod_rank, pod_roster, pod_termination
from hvdkit.runtime.pod_names import addresses_of
from hvdkit.runtime.pod_places import Place, by_addresses, by_index
from hvdkit.runtime.pod_roster import FirstPod, OtherPod, PlacesChanged, Roster
from hvdkit.runtime.pod_supervisor import PodSupervisor, run

WORLD = {"pods": ["train-0", "train-1", "train-2"], "slots": 1, "engine": "horovod"}


def place(number: int) -> Place:
    return Place(number=number, names=("train-0", "train-1", "train-2"), first="127.0.0.1")


@pytest.fixture
def first() -> FirstPod:
    pod = FirstPod(place(0), WORLD, 0)
    yield pod
    pod.close()


def port_of(first: FirstPod) -> int:
    return first.listener.getsockname()[1]


def look_until(first: FirstPod, condition: Callable[[], bool]) -> None:
    """Call the roll, for which train-2 is missing, until something has been noticed."""
    for _ in range(300):
        with pytest.raises(EnvironmentProblem, match="train-2"):
            first.gather(0.1)
        if condition():
            return
    pytest.fail("not noticed")


def test_all_learn_the_meeting_place(first: FirstPod) -> None:
    with ThreadPoolExecutor() as pool:
        port = port_of(first)
        others: list[Future[Roster]] = [
            pool.submit(OtherPod(place(number), WORLD, port).join, 30) for number in (2, 1)
        ]
        first.gather(30)
        roster = first.go(lambda address: 1234)
        assert [other.result().meeting for other in others] == [("127.0.0.1", 1234)] * 2
    assert sorted(peer.name for peer in roster.peers) == ["train-1", "train-2"]
    assert roster.own_address == "127.0.0.1"


def test_a_pod_that_restarts_before_the_world_is_there_takes_its_place_again(first: FirstPod) -> None:
    early = OtherPod(place(1), WORLD, port_of(first))
    with pytest.raises(EnvironmentProblem, match=r"train-0 \(it"):
        early.join(0.5)
    with pytest.raises(EnvironmentProblem, match=r"train-2 \(has not joined\)"):
        first.gather(0.5)
    old = first.guests[1]
    with ThreadPoolExecutor() as pool:
        others = [pool.submit(OtherPod(place(1), WORLD, port_of(first)).join, 30)]
        # The old connection is still open: until the new one has replaced it, the roll would be complete with it.
        look_until(first, lambda: first.guests[1] is not old)
        others.append(pool.submit(OtherPod(place(2), WORLD, port_of(first)).join, 30))
        first.gather(30)
        roster = first.go(lambda address: 1)
        for other in others:
            other.result()
    assert len(roster.peers) == 2 and old not in roster.peers


def test_a_pod_whose_old_connection_breaks_as_the_new_one_takes_its_place(first: FirstPod) -> None:
    """Both are read in one go: what the new one says, then the end of the old one, which is forgotten by then."""

    join = channel.encode_json(pod_roster.JOIN, place=1, world=WORLD)
    old, new = (socket.create_connection(("127.0.0.1", port_of(first))) for _ in range(2))
    look_until(first, lambda: len(first.strangers) == 2)
    old.sendall(join)
    look_until(first, lambda: 1 in first.guests)
    new.sendall(join)
    old.close()
    with new:
        look_until(first, lambda: first.guests[1].connection.getpeername() == new.getsockname())


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        channel.encode(pod_roster.JOIN, b"[1, 2]"),
        channel.encode(pod_roster.JOIN, b"{"),
        channel.encode_json(pod_roster.JOIN, place="1", world=WORLD),
        channel.encode_json(pod_roster.JOIN, place=0, world=WORLD),
        channel.encode_json(pod_roster.JOIN, place=1, world={**WORLD, "slots": 2}),
    ],
)
def test_strangers_get_no_place(first: FirstPod, sent: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port_of(first))) as stranger:
        stranger.sendall(sent)
        with pytest.raises(EnvironmentProblem, match=r"train-1 .*train-2"):
            first.gather(0.5)


def test_what_one_pod_says_reaches_the_others(first: FirstPod) -> None:
    with ThreadPoolExecutor() as pool:
        others = [pool.submit(OtherPod(place(number), WORLD, port_of(first)).join, 30) for number in (1, 2)]
        first.gather(30)
        roster = first.go(lambda address: 1)
        rosters = [other.result() for other in others]
    heard: list[object] = []
    with selectors.DefaultSelector() as selector:
        roster.watch(selector, lambda: heard.append("stop"), lambda *end: heard.append(end), heard.append)
        rosters[0].tell(pod_roster.STOP)
        rosters[0].tell(pod_roster.END, code=7, reason="it failed", broken=True)
        rosters[0].peers[0].connection.close()
        rosters[1].peers[0].connection.close()
        for _ in range(100):
            for key, _events in selector.select(timeout=0.05):
                key.data(key.fileobj)
            if len(heard) == 3:
                break
    # The one that said how it ended may close; the other one has just gone.
    assert sorted(map(str, heard)) == sorted(["stop", "(7, 'it failed', True)", "train-2"])


def test_pods_that_wait_in_vain_ask_to_be_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """With any other code the Job would have failed for good."""
    monkeypatch.setenv("HVDKIT_JOB", "train")
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "1")
    monkeypatch.setattr(pod_rank, "stop_when_asked", lambda: None)  # it is for a process of its own
    words = ["--workers", "2", "--slots", "1", "--service", "nowhere.invalid", "--wait-seconds", "0.2", "--", "true"]
    assert pod_termination.explained(lambda: pod_rank.main(words)) == EXIT_RESTART_ME
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "5")
    assert pod_termination.explained(lambda: pod_rank.main(words)) == EXIT_USAGE


def test_what_the_user_set_for_the_allocator_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "1")
    where = place(0)
    words = ["--workers", str(len(where.names)), "--slots", "1", "--service", "train", "--", "true"]
    options, command = pod_rank.parse(words)
    processes = pod_rank.render(options, command, where).processes
    assert [process.env["MALLOC_TRIM_THRESHOLD_"] for process in processes] == ["1"] * len(where.names)


def test_ranks_that_do_not_start_in_time_end_the_world_and_ask_to_be_started_again(first: FirstPod) -> None:
    with ThreadPoolExecutor() as pool:
        others = [pool.submit(OtherPod(place(number), WORLD, port_of(first)).join, 30) for number in (1, 2)]
        first.gather(30)
        roster = first.go(lambda address: 1)
        rosters = [other.result() for other in others]
    sleeps = local.Process(argv=("sleep", "600"))
    plan = local.LocalPlan(processes=(sleeps,), settings=(), world_size=1, host_count=1, controller="pod")
    assert run(PodSupervisor(plan, starter="a rank's wrapper", roster=roster, start_timeout=0.5)) == EXIT_RESTART_ME
    (kind, said), *_ = rosters[0].peers[0].frames() or ()
    assert (kind, said["code"], said["broken"]) == (pod_roster.END, EXIT_RESTART_ME, True)
    assert "0 of 1 ranks started" in said["reason"]


def test_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HVDKIT_JOB", "train")
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "1")
    found = by_index(3, "service")
    assert (found.number, found.name, found.first) == (1, "train-1", "train-0.service")
    for wrong in ("", "3", "-1", "one"):
        monkeypatch.setenv("JOB_COMPLETION_INDEX", wrong)
        with pytest.raises(InputError, match="JOB_COMPLETION_INDEX"):
            by_index(3, "service")


def test_addresses_are_ordered_as_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = tmp_path / "names"
    names.write_text("10.0.0.10 train\n10.0.0.9 train other\n10.0.0.9 train\n")
    monkeypatch.setenv("HVDKIT_NAMES", str(names))
    assert addresses_of("train") == ["10.0.0.9", "10.0.0.10"]
    monkeypatch.setenv("POD_IP", "10.0.0.10")
    found = by_addresses(2, "train", 30)
    assert (found.number, found.first) == (1, "10.0.0.9")
    assert not found.changed()
    names.write_text("10.0.0.10 train\n10.0.0.11 train\n")
    assert found.changed()


@pytest.mark.parametrize(
    ("lines", "own", "said"),
    [
        ("10.0.0.1 train", "10.0.0.1", "train has 1 addresses"),
        ("fd00::1 train\nfd00::2 train", "fd00::1", "train has an IPv6 address only, fd00::1, and ranks"),
        ("10.0.0.1 train\n10.0.0.2 train\n10.0.0.3 train", "10.0.0.1", "train has 3 addresses for 2 pods"),
        ("10.0.0.1 train\n10.0.0.2 train", "10.0.0.7", "does not show this pod's own address"),
    ],
)
def test_another_number_of_pods_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: str, own: str, said: str
) -> None:
    (tmp_path / "names").write_text(lines)
    monkeypatch.setenv("HVDKIT_NAMES", str(tmp_path / "names"))
    monkeypatch.setenv("POD_IP", own)
    with pytest.raises(EnvironmentProblem, match=said):
        by_addresses(2, "train", 0.2)


def test_a_changed_membership_is_noticed_while_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = tmp_path / "names"
    names.write_text("127.0.0.1 train\n127.0.0.2 train\n")
    monkeypatch.setenv("HVDKIT_NAMES", str(names))
    monkeypatch.setenv("POD_IP", "127.0.0.1")
    found = by_addresses(2, "train", 30)
    timer = threading.Timer(0.5, names.write_text, ("127.0.0.1 train\n127.0.0.3 train\n",))
    timer.start()
    pod = FirstPod(found, json.loads(json.dumps(WORLD)), 0)
    try:
        with pytest.raises(PlacesChanged):
            pod.gather(60)
    finally:
        pod.close()
        timer.join()


@pytest.mark.parametrize(("code", "broken"), [(0, False), (3, True)])
def test_a_pod_that_ends_in_the_moment_it_says_go_has_not_gone(code: int, broken: bool) -> None:
    """As the first pod of a command that takes no time at all does: both arrive together, and the connection closes."""
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor() as pool:
        joining = pool.submit(OtherPod(place(1), WORLD, listener.getsockname()[1]).join, 30)
        connection, _ = listener.accept()
        connection.recv(1 << 16)
        end = channel.encode_json(pod_roster.END, code=code, reason="so it was", broken=broken)
        connection.sendall(channel.encode_json(pod_roster.GO, port=1234) + end)
        connection.close()
        roster = joining.result()
    ends: list[tuple[int, str, bool]] = []
    with selectors.DefaultSelector() as selector:
        roster.watch(selector, pytest.fail, lambda *end: ends.append(end), lambda name: pytest.fail(f"{name} has gone"))
        while roster.peers:
            for key, _ in selector.select(30):
                key.data(key.fileobj)
    assert ends == [(code, "so it was", broken)]
