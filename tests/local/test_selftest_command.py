"""`hvdkit selftest` with real ranks, and with ranks whose collectives are broken."""

import json
import sys

import pytest
from running import run

# Ranks as always, but the collectives are replaced by the identity.
BROKEN_RANKS = """
import runpy, sys
import horovod.torch as hvd
hvd.allreduce = hvd.allgather = hvd.broadcast = lambda tensor, *args, **kwargs: tensor
runpy.run_module("hvdkit.checks.selftest_ranks", run_name="__main__", alter_sys=True)
"""
WITH_OTHER_RANKS = """
import sys
from hvdkit.checks import selftest
from hvdkit.cli import main
selftest.RANK_COMMAND = (sys.executable, sys.argv[1])
sys.argv[1:] = ["selftest", "--json"]
main()
"""


@pytest.mark.parametrize(("controller", "library"), [("mpi", "MPI"), ("gloo", "Gloo")])
def test_collectives_are_correct_here(controller, library):
    done = run("hvdkit", "selftest", f"--controller={controller}", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    assert result["wrong"] == []
    assert result["ranks"] == 2
    assert set(result["libraries"]) == {library}
    for row in result["bandwidth"]:
        assert row["algorithm_bytes_per_second"] == pytest.approx(row["bytes"] / row["seconds"])
        assert row["bus_bytes_per_second"] == pytest.approx(row["algorithm_bytes_per_second"])  # 2 (n-1)/n with 2 ranks


def test_every_collective_that_does_nothing_is_found_out(tmp_path):
    script = tmp_path / "ranks.py"
    script.write_text(BROKEN_RANKS)
    done = run(sys.executable, "-c", WITH_OTHER_RANKS, str(script))
    assert done.returncode == 1, done.stderr
    wrong = json.loads(done.stdout)["wrong"]
    assert {text.split()[0] for text in wrong} == {"allreduce", "allgather", "broadcast"}


def test_a_rank_that_breaks_is_one_sentence(tmp_path):
    script = tmp_path / "ranks.py"
    script.write_text("import sys\nsys.exit(7)\n")
    done = run(sys.executable, "-c", WITH_OTHER_RANKS, str(script))
    assert done.returncode == 1
    assert "hvdkit: the collectives did not come to an end: rank" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("workers", ["0", "1000000"])
def test_a_number_of_workers_that_cannot_be_is_bad_usage(workers):
    done = run("hvdkit", "selftest", f"--workers={workers}")
    assert done.returncode == 2
    assert "hvdkit: workers:" in done.stderr
