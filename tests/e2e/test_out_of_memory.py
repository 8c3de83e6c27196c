"""A rank that the kernel kills for lack of memory says so: in a real cgroup with a real limit, which needs root."""

import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

LIMIT = 200 << 20
GREEDY = """
import os, time
if os.environ["OMPI_COMM_WORLD_RANK"] == "1":
    taken = b"x" * (400 << 20)
time.sleep(60)
"""
CGROUPS = Path("/sys/fs/cgroup")


@pytest.fixture
def limited():
    """A cgroup of 200 MiB, by the version that this machine has."""
    version_2 = (CGROUPS / "cgroup.controllers").exists()
    folder = (CGROUPS if version_2 else CGROUPS / "memory") / f"hvdkit-test-{uuid.uuid4().hex[:8]}"
    if version_2:
        (CGROUPS / "cgroup.subtree_control").write_text("+memory")
    folder.mkdir()
    (folder / ("memory.max" if version_2 else "memory.limit_in_bytes")).write_text(str(LIMIT))
    yield folder
    folder.rmdir()


def test_a_rank_killed_for_memory_says_so(limited):
    done = subprocess.run(
        [sys.executable, "-m", "hvdkit", "launch", "--backend=local", "--workers=2", "--", "python", "-c", GREEDY],
        capture_output=True,
        text=True,
        timeout=120,
        preexec_fn=lambda: (limited / "cgroup.procs").write_text(str(os.getpid())),
    )
    assert done.returncode == 137
    assert "rank 1 on" in done.stderr
    assert "was killed by the kernel for lack of memory (the limit is 200 MiB)" in done.stderr
