"""`hvdkit bench scaling` on a real cluster, with a real Prometheus that scrapes all ranks while they train."""

import contextlib
import json
import secrets
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import prometheus_server as servers
import pytest
import yaml
from cluster.cluster import Cluster
from kubernetes_jobs import User
from kubernetes_training import IMAGE, LIMIT, NETS

from hvdkit.bench import result_file
from hvdkit.bench.cluster_runner import ClusterRunner
from hvdkit.bench.points import IDEAL, Point, SweepSettings
from hvdkit.bench.runners import RunSpec
from hvdkit.bench.samples import figures, read_log
from hvdkit.cluster.api import Cluster as Connection
from hvdkit.cluster.kinds import POD
from hvdkit.cluster.watch import Deleted, Everything, Watch
from hvdkit.config.settings import Setting

MONITORING = Path(__file__).parents[2] / "manifests" / "monitoring" / "prometheus" / "prometheus.yml"
REPEATS, STEPS, WARMUP, BATCH = 5, 80, 8, 32
META = "__meta_kubernetes_pod"


@pytest.fixture(scope="module", autouse=True)
def programs() -> None:
    """A missing server is a failure: a skip would look like success."""
    assert not servers.missing(), "Prometheus is missing; run python tests/e2e/prometheus_server.py"


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[User]:
    cluster = Cluster.current()
    namespace = cluster.namespace(f"bench-{secrets.token_hex(3)}", "restricted")
    shared = cluster.volume(namespace, "shared")
    (shared / "nets.py").write_text(NETS)
    (shared / "slow").touch()
    yield User(cluster, namespace, tmp_path_factory.mktemp("user"))
    cluster.kubectl("delete", "namespace", namespace, "--wait=false")


@contextlib.contextmanager
def discovery(namespace: str, file: Path) -> Iterator[None]:
    """Write the targets that Prometheus' own discovery would find among the pods; Debian's build has none."""
    file.write_text("[]")
    watch = Watch(Connection(namespace=namespace), POD)

    def follow() -> None:
        pods: dict[str, dict] = {}
        for change in watch.changes():
            if isinstance(change, Everything):
                pods = {one["metadata"]["uid"]: one for one in change.objects}
            elif isinstance(change, Deleted):
                pods.pop(change.object["metadata"]["uid"], None)
            else:
                pods[change.object["metadata"]["uid"]] = change.object
            new = file.with_suffix(".new")
            new.write_text(json.dumps([target for pod in pods.values() for target in targets_of(pod)]))
            new.rename(file)

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        watch.stop()
        thread.join(servers.SECONDS)


def targets_of(pod: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """One for each port of the pod, with the labels that Kubernetes' discovery gives it."""
    status, metadata = pod.get("status") or {}, pod["metadata"]
    labels = {
        f"{META}_label_app_kubernetes_io_managed_by": metadata["labels"].get("app.kubernetes.io/managed-by", ""),
        f"{META}_phase": status.get("phase", ""),
        f"{META}_name": metadata["name"],
        f"{META}_node_name": pod["spec"].get("nodeName", ""),
        "__meta_kubernetes_namespace": metadata["namespace"],
    }
    for port in pod["spec"]["containers"][0].get("ports") or []:
        if status.get("podIP"):
            address = f"{status['podIP']}:{port['containerPort']}"
            yield {"targets": [address], "labels": labels | {f"{META}_container_port_name": port.get("name", "")}}


def configuration(file: Path, gateway: str) -> dict[str, Any]:
    """That of the manifests, with targets from a file and a scrape each second."""
    made = yaml.safe_load(MONITORING.read_text())
    made["global"] = {"scrape_interval": "1s"}
    del made["rule_files"]
    jobs = {job["job_name"]: job for job in made["scrape_configs"]}
    del jobs["hvdkit"]["kubernetes_sd_configs"]
    jobs["hvdkit"]["file_sd_configs"] = [{"files": [str(file)]}]
    jobs["pushgateway"]["static_configs"] = [{"targets": [gateway]}]
    made["scrape_configs"] = [jobs["hvdkit"], jobs["pushgateway"]]
    return made


@pytest.fixture(scope="module")
def scene(user: User, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """A sweep that has ended, and the Prometheus that watched it."""
    folder = tmp_path_factory.mktemp("prometheus")
    words = ["bench", "scaling", "--backend", "mpijob", "--workers", "1,2", "--no-ideal", "--name", "sweep"]
    words += ["--image", IMAGE, "--threads", "1", "--metrics-port", "9400", "--batch-size", str(BATCH)]
    # A model that mostly sleeps: however fast the machine, runs are long enough to be scraped, and cost it little.
    words += ["--pvc", "shared:/shared", "--working-dir", "/shared", "--model", "nets:slow"]
    words += ["--steps", str(STEPS), "--warmup-steps", str(WARMUP), "--output", "sweep"]
    file = folder / "pods.json"
    with (
        servers.pushgateway(folder) as gateway,
        discovery(user.namespace, file),
        servers.prometheus(folder, configuration(file, gateway)) as prometheus,
    ):
        done = user.hvdkit(*words, "--pushgateway", gateway, limit=3 * LIMIT)
        result = json.loads((user.folder / "sweep" / "results.json").read_text())
        servers.wait_for(lambda: prometheus.query("hvdkit_bench_runs"), lambda: "what was pushed is scraped")
        yield SimpleNamespace(prometheus=prometheus, result=result, done=done)


def test_an_image_that_is_not_there_stops_the_sweep(user: User) -> None:
    """The first here: a kubelet probes the first pods of its life late, and this one waits anyway."""
    words = ["bench", "scaling", "--backend", "indexed-job", "--workers", "1,2", "--image", "localhost/nothing:1"]
    refused = user.hvdkit(*words, "--threads", "1", "--output", "nothing", code=3)
    assert "the image localhost/nothing:1 cannot be pulled: check the name and tag of --image" in refused.stderr
    assert user.json("list")["jobs"] == []


def test_every_run_succeeded_and_is_in_the_result(scene: SimpleNamespace, user: User) -> None:
    jsonschema.validate(scene.result, result_file.schema())
    assert [run["problem"] for run in scene.result["runs"]] == [None] * (2 * REPEATS)
    for run in scene.result["runs"]:
        assert len(run["ranks"]) == run["point"]["workers"] == run["train"]["hosts"]  # a pod each
        assert all(rank["images"] == [BATCH] * STEPS and rank["threads"] == 1 for rank in run["ranks"])
        assert run["train"]["library"] == "MPI"
    nodes = {node["metadata"]["name"] for node in user.cluster.get("nodes")["items"]}
    assert {host for run in scene.result["runs"] for host in run["hosts"]} <= nodes
    two = next(one for one in scene.result["summaries"] if one["point"]["workers"] == 2)
    assert two["done"] == REPEATS and two["efficiency"]["low"] < two["efficiency"]["value"] < two["efficiency"]["high"]
    assert "horovod, synthetic, 2 workers: efficiency" in scene.done.stdout
    assert f'image="{IMAGE}"' in scene.result["flags"]["job"]


def test_no_job_is_left(scene: SimpleNamespace, user: User) -> None:
    assert user.json("list")["jobs"] == []
    left = user.cluster.kubectl("get", "mpijobs,jobs,pods", f"--namespace={user.namespace}", "--output=name")
    assert left.split() == []


def test_prometheus_scraped_every_rank_of_every_run(scene: SimpleNamespace, user: User) -> None:
    seen = 'max_over_time(hvdkit_steps_total{hvdkit_job=~"sweep-.*"}[1h])'
    steps = scene.prometheus.values(seen, "hvdkit_job", "rank", "namespace", "pod")
    expected = {
        (
            f"sweep-horovod-{workers}-{number}",
            str(rank),
            user.namespace,
            f"sweep-horovod-{workers}-{number}-worker-{rank}",
        )
        for workers in (1, 2)
        for number in range(1, REPEATS + 1)
        for rank in range(workers)
    }
    assert set(steps) == expected
    assert all(0 <= count <= STEPS for count in steps.values()) and max(steps.values()) > STEPS / 2
    world = scene.prometheus.values(seen.replace("steps_total", "world_size"), "hvdkit_job")
    assert {size for job, size in world.items() if job.startswith("sweep-horovod-2-")} == {2}


def test_the_result_was_pushed_and_scraped(scene: SimpleNamespace) -> None:
    shown = scene.prometheus.values('hvdkit_bench_efficiency_ratio{backend="mpijob",mode="weak"}', "engine", "workers")
    expected = {
        (one["point"]["engine"], str(one["point"]["workers"])): one["efficiency"]["value"]
        for one in scene.result["summaries"]
    }
    assert shown == pytest.approx(expected) and len(shown) == 2


@pytest.mark.parametrize(
    ("engine", "slots"),
    [
        ("horovod", 1),
        ("ddp", 1),
        # Unconnected ranks must be at work together for half of their steps, which others' jobs could prevent.
        pytest.param(IDEAL, 1, marks=pytest.mark.alone),
        pytest.param(IDEAL, 2, marks=pytest.mark.alone),
    ],
)
def test_a_point_without_an_operator(
    user: User, engine: str, slots: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ideal side is pods as large and as many, that meet once and then work alone."""
    monkeypatch.setenv("KUBECONFIG", user.environment["KUBECONFIG"])
    engines = ("horovod",) if engine == IDEAL else (engine,)
    # Longer for unconnected ranks: they count while all of them are at work, and a busy machine starts some late.
    steps = 160 if engine == IDEAL else 40
    settings = SweepSettings(
        workers=(1, 2), slots=slots, backend="indexed-job", engines=engines, steps=steps, warmup_steps=WARMUP
    )
    point = Point(data="synthetic", engine=engine, workers=2, slots=slots)
    runner = ClusterRunner(Connection, [Setting(path=("image",), value=IMAGE, source="--image")], prefix=f"s{slots}")
    spec = RunSpec(point=point, settings=settings, log=tmp_path / "run.log", timeout=LIMIT)
    found = read_log(runner.run_point(spec), point)
    measured = figures(found["ranks"], ideal=engine == IDEAL, warmup=WARMUP)
    assert len(found["ranks"]) == 2 * slots and measured.images_per_second > 0
    assert found["train"]["engine"] == ("single" if engine == IDEAL else engine)
    assert user.json("list")["jobs"] == []
