"""Horovod, as built here, against what its operations are defined to give, over MPI and over Gloo.

The checks are in checks/ and run inside real ranks; here each of them is one test.
"""

from pathlib import Path

import pytest
from outcomes import FILES, Item, Outcomes, carry_out, checks_of, report, unfused_of, world_size_of

UNFUSED = [pytest.param(file, check, id=f"{file.stem}-{check}") for file in FILES for check in unfused_of(file)]
CHECKS = [pytest.param(file, check, id=f"{file.stem}-{check}") for file in FILES for check in checks_of(file)]


@pytest.fixture(scope="module", params=["mpi", "gloo"])
def outcomes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """Of every check, first with Horovod as it is, then with allreduce replaced by the identity.

    Over MPI on one machine hvdkit turns fusion off, which Gloo and other machines have. So the world of most checks has
    it on, and the other, which is launched anyway, also takes those that must hold without.
    """
    found: Outcomes = {}
    for world_size in sorted({world_size_of(file) for file in FILES}):
        files = [file for file in FILES if world_size_of(file) == world_size]
        checks = [(file, check) for file in files for check in checks_of(file)]
        work = [Item(phase, file, check) for phase in ("real", "identity") for file, check in checks]
        flags: tuple[str, ...] = ()
        if request.param == "mpi" and world_size == 2:
            flags = ("--env", f"HOROVOD_FUSION_THRESHOLD={64 << 20}")
        elif request.param == "mpi":
            work = [Item("unfused", file, check) for file in FILES for check in unfused_of(file)] + work
        folder = tmp_path_factory.mktemp(f"{request.param}-{world_size}")
        found |= carry_out(work, world_size, request.param, folder, flags=flags)
    return found


@pytest.mark.parametrize(("file", "check"), CHECKS)
def test_check(outcomes: Outcomes, file: Path, check: str) -> None:
    wrong = report(outcomes[Item("real", file, check)])
    assert not wrong, wrong


@pytest.mark.parametrize("outcomes", ["mpi"], indirect=True)
@pytest.mark.parametrize(("file", "check"), UNFUSED)
def test_check_without_fusion(outcomes: Outcomes, file: Path, check: str) -> None:
    wrong = report(outcomes[Item("unfused", file, check)])
    assert not wrong, wrong


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_file_fails_when_allreduce_does_nothing(outcomes: Outcomes, file: Path) -> None:
    sabotaged = [each for check in checks_of(file) for each in outcomes[Item("identity", file, check)]]
    # An assertion has to notice; ranks that merely died or hung would prove nothing.
    assert [each for each in sabotaged if each.outcome == "lost"] == []
    assert "AssertionError" in {each.kind for each in sabotaged}


def test_a_lost_rank_hides_no_other_check(tmp_path: Path) -> None:
    file = tmp_path / "lossy.py"
    file.write_text(
        "import horovod.torch as hvd, torch\n"
        "def check_before(): pass\n"
        "def check_that_hangs():\n"
        "    hvd.allreduce(torch.ones(1), name=f'only rank {hvd.rank()} starts this')\n"
        "def check_that_fails(): assert hvd.rank() == 0, 'wrong on rank 1'\n"
        "def check_after(): pass\n"
    )
    work = [Item("real", file, check) for check in checks_of(file)]
    found = carry_out(work, 2, "gloo", tmp_path / "results", {"HVDKIT_PARITY_HANG_SECONDS": "3"})

    seen = {item.check: [each.outcome for each in ranks] for item, ranks in found.items()}
    assert seen["check_before"] == ["passed", "passed"]
    assert seen["check_that_hangs"] == ["lost", "lost"]
    assert seen["check_that_fails"] == ["passed", "failed"]
    assert seen["check_after"] == ["passed", "passed"]
    hung = report(found[work[1]])
    assert "check_that_hangs" in hung  # the stacks of the rank that hung
    assert "wrong on rank 1" in report(found[work[2]])
