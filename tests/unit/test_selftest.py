"""How `hvdkit selftest` judges what the ranks and Horovod's timeline say."""

import pytest

from hvdkit.checks.selftest import judge
from hvdkit.checks.timeline import allreduce_counts

REPORT = {
    "ranks": 2,
    "hosts": 1,
    "device": "cuda",
    "expected_library": "NCCL",
    "operations": ["allreduce"],
    "wrong": [],
    "bandwidth": [],
}


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ('[\n{"ph": "B", "name": "NCCL_ALLREDUCE", "ts": 1},{"ph": "B", "name": "NCCL_ALLREDUCE"}]', {"NCCL": 2}),
        ('[\n{"ph": "B", "name": "GLOO_ALLREDUCE"},\n{"ph": "B", "name": "MPI_ALLRED', {"Gloo": 1}),
        ('[{"name": "NCCL_REDUCESCATTER"},{"name": "MPI_ALLREDUCE"}]', {"NCCL": 1, "MPI": 1}),
        ('[{"name": "NEGOTIATE_ALLREDUCE"},{"name": "ALLREDUCE"},{"name": "MPI_BCAST"}]', {}),
        ("", {}),
    ],
)
def test_libraries_are_counted_in_the_timeline(tmp_path, text, counts):
    path = tmp_path / "timeline.json"
    path.write_text(text)
    assert allreduce_counts(path) == counts


def test_a_missing_timeline_proves_nothing(tmp_path):
    assert allreduce_counts(tmp_path / "none.json") == {}


def test_the_expected_library_on_the_expected_world_is_right():
    assert judge(REPORT, {"NCCL": 9}, 2, "mpi").wrong == ()


@pytest.mark.parametrize(
    ("report", "libraries", "said"),
    [
        ({}, {"MPI": 9}, "NCCL should have reduced, but Horovod's timeline shows MPI (9 times)"),
        ({}, {"NCCL": 8, "MPI": 1}, "MPI (1 times)"),
        ({}, {}, "no library at all"),
        ({"ranks": 1}, {"NCCL": 9}, "1 ranks instead of 2"),
        ({"wrong": ["allreduce of torch.int32 on rank 1"]}, {"NCCL": 9}, "allreduce of torch.int32 on rank 1"),
    ],
)
def test_everything_else_is_wrong(report, libraries, said):
    result = judge({**REPORT, **report}, libraries, 2, "mpi")
    assert len(result.wrong) == 1
    assert said in result.wrong[0]
