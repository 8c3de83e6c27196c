"""Which job a command without a name is about, when runs here and jobs on a cluster share a name."""

import json
from typing import Any

import pytest
from click.testing import CliRunner
from scripted_api import Request, api

from hvdkit.cli import cli
from hvdkit.jobs.spec import JobSpec
from hvdkit.local import record

LABELS = {"app.kubernetes.io/managed-by": "hvdkit", "hvdkit.io/job": "train", "hvdkit.io/backend": "job"}
FAILED = {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": "it gave up"}


@pytest.fixture(autouse=True)
def own_state(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.chdir(tmp_path)


def a_run(monkeypatch: Any) -> None:
    """A run `train` of 2026 on this machine, which succeeded."""
    monkeypatch.setattr(record, "_now", lambda: "2026-06-01T00:00:00Z")
    record.begin(JobSpec(name="train", command=("python", "train.py"))).end(exit_code=0, reason="", rank=None, tail=[])


def a_job(made: str) -> Any:
    """A cluster with a job `train`, which failed."""
    meta = {"name": "train", "uid": "1", "labels": LABELS, "creationTimestamp": made}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": {}, "status": {"conditions": [FAILED]}}

    def answer(request: Request) -> None:
        if request.route.endswith("/jobs/train"):
            request.json(200, job)
        elif request.route.endswith(("mpijobs/train", "pytorchjobs/train")):
            request.status(404, "NotFound", "not found")
        else:
            request.items(*([job] if request.route.endswith("/batch/v1/namespaces/default/jobs") else []))

    return answer


def said(*words: str) -> dict:
    return json.loads(CliRunner().invoke(cli, [*words, "--json"], standalone_mode=False, catch_exceptions=False).output)


@pytest.mark.parametrize(("made", "here"), [("2026-07-01T00:00:00Z", False), ("2026-05-01T00:00:00Z", True)])
def test_the_newest_is_answered_for_and_not_another_of_its_name(made: str, here: bool, tmp_path, monkeypatch) -> None:
    a_run(monkeypatch)
    with api(a_job(made), tmp_path, monkeypatch):
        status, why, named = said("status"), said("why"), said("status", "train")
    assert (status["phase"], status["backend"]) == (("Succeeded", "local") if here else ("Failed", "job"))
    assert (why["name"], why["trouble"]) == ("train", "" if here else "failed")
    assert named["backend"] == "local"  # by its name a run on this machine comes first
