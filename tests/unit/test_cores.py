"""Which ranks stay on which cores."""

import os

import pytest

from hvdkit.runtime.cores import BEFORE, Need, assign, bind, need_of_this_rank


def ranks(*each: tuple[str, int], cores: tuple[int, ...] = (0, 1, 2, 3)) -> dict[int, Need]:
    """A rank for each pair of machine and threads."""
    return {
        number: Need(machine=machine, cores=cores, threads=threads) for number, (machine, threads) in enumerate(each)
    }


def test_ranks_that_need_all_cores_have_their_own() -> None:
    assert assign(ranks(("a", 2), ("a", 2))) == {0: [0, 1], 1: [2, 3]}
    assert assign(ranks(("a", 1), ("b", 3), ("a", 3), ("b", 1))) == {0: [0], 2: [1, 2, 3], 1: [0, 1, 2], 3: [3]}


def test_cores_that_we_may_use_need_not_begin_at_0() -> None:
    assert assign(ranks(("a", 1), ("a", 1), cores=(5, 9))) == {0: [5], 1: [9]}


def test_more_ranks_than_cores_take_them_by_turns() -> None:
    assert assign(ranks(*[("a", 1)] * 6)) == {0: [0], 1: [1], 2: [2], 3: [3], 4: [0], 5: [1]}
    assert assign(ranks(("a", 8))) == {0: [0, 1, 2, 3]}


def test_a_machine_with_cores_to_spare_is_left_alone() -> None:
    assert assign(ranks(("a", 2), ("a", 1), ("b", 4))) == {2: [0, 1, 2, 3]}


def test_cores_that_somebody_has_shared_out_stay_so() -> None:
    apart = {number: Need(machine="a", cores=cores, threads=2) for number, cores in enumerate([(0, 1), (2, 3)])}
    assert assign(apart) == {}


@pytest.mark.parametrize(("threads", "counted"), [("3", 3), ("3,2", 3), ("many", 1), ("", 1)])
def test_what_a_rank_says_of_itself(threads: str, counted: int) -> None:
    said = need_of_this_rank({"HVDKIT_BIND": "1", "HVDKIT_NODE": "node-7", "OMP_NUM_THREADS": threads})
    assert said == {"machine": "node-7", "cores": sorted(os.sched_getaffinity(0)), "threads": counted}


def test_a_rank_stays_on_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    had = os.sched_getaffinity(0)
    monkeypatch.setenv(BEFORE, "")  # so that it is as before afterwards
    try:
        bind([min(had)])
        assert os.sched_getaffinity(0) == {min(had)} and os.environ[BEFORE] == str(len(had))
    finally:
        os.sched_setaffinity(0, had)


def test_a_rank_whose_cores_were_taken_away_stays_unbound(monkeypatch: pytest.MonkeyPatch) -> None:
    had = os.sched_getaffinity(0)
    monkeypatch.delenv(BEFORE, raising=False)
    bind([1023])  # no machine that runs this has it, and the kernel refuses as it does for one that was taken away
    assert os.sched_getaffinity(0) == had and BEFORE not in os.environ


@pytest.mark.parametrize("environ", [{}, {"HVDKIT_BIND": "0"}])
def test_a_rank_that_wants_to_be_left_alone(environ: dict[str, str]) -> None:
    assert need_of_this_rank(environ) is None
