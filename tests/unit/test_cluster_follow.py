"""Whose logs are followed: pods that come late, that are made anew, and how many at once; by a scripted API."""

import threading
from typing import Any

import pytest
from scripted_api import Request, api

from hvdkit.cli.logs import Wanted, of_cluster
from hvdkit.cli.target import OnCluster
from hvdkit.cluster.api import ApiError
from hvdkit.cluster.follow import MOST_LOGS, Follower, Printer
from hvdkit.cluster.job import Job
from hvdkit.errors import InputError

OURS = {"app.kubernetes.io/managed-by": "hvdkit", "hvdkit.io/job": "train", "hvdkit.io/backend": "indexed-job"}
INDEX = "batch.kubernetes.io/job-completion-index"


@pytest.fixture(autouse=True)
def impatient(monkeypatch) -> None:
    monkeypatch.setattr("hvdkit.cluster.watch.pause", lambda attempt, error=None: 0.01)
    monkeypatch.setattr("hvdkit.cluster.logs.pause", lambda attempt, error=None: 0.01)


def indexed_job(*, workers: int = 2, ended: bool = False) -> dict:
    template = {"spec": {"containers": [{"command": ["hvdkit-pod", "--slots", "1"]}]}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "train", "uid": "uid-train", "labels": OURS, "resourceVersion": "1"},
        "spec": {"completions": workers, "parallelism": workers, "template": template},
        "status": {"conditions": [{"type": "Complete", "status": "True"}] if ended else []},
    }


def pod(name: str, index: int, *, uid: str = "", phase: str = "Running") -> dict:
    state = {"Pending": {"waiting": {}}, "Running": {"running": {}}, "Succeeded": {"terminated": {"exitCode": 0}}}
    made = f"2026-01-01T00:00:{index:02}Z"
    labels = {**OURS, INDEX: str(index)}
    meta = {"name": name, "uid": uid or name, "labels": labels, "resourceVersion": "1", "creationTimestamp": made}
    return {"metadata": meta, "status": {"phase": phase, "containerStatuses": [{"state": state[phase]}]}}


class Stage:
    """A job whose pods change from scene to scene; the next scene begins when the log of `until` was read."""

    def __init__(self, *scenes: tuple[dict, list[dict], str]) -> None:
        self.scenes = list(scenes)
        self.changed = threading.Condition()

    def __call__(self, request: Request) -> None:
        main, pods, until = self.scenes[0]
        parts = request.route.split("/")
        if parts[-1] == "log":
            self.log(request, parts[-2], until)
        elif "watch" in request.query:
            scene = len(self.scenes)
            with self.changed:
                self.changed.wait_for(lambda: len(self.scenes) != scene, timeout=0.5)
            request.status(410, "Expired", "too old")  # so that the next scene comes as a list
        elif parts[-1] in ("jobs", "pods"):
            request.items(*([main] if parts[-1] == "jobs" else pods))
        else:
            found = [one for one in (main, *pods) if one["metadata"]["name"] == parts[-1]]
            request.json(200, found[0]) if found else request.status(404, "NotFound", "gone")

    def log(self, request: Request, name: str, until: str) -> None:
        uid = next((one["metadata"]["uid"] for one in self.scenes[0][1] if one["metadata"]["name"] == name), None)
        if uid is None:
            request.status(404, "NotFound", "gone")
            return
        with request.stream() as send:
            send(f"2026-01-01T00:00:00.000000000Z [0] says {uid}\n".encode())
        if uid == until and len(self.scenes) > 1:
            self.go_on()

    def go_on(self) -> None:
        with self.changed:
            self.scenes.pop(0)
            self.changed.notify_all()


def followed(stage: Stage, tmp_path: Any, monkeypatch: Any) -> None:
    with api(stage, tmp_path, monkeypatch) as (cluster, _):
        Follower(cluster, Job(main=stage.scenes[0][0]), printer=Printer()).to_end()


def test_a_pod_made_anew_under_its_old_name_is_followed(tmp_path, monkeypatch, capfd) -> None:
    running, done = indexed_job(), indexed_job(ended=True)
    stage = Stage(
        (running, [pod("train-0", 0, uid="first")], "first"),
        (running, [pod("train-0", 0, uid="second")], "second"),
        (done, [pod("train-0", 0, uid="second", phase="Succeeded")], ""),
    )
    followed(stage, tmp_path, monkeypatch)
    assert capfd.readouterr().out.splitlines() == ["[0] says first", "[0] says second"]


def test_more_workers_than_are_shown_at_once_is_said_once(tmp_path, monkeypatch, capfd) -> None:
    workers = MOST_LOGS + 3
    pods = [pod(f"train-{number}", number, phase="Succeeded") for number in range(workers)]
    stage = Stage(
        (indexed_job(workers=workers), pods, "train-0"),
        (indexed_job(workers=workers, ended=True), pods, ""),
    )
    followed(stage, tmp_path, monkeypatch)
    out, err = capfd.readouterr()
    assert len(out.splitlines()) == MOST_LOGS
    said = f"hvdkit: showing {MOST_LOGS} of {workers} workers; `hvdkit logs train --worker N` shows another."
    assert err.splitlines().count(said) == 1


def hvdkit_logs(stage: Stage, tmp_path: Any, monkeypatch: Any, *, follow: bool = True, **wanted: Any) -> None:
    whose = Wanted(**{"rank": None, "worker": None, "everything": False, "since": None} | wanted)
    with api(stage, tmp_path, monkeypatch) as (cluster, _):
        of_cluster(OnCluster(cluster=cluster, job=Job(main=stage.scenes[0][0])), whose, follow=follow)


class TestLogsCommand:
    @pytest.mark.parametrize("everything", [False, True])
    def test_workers_that_start_later_are_followed(self, everything: bool, tmp_path, monkeypatch, capfd) -> None:
        running, done = indexed_job(), indexed_job(ended=True)
        late = pod("train-1", 1, phase="Pending")
        stage = Stage(
            (running, [pod("train-0", 0), late], "train-0"),
            (running, [pod("train-0", 0), pod("train-1", 1)], "train-1"),
            (done, [pod(f"train-{number}", number, phase="Succeeded") for number in range(2)], ""),
        )
        hvdkit_logs(stage, tmp_path, monkeypatch, everything=everything)
        assert capfd.readouterr().out.splitlines() == ["[0] says train-0", "[0] says train-1"]

    def test_a_worker_without_a_pod_yet_is_waited_for(self, tmp_path, monkeypatch, capfd) -> None:
        running, done = indexed_job(), indexed_job(ended=True)
        stage = Stage(
            (running, [pod("train-0", 0)], ""),
            (running, [pod("train-0", 0), pod("train-1", 1)], "train-1"),
            (done, [pod(f"train-{number}", number, phase="Succeeded") for number in range(2)], ""),
        )
        threading.Timer(1.0, stage.go_on).start()
        hvdkit_logs(stage, tmp_path, monkeypatch, worker=1)
        assert capfd.readouterr().out.splitlines() == ["[0] says train-1"]

    @pytest.mark.parametrize("wanted", [{"worker": 2}, {"rank": 2}])
    def test_a_worker_that_never_will_be_is_not(self, wanted: dict, tmp_path, monkeypatch) -> None:
        with pytest.raises(InputError, match="has no pod for worker 2; there are 0"):
            hvdkit_logs(Stage((indexed_job(), [pod("train-0", 0)], "")), tmp_path, monkeypatch, **wanted)

    def test_a_job_that_has_ended_and_left_no_pods_is_no_reason_to_wait(self, tmp_path, monkeypatch, capfd) -> None:
        hvdkit_logs(Stage((indexed_job(ended=True), [], "")), tmp_path, monkeypatch)
        assert "'train' has no pods (any more); `hvdkit why train`" in capfd.readouterr().err

    def test_logs_that_we_may_not_read_end_it(self, tmp_path, monkeypatch) -> None:
        stage = Stage((indexed_job(), [pod("train-0", 0)], ""))
        stage.log = lambda request, name, until: request.status(403, "Forbidden", "you cannot get pods/log")
        with pytest.raises(ApiError, match="you cannot get pods/log"):
            hvdkit_logs(stage, tmp_path, monkeypatch)

    def test_ranks_of_a_pytorchjob_are_not_told_apart(self, tmp_path, monkeypatch) -> None:
        main = indexed_job()
        main["metadata"]["labels"] = {**OURS, "hvdkit.io/backend": "pytorchjob"}
        with pytest.raises(InputError, match=r"--rank: not for backend pytorchjob, .* use --worker N"):
            hvdkit_logs(Stage((main, [], "")), tmp_path, monkeypatch, follow=False, rank=0)
