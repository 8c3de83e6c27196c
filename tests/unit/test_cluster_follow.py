"""Whose logs are followed: pods that come late, that are made anew, and how many at once; by a scripted API."""

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from golden_specs import spec
from scripted_api import Api, Request, api

from hvdkit.cli.logs import Wanted, of_cluster
from hvdkit.cli.target import OnCluster
from hvdkit.cluster.api import ApiError
from hvdkit.cluster.follow import MOST_LOGS, Follower, Patience, Printer
from hvdkit.cluster.job import Job
from hvdkit.cluster.launch import LaunchOptions, follow, launch_on_cluster, start_limit
from hvdkit.errors import HvdkitError, InputError
from hvdkit.jobs.policy import RunPolicy
from hvdkit.jobs.scheduling import Scheduling
from hvdkit.jobs.spec import JobSpec
from hvdkit.jobs.state import JobState

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


class TestSavedLogs:
    done = (indexed_job(ended=True), [pod(f"train-{number}", number, phase="Succeeded") for number in range(3)], "")

    def saved(self, folder: Path, tmp_path: Any, monkeypatch: Any) -> None:
        with api(Stage(self.done), tmp_path, monkeypatch) as (cluster, _):
            Follower(cluster, Job(main=self.done[0]), printer=None, save_logs=folder).to_end()

    @pytest.mark.parametrize("wrong", ["a file", "/proc", "/proc/logs"])
    def test_a_folder_that_cannot_be_written_is_said_before_anything_is_asked(
        self, wrong: str, tmp_path, monkeypatch
    ) -> None:
        folder = Path(wrong) if wrong.startswith("/") else tmp_path / wrong
        (tmp_path / "a file").touch()
        with api(Api(), tmp_path, monkeypatch) as (cluster, server):
            with pytest.raises(HvdkitError, match=r"^--save-logs: .* (is a file; name a folder|cannot be written: .*)"):
                launch_on_cluster(cluster, spec("indexed-job"), LaunchOptions(save_logs=folder), "as asked")
            assert server.asked == []

    def test_nothing_is_left_of_the_attempt(self, tmp_path, monkeypatch) -> None:
        self.saved(tmp_path / "deep" / "logs", tmp_path, monkeypatch)
        found = {path.name: path.read_text() for path in (tmp_path / "deep" / "logs").iterdir()}
        assert found == {f"train-{number}.log": f"[0] says train-{number}\n" for number in range(3)}

    @pytest.mark.parametrize("trouble", ["is not a file", "is on a full disk"])
    def test_files_that_cannot_be_written_are_one_warning(self, trouble: str, tmp_path, monkeypatch, capfd) -> None:
        folder = tmp_path / "logs"
        folder.mkdir()
        for name in ("train-0.log", "train-1.log"):
            (folder / name).mkdir() if trouble == "is not a file" else (folder / name).symlink_to("/dev/full")
        self.saved(folder, tmp_path, monkeypatch)
        said = capfd.readouterr().err
        assert said.count("--save-logs: ") == 1 and "will not be complete" in said and "Traceback" not in said
        assert (folder / "train-2.log").read_text() == "[0] says train-2\n"

    def test_logs_that_do_not_end_are_waited_for_together(self, tmp_path, monkeypatch, capfd) -> None:
        monkeypatch.setattr("hvdkit.cluster.follow.SECONDS_FOR_LAST_WORDS", 0.2)
        waited: list[float] = []

        class Endless:
            pod, error = "train", None

            def join(self, seconds: float) -> bool:
                waited.append(seconds)
                time.sleep(seconds)
                return False

            def hurry(self) -> None:
                pass

            stop = hurry

        with api(Stage(self.done), tmp_path, monkeypatch) as (cluster, _):
            follower = Follower(cluster, Job(main=self.done[0]), printer=None)
            follower._logs.update((str(number), Endless()) for number in range(10))
            follower.to_end()
        assert len(waited) == 10 and sum(waited) <= 0.2
        assert capfd.readouterr().err.count("did not come to its end") == 10


@pytest.mark.parametrize("gone", [False, True])
def test_who_cannot_look_on_any_more_learns_that_the_job_goes_on(gone: bool, tmp_path, monkeypatch, capfd) -> None:
    def answer(request: Request) -> None:
        if gone and "watch" not in request.query:
            request.items()
        else:
            request.status(403, "Forbidden", "you cannot list jobs")

    with api(answer, tmp_path, monkeypatch) as (cluster, _):
        with pytest.raises(HvdkitError, match="was deleted" if gone else "you cannot list jobs"):
            follow(cluster, Job(main=indexed_job()), LaunchOptions(), start_timeout=60)
    said = "hvdkit: train goes on; `hvdkit logs -f train` follows it, `hvdkit delete train` ends it."
    assert capfd.readouterr().err.splitlines().count(said) == (0 if gone else 1)


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({}, 600),
        ({"backend": "pytorchjob", "run": RunPolicy(start_timeout=60)}, 60),
        ({"scheduling": Scheduling(queue="q")}, 600),  # Kueue suspends it, and that is seen
        ({"scheduling": Scheduling(gang="volcano", queue="q")}, None),
        ({"backend": "monarch", "scheduling": Scheduling(queue="q")}, None),
        ({"backend": "job", "independent": True}, 600),
    ],
)
def test_only_a_job_whose_queue_is_not_seen_may_take_for_ever(fields: dict, limit: float | None) -> None:
    assert start_limit(JobSpec(**{"name": "train", "backend": "mpijob", "command": ("true",), **fields})) == limit


def test_a_job_that_does_not_start_is_left_and_said_why(tmp_path, monkeypatch, capfd) -> None:
    stuck = pod("train-0", 0, phase="Pending")
    waiting = {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}
    stuck["status"]["containerStatuses"][0]["state"] = {"waiting": waiting}
    stage = Stage((indexed_job(), [stuck], "nobody"))
    with api(stage, tmp_path, monkeypatch) as (cluster, _):
        assert follow(cluster, Job(main=indexed_job()), LaunchOptions(), start_timeout=0.5) == 3
    said = capfd.readouterr().err
    assert "hvdkit: train has not started within 0.5 s: " in said and "; exit code 3" in said
    assert "ImagePullBackOff" in said and "`hvdkit delete train` ends that" in said


def test_patience_is_for_the_start_only_and_not_for_a_queue(monkeypatch) -> None:
    now = [0.0]
    monkeypatch.setattr("hvdkit.cluster.follow.time.monotonic", lambda: now[0])

    def lasts(*phases: str) -> list[bool]:
        patience, ends = Patience(10), []
        for phase in phases:
            ends.append(patience.ends_with(JobState(phase=phase)))
            now[0] += 6
        return ends

    assert lasts("Pending", "Starting", "Starting") == [False, False, True]
    assert lasts("Suspended", "Suspended", "Suspended", "Starting", "Starting") == [False, False, False, False, True]
    assert lasts("Pending", "Running", "Restarting", "Restarting") == [False] * 4
    assert not Patience(None).ends_with(JobState(phase="Pending"))
    for enough, ends in ((False, True), (True, False)):  # one of two copies has run, the other waits for its turn
        patience = Patience(10, one_is_enough=enough)
        patience.ends_with(JobState(phase="Starting", ready=1, workers=2))
        now[0] += 11
        assert patience.ends_with(JobState(phase="Starting", ready=0, workers=2)) is ends
