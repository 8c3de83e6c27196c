"""`hvdkit doctor` as a user runs it, on this machine and on one where much is missing."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest
from running import run

import hvdkit


def test_on_this_machine_nothing_fails(tmp_path):
    done = run("hvdkit", "doctor", "--json", HOME=str(tmp_path), KUBECONFIG="")
    document = json.loads(done.stdout)
    assert document["failures"] == 0, document
    assert done.returncode == 0
    findings = {finding["name"]: finding for finding in document["findings"]}
    assert "MPI" in findings["Horovod"]["text"]
    assert "Gloo" in findings["Horovod"]["text"]
    assert findings["Open MPI"]["text"].startswith("4.1")


@pytest.fixture
def bare_python(tmp_path):
    """A Python that has hvdkit's base install and nothing more."""
    folder = tmp_path / "packages"
    folder.mkdir()
    for name in ("click", "rich", "yaml", "pygments", "markdown_it", "mdurl"):
        (folder / name).symlink_to(Path(importlib.util.find_spec(name).origin).parent)
    (folder / "hvdkit").symlink_to(Path(hvdkit.__file__).parent)
    return [sys.executable, "-S", "-m", "hvdkit"], str(folder)


def test_with_everything_missing_it_says_so_without_a_traceback(bare_python, tmp_path):
    command, packages = bare_python
    empty = tmp_path / "empty"
    empty.mkdir()
    done = run(*command, "doctor", PYTHONPATH=packages, PATH=str(empty), HOME=str(tmp_path))
    assert done.returncode == 1
    assert "Traceback" not in done.stdout + done.stderr
    for name in ("C++ compiler", "torch", "Open MPI", "Horovod"):
        assert f"failure  {name}: " in done.stdout
    assert "-> pip install 'hvdkit[train]'" in done.stdout
    assert "the check itself failed" not in done.stdout


def test_a_launcher_needs_neither_torch_nor_horovod(bare_python, tmp_path):
    command, packages = bare_python
    mpirun = tmp_path / "bin" / "mpirun"
    mpirun.parent.mkdir()
    mpirun.write_text("#!/bin/sh\necho 'mpirun (Open MPI) 4.1.4'\n")
    mpirun.chmod(0o755)
    done = run(*command, "doctor", "--role=launcher", PYTHONPATH=packages, PATH=str(mpirun.parent))
    assert done.returncode == 0, done.stdout
    assert "4.1.4" in done.stdout


def test_with_a_broken_torch_there_is_no_traceback(tmp_path):
    (tmp_path / "torch.py").write_text("import os\nos.abort()\n")
    done = run("hvdkit", "doctor", "--role=worker", PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert "failure  torch: installed, but does not load: signal 6 ended it" in done.stdout
    assert "failure  Horovod: " in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
