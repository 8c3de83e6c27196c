"""Points of a sweep as jobs of a cluster, against a scripted API; tests/e2e/test_k8s_bench.py has a real one."""

import io
import itertools
import random
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from bench_samples import World, independent_records, rank_records
from click.testing import CliRunner
from rich.console import Console
from scripted_api import Api, Request, api, kubeconfig

from hvdkit.bench import cluster_runner, result_file
from hvdkit.bench.cluster_jobs import job_name, settings_of
from hvdkit.bench.cluster_runner import ClusterRunner
from hvdkit.bench.live import Lines
from hvdkit.bench.points import IDEAL, Point, SweepSettings
from hvdkit.bench.runners import NoPointRuns, RunSpec
from hvdkit.bench.sweep import open_results, sweep
from hvdkit.cli import cli
from hvdkit.cli.job_flags import flag_settings
from hvdkit.config.settings import Setting, make_spec
from hvdkit.errors import HvdkitError
from hvdkit.jobs import render
from hvdkit.runtime import results as lines_format

STEPS = 20
SWEEP = SweepSettings(workers=(1, 2), backend="indexed-job", steps=STEPS, warmup_steps=5, env=("A=1",))


class Jobs(Api):
    """An API server whose Jobs have ended as soon as they are made, with logs as ranks write them."""

    def __init__(self, *, ends: str = "Complete", waiting: str = "", **changes: Any) -> None:
        super().__init__(**changes)
        self.ends, self.waiting = ends, waiting
        self.live: dict[str, dict] = {}
        self.deleted: list[str] = []
        self.uids = itertools.count()
        self.draw = random.Random(1)

    def __call__(self, request: Request) -> None:
        words = request.route.split("/")
        if request.command == "POST" and request.body["kind"] == "Job" and "dryRun" not in request.query:
            body = request.body
            body["metadata"] |= {"uid": f"job-{next(self.uids)}", "resourceVersion": "1"}
            self.live[body["metadata"]["name"]] = body
            self.made.append(("Job", body))
            request.json(201, body)
        elif request.command == "DELETE" and "jobs" in words:
            self.deleted.append(words[-1])
            self.live.pop(words[-1], None)
            request.json(200, {})
        elif request.command == "GET" and "watch" in request.query:
            with request.stream():
                time.sleep(0.2)
        elif request.command == "GET" and words[-1] == "log":
            self.send_log(request, words[-2])
        elif request.command == "GET" and words[-1] == "jobs":
            request.items(*map(self.ended, self.live.values()))
        elif request.command == "GET" and words[-2] == "jobs":
            job = self.live.get(words[-1])
            request.json(200, self.ended(job)) if job else request.status(404, "NotFound", "no such job")
        elif request.command == "GET" and words[-1] == "pods":
            request.items(*(pod for job in self.live.values() for pod in self.pods(job)))
        elif request.command == "GET" and words[-2] == "pods":
            pods = {pod["metadata"]["name"]: pod for job in self.live.values() for pod in self.pods(job)}
            request.json(200, pods[words[-1]]) if words[-1] in pods else request.status(404, "NotFound", "no such pod")
        elif request.command == "GET" and words[-1] == "events":
            request.items()
        else:
            super().__call__(request)

    def ended(self, job: dict) -> dict:
        conditions = [] if self.waiting else [{"type": self.ends, "status": "True", "reason": "BackoffLimitExceeded"}]
        return {**job, "kind": "Job", "apiVersion": "batch/v1", "status": {"conditions": conditions}}

    def pods(self, job: dict) -> list[dict]:
        name, workers = job["metadata"]["name"], job["spec"]["completions"]
        code = 0 if self.ends == "Complete" else 7
        state = {"waiting": {"reason": self.waiting}} if self.waiting else {"terminated": {"exitCode": code}}
        phase = "Pending" if self.waiting else "Succeeded" if code == 0 else "Failed"
        labels = {**job["metadata"]["labels"], "batch.kubernetes.io/job-name": name}
        return [
            {
                "kind": "Pod",
                "apiVersion": "v1",
                "metadata": {"name": f"{name}-{index}-abcde", "uid": f"{name}-{index}", "labels": labels},
                "spec": {"restartPolicy": "Never", "containers": [{"image": "nobody/has:this"}]},
                "status": {"phase": phase, "containerStatuses": [{"name": "worker", "state": state}]},
            }
            for index in range(workers)
        ]

    def send_log(self, request: Request, pod: str) -> None:
        with request.stream() as send:
            for line in self.log_of(pod):
                send(f"2026-01-01T00:00:00.000000001Z {line}\n".encode())

    def log_of(self, pod: str) -> list[str]:
        """Of Horovod's ranks the first tells for all; independent ones tell each for itself."""
        name, number, _ = pod.rsplit("-", 2)
        _, engine, workers, _ = name.rsplit("-", 3)
        lines = [f"[{number}] hello", f"[{number}] last words"]
        if engine == IDEAL:
            ranks = independent_records(World(), int(workers), STEPS, noise=0.01, draw=self.draw)
            ranks = [ranks[int(number)] | {"rank": 0}]
        else:
            ranks = rank_records(World(), int(workers), STEPS, noise=0.01, draw=self.draw)
        if engine == IDEAL or number == "0":
            ranks = [rank | {"node": "node-a"} for rank in ranks]
            payload = {"summary": {}, "hosts": [pod] * len(ranks), "ranks": ranks, "versions": {"torch": "2"}}
            lines_format.emit("train", payload, lambda line: lines.append(f"[{number}] {line}"))
        return lines


def runner(cluster: Any, *flags: Setting) -> ClusterRunner:
    return ClusterRunner(lambda: cluster, list(flags), prefix="b")


def run_spec(folder: Path, engine: str = "horovod", workers: int = 2, timeout: float = 60.0) -> RunSpec:
    point = Point(data="synthetic", engine=engine, workers=workers)
    return RunSpec(point=point, settings=SWEEP, log=folder / "logs" / "run.log", timeout=timeout)


def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hvdkit.cluster.watch.pause", lambda attempt, error=None: 0.01)


def test_a_whole_sweep_is_measured_and_leaves_no_job(tmp_path: Path, monkeypatch) -> None:
    quickly(monkeypatch)
    server = Jobs()
    with api(server, tmp_path, monkeypatch) as (cluster, _):
        found = sweep(
            open_results(SWEEP, tmp_path), runner(cluster), tmp_path, Lines(Console(file=io.StringIO())), timeout=60
        )
    assert [run.problem for run in found.runs] == [None] * 20
    names = [body["metadata"]["name"] for kind, body in server.made if kind == "Job"]
    assert names == [job_name("b", SWEEP, point, repeat) for repeat, point in SWEEP.schedule()]
    assert server.deleted == names and server.live == {}
    read = result_file.load(tmp_path / "results.json")
    assert {len(run.ranks) for run in read.runs} == {1, 2}
    assert {host for run in read.runs for host in run.hosts} == {"node-a"}  # not the pods', which share its cores


def test_what_is_sent_is_what_the_dry_run_prints(tmp_path: Path, monkeypatch) -> None:
    server = Jobs()
    with api(server, tmp_path, monkeypatch) as (cluster, _):
        here = runner(cluster)
        printed = list(yaml.safe_load_all(here.describe(run_spec(tmp_path))))
        here.run_point(run_spec(tmp_path))
    sent = [body for _, body in server.made]
    for body in sent:
        for added in ("uid", "resourceVersion"):
            body["metadata"].pop(added, None)
    assert sent == printed


def test_a_failed_run_says_why_keeps_its_log_and_leaves_no_job(tmp_path: Path, monkeypatch) -> None:
    server = Jobs(ends="Failed")
    with api(server, tmp_path, monkeypatch) as (cluster, _):
        with pytest.raises(HvdkitError, match=r"exit code 7; .*run\.log ends with: .*last words") as raised:
            runner(cluster).run_point(run_spec(tmp_path))
    assert not isinstance(raised.value, NoPointRuns)
    assert "[1] hello" in (tmp_path / "logs" / "run.log").read_text()
    assert server.live == {}


def test_a_run_that_does_not_end_is_deleted(tmp_path: Path, monkeypatch) -> None:
    server = Jobs(waiting="ContainerCreating")
    with api(server, tmp_path, monkeypatch) as (cluster, _):
        with pytest.raises(HvdkitError, match=r"not done after 2 s \(--timeout\)"):
            runner(cluster).run_point(run_spec(tmp_path, timeout=2.0))
    assert server.live == {}


def test_an_image_that_nobody_has_stops_the_sweep(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(cluster_runner, "SECONDS_BETWEEN_LOOKS", 0.2)
    server = Jobs(waiting="ErrImagePull")
    with api(server, tmp_path, monkeypatch) as (cluster, _):
        results = open_results(SWEEP, tmp_path)
        with pytest.raises(NoPointRuns, match=r"nobody/has:this cannot be pulled: check the name and tag of --image"):
            sweep(results, runner(cluster), tmp_path, Lines(Console(file=io.StringIO())), timeout=60)
    assert len(server.deleted) == 1 and server.live == {} and results.runs == []


def test_an_interrupt_deletes_the_job(tmp_path: Path, monkeypatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cluster_runner.Looks, "__call__", interrupted)
    server = Jobs(waiting="ContainerCreating")
    with api(server, tmp_path, monkeypatch) as (cluster, _):
        with pytest.raises(KeyboardInterrupt):
            runner(cluster).run_point(run_spec(tmp_path))
    assert len(server.deleted) == 1


def settings(*, backend: str = "mpijob", engine: str = "horovod", **flags: Any) -> dict[str, Setting]:
    spec = SweepSettings(workers=(1, 2), slots=2, backend=backend, threads=3, env=("A=1",))
    point = Point(data="synthetic", engine=engine, workers=2, slots=2)
    made = settings_of(flag_settings(flags), spec, point, name="b", timeout=99.5)
    return {setting.name: setting for setting in made}


def test_users_settings_reach_the_job_and_the_sweep_decides_the_rest() -> None:
    file = [Setting(path=("workers",), value=9, source="hvdkit.yaml"), Setting(path=("elastic",), value=1, source="f")]
    made = settings(image="registry/me:1", pvc=("claim:/data",), cpus="4")
    assert made["image"].value == "registry/me:1" and made["resources.cpus"].value == "4"
    assert made["env.A"].value == "1" and made["threads"].value == 3
    assert (made["workers"].value, made["slots"].value, made["run.backoff_limit"].value) == (2, 2, 0)
    assert made["run.deadline"].value >= 100  # a sweep that is killed leaves no job for ever
    spec = SweepSettings(workers=(1, 2))
    point = Point(data="synthetic", engine="horovod", workers=2)
    names = {one.name: one.value for one in settings_of(file, spec, point, name="b", timeout=9)}
    assert names["workers"] == 2 and "elastic" not in names


@pytest.mark.parametrize("backend", ["mpijob", "indexed-job"])
def test_the_ideal_has_the_same_pods_and_no_launcher(backend: str) -> None:
    flags: dict[str, Any] = {"cpus": "4", "memory": "2Gi"}
    if backend == "mpijob":
        flags |= {"launcher_image": "l:1", "mpi_arg": ("-v",)}
    sides = []
    for engine in ("horovod", IDEAL):
        made = list(settings(backend=backend, engine=engine, image="i:1", **flags).values())
        job = render(make_spec(made, name="b"))[-1]
        owner = job["spec"] if job["kind"] == "Job" else job["spec"]["mpiReplicaSpecs"]["Worker"]
        container = owner["template"]["spec"]["containers"][0]
        sides.append((container["resources"], container["image"]))
    assert sides[0] == sides[1]
    assert job["kind"] == "Job" and job["spec"]["completions"] == 2
    words = job["spec"]["template"]["spec"]["containers"][0]["command"]
    assert words[words.index("--slots") + 1] == "2" and words[words.index("--count") + 1] == "4"


def test_names_tell_data_sets_apart() -> None:
    two = SweepSettings(workers=(1,), data=("synthetic", "my.module:Load"))
    point = Point(data="my.module:Load", engine="ddp", workers=1)
    assert job_name("b", two, point, 0) == "b-ddp-my-module-lo-1-1"


def invoke(*words: str, folder: Path) -> Any:
    arguments = ["bench", "scaling", "--workers", "1,2", *words, "--output", str(folder / "out")]
    return CliRunner().invoke(cli, arguments, standalone_mode=False)


@pytest.mark.parametrize(
    ("words", "said", "code"),
    [
        (["--backend", "pytorchjob"], "--backend: sweeps run on local, mpijob and indexed-job", 2),
        (["--backend", "mpijob"], "--threads: say how many threads", 2),
        (["--backend", "mpijob", "--cpus", "2", "--engines", "ddp"], "--engines: backend mpijob cannot do that", 2),
        (["--backend", "mpijob", "--cpus", "2", "--image", "No Such"], "--image: ", 2),
        (["--backend", "mpijob", "--cpus", "2", "--pvc", "claim"], "--pvc: 'claim' is not CLAIM:/mount", 2),
        (["--backend", "indexed-job", "--cpus", "2"], "does not answer", 3),
        (["--backend", "indexed-job", "--cpus", "2", "--context", "other"], "--context: there is no context", 2),
        (["--image", "a:1"], "--image: backend local on this machine has no use for it", 2),
        (["--name", "a"], "--name: backend local on this machine has no use for it", 2),
        (["--context", "a"], "--context: backend local on this machine has no use for it", 2),
        (["--pushgateway", "nowhere"], "--pushgateway 'nowhere' has no port", 2),
    ],
)
def test_mistakes_are_said_before_the_first_run(words, said, code, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path / "config", "http://127.0.0.1:9")))
    monkeypatch.chdir(tmp_path)
    result = invoke(*words, folder=tmp_path)
    assert isinstance(result.exception, HvdkitError), result.output
    assert said in str(result.exception) and result.exception.exit_code == code
    assert not (tmp_path / "out").exists()


def test_jobs_settings_come_from_the_file_too_and_are_recorded(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = "version: 1\nbackend: job\nworkers: 7\nimage: registry/me:2\nresources: {cpus: 4}\nenv: {B: two}\n"
    (tmp_path / "hvdkit.yaml").write_text(text)
    printed = invoke("--backend", "indexed-job", "--dry-run", "--name", "n", folder=tmp_path).output
    jobs = [one for one in yaml.safe_load_all(printed) if one["kind"] == "Job"]
    assert [job["spec"]["completions"] for job in jobs] == [1, 2, 1, 2]
    container = jobs[0]["spec"]["template"]["spec"]["containers"][0]
    variables = {one["name"]: one.get("value") for one in container["env"]}
    assert (container["image"], variables["B"], variables["OMP_NUM_THREADS"]) == ("registry/me:2", "two", "4")


def test_other_jobs_are_another_sweep(tmp_path: Path) -> None:
    first = open_results(replace(SWEEP, job=('image="a:1"',)), tmp_path)
    result_file.save(first, tmp_path / "results.json")
    with pytest.raises(HvdkitError, match=r"another sweep \(job image=\"a:1\", now image=\"b:1\"\)"):
        open_results(replace(SWEEP, job=('image="b:1"',)), tmp_path)
