"""Every query of every dashboard and alert, asked of a real Prometheus.

It scrapes real Horovod ranks in the middle of a training, a real Pushgateway with the result of a real sweep, and a
replayed DCGM exporter, since there is no GPU here. Its configuration is that of manifests/monitoring; only the place
where targets come from is another: files with the labels that Kubernetes would give (Debian's build knows no
Kubernetes).
"""

import itertools
import json
import math
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import prometheus_server as servers
import pytest
import yaml
from prometheus_client import CollectorRegistry, Gauge, push_to_gateway

from hvdkit.metrics.alerts import rules
from hvdkit.metrics.dashboards import dashboards, fill_in, queries_of
from hvdkit.metrics.push import push_result

MONITORING = Path(__file__).parents[2] / "manifests" / "monitoring"
HVDKIT = [sys.executable, "-m", "hvdkit"]
JOB, OTHER_JOB = "e2e-train", "e2e-other"
RANKS = 2
DASHBOARDS = dashboards()
POD_LABELS = {
    "__meta_kubernetes_pod_label_app_kubernetes_io_managed_by": "hvdkit",
    "__meta_kubernetes_pod_phase": "Running",
    "__meta_kubernetes_namespace": "ml",
    "__meta_kubernetes_pod_node_name": "node-a",
}


@pytest.fixture(scope="module", autouse=True)
def programs() -> None:
    """A missing server is a failure: a skip would look like success."""
    assert not servers.missing(), "Prometheus is missing; run python tests/e2e/prometheus_server.py"


def dcgm(job: str) -> str:
    """Two GPUs as the exporter shows them; NVLink's counters rise by 1 GB a second."""
    gauges = {
        "DCGM_FI_DEV_GPU_UTIL": 90,
        "DCGM_FI_DEV_POWER_USAGE": 250.5,
        "DCGM_FI_DEV_GPU_TEMP": 60,
        "DCGM_FI_DEV_FB_USED": 30000,
        "DCGM_FI_DEV_FB_FREE": 10000,
        "DCGM_FI_DEV_SM_CLOCK": 1410,
        "DCGM_FI_DEV_XID_ERRORS": 0,
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": 0.4,
        "DCGM_FI_PROF_NVLINK_TX_BYTES": 1e9 * (time.time() % 1e6),
        "DCGM_FI_PROF_NVLINK_RX_BYTES": 1e9 * (time.time() % 1e6),
    }
    lines = []
    for name, value in gauges.items():
        lines.append(f"# TYPE {name} {'counter' if 'BYTES' in name else 'gauge'}")
        for gpu in (0, 1):
            labels = f'gpu="{gpu}",UUID="GPU-{gpu}",Hostname="node-a",container="worker",namespace="ml"'
            lines.append(f'{name}{{{labels},pod="{job}-worker-0"}} {value + gpu}')
    return "\n".join(lines) + "\n"


def configuration(folder: Path, gateway: str, ports: list[int], exporters: tuple[str, str]) -> dict[str, Any]:
    """That of the manifests, with targets from files and a scrape each second."""
    made = yaml.safe_load((MONITORING / "prometheus" / "prometheus.yml").read_text())
    made["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    made["rule_files"] = [str(MONITORING / "prometheus" / "alerts.yaml")]
    jobs = {job["job_name"]: job for job in made["scrape_configs"]}
    ranks = [
        _target(
            f"127.0.0.1:{port}",
            POD_LABELS,
            __meta_kubernetes_pod_name=f"{JOB}-worker-{rank}",
            __meta_kubernetes_pod_container_port_name="metrics-0",
        )
        for rank, port in enumerate(ports)
    ]
    strangers = [  # none of these may become a target
        _target("127.0.0.1:1", POD_LABELS, __meta_kubernetes_pod_container_port_name="ssh"),
        _target(
            "127.0.0.1:2",
            POD_LABELS | {"__meta_kubernetes_pod_phase": "Succeeded"},
            __meta_kubernetes_pod_container_port_name="metrics-0",
        ),
        _target("127.0.0.1:3", {}, __meta_kubernetes_pod_container_port_name="metrics-0"),
    ]
    exporter = {"__meta_kubernetes_pod_label_app": "nvidia-dcgm-exporter"}
    exporter["__meta_kubernetes_pod_container_port_name"] = "metrics"
    _from_file(jobs["hvdkit"], folder / "ranks.json", ranks + strangers)
    _from_file(jobs["dcgm-exporter"], folder / "gpus.json", [_target(exporters[0], exporter), *strangers])
    jobs["pushgateway"]["static_configs"] = [{"targets": [gateway]}]
    # As other people's Prometheus has it: the exporter's own pod keeps the label `pod`.
    made["scrape_configs"].append(
        {
            "job_name": "dcgm-of-others",
            "static_configs": [{"targets": [exporters[1]], "labels": {"pod": "dcgm-exporter-x7k2p"}}],
        }
    )
    return made


def _target(address: str, labels: dict[str, str], **more: str) -> dict[str, Any]:
    return {"targets": [address], "labels": labels | more}


def _from_file(job: dict[str, Any], file: Path, targets: list[dict[str, Any]]) -> None:
    del job["kubernetes_sd_configs"]
    file.write_text(json.dumps(targets))
    job["file_sd_configs"] = [{"files": [str(file)]}]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with servers.pushgateway(tmp_path_factory.mktemp("pushgateway")) as address:
        yield address


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory, gateway: str) -> dict[str, Any]:
    """results.json of a real sweep, which the Pushgateway has too: Horovod, and independent processes beside it."""
    folder = tmp_path_factory.mktemp("sweep")
    flags = ["--workers", "1,2", "--steps", "60", "--warmup-steps", "10", "--batch-size", "32"]
    flags += ["--pushgateway", gateway]
    done = subprocess.run(
        [*HVDKIT, "bench", "scaling", *flags, "--output", str(folder)], capture_output=True, text=True, timeout=1200
    )
    made = json.loads((folder / "results.json").read_text())
    # On a busy machine one run of many may fail; the others must be there.
    assert len(made["summaries"]) == 4 and all(one["done"] for one in made["summaries"]), done.stdout + done.stderr
    return made


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory, gateway: str, result: dict[str, Any]) -> Iterator[SimpleNamespace]:
    """Everything runs, and Prometheus has seen enough of it for a rate."""
    folder = tmp_path_factory.mktemp("prometheus")
    first = servers.free_port()
    launch = [*HVDKIT, "launch", "--backend", "local", "--workers", str(RANKS), "--name", JOB, "--", *HVDKIT, "train"]
    train = ["--data", "synthetic", "--synthetic-images", "256", "--batch-size", "16", "--epochs", "100000"]
    watched = ["--metrics-port", str(first), "--report-seconds", "1", "--checkpoint-every", "20"]
    watched += ["--output", str(folder / "run")]
    with (
        (folder / "train.log").open("wb") as log,
        subprocess.Popen([*launch, *train, *watched], stdout=log, stderr=log) as training,
        servers.serving(lambda: dcgm(JOB)) as exporter,
        servers.serving(lambda: dcgm(OTHER_JOB)) as other,
    ):
        try:
            settings = configuration(folder, gateway, [first, first + 1], (exporter, other))
            with servers.prometheus(folder, settings) as prometheus:

                def seen() -> bool:
                    assert training.poll() is None, (folder / "train.log").read_text()
                    tested = prometheus.query(f'hvdkit_test_loss{{hvdkit_job="{JOB}"}}')
                    steps = prometheus.query(f'rate(hvdkit_steps_total{{hvdkit_job="{JOB}"}}[1m]) > 0')
                    saved = prometheus.query("hvdkit_checkpoint_timestamp_seconds")
                    pushed = prometheus.query("hvdkit_bench_runs")
                    gpus = prometheus.query("rate(DCGM_FI_PROF_NVLINK_TX_BYTES[1m]) > 0")
                    return len(steps) == RANKS and bool(tested and saved and pushed) and len(gpus) == 4

                servers.wait_for(seen, lambda: (folder / "train.log").read_text(), seconds=180)
                yield SimpleNamespace(prometheus=prometheus, gateway=gateway, folder=folder, result=result)
        finally:
            training.terminate()
            training.wait(timeout=120)


def variables(result: dict[str, Any]) -> dict[str, str]:
    """What a person would choose above the dashboards."""
    flags = result["flags"]
    return {
        "job": JOB,
        "engine": ".*",
        "model": flags["model"],
        "data": flags["data"][0],
        "backend": flags["backend"],
        "mode": flags["mode"],
    }


def test_only_the_ranks_of_hvdkits_pods_are_scraped(scene: SimpleNamespace) -> None:
    targets = [target for target in scene.prometheus.targets() if target["labels"]["job"] == "hvdkit"]
    assert {target["labels"]["pod"] for target in targets} == {f"{JOB}-worker-0", f"{JOB}-worker-1"}
    assert all(target["health"] == "up" and target["labels"]["namespace"] == "ml" for target in targets)


@pytest.mark.parametrize("name", DASHBOARDS)
def test_every_panel_has_data(scene: SimpleNamespace, name: str) -> None:
    chosen = variables(scene.result)
    empty = []
    for title, query in queries_of(DASHBOARDS[name]):
        found = scene.prometheus.query(fill_in(query, **chosen))
        values = [float(one["value"][1]) for one in found]
        if not values or not all(math.isfinite(value) for value in values):
            empty.append((title, query, values))
    assert [one for one in empty if one[1] not in nothing_to_show(scene.result)] == []


def nothing_to_show(result: dict[str, Any]) -> set[str]:
    """Queries that may be empty: those of figures that the sweep did not measure."""
    summaries = [one for one in result["summaries"] if one["done"]]
    if any(one["of_ideal"] for one in summaries):
        return set()
    return {query for _, query in queries_of(DASHBOARDS["scaling.json"]) if "of_ideal" in query}


def test_the_scaling_dashboard_shows_the_figures_of_the_result(scene: SimpleNamespace) -> None:
    chosen = variables(scene.result)
    table = [query for title, query in queries_of(DASHBOARDS["scaling.json"]) if title == "Figures"]
    columns = [
        ("images_per_second", "value"),
        ("images_per_second", "low"),
        ("images_per_second", "high"),
        ("speedup", "value"),
        ("efficiency", "value"),
        ("efficiency", "low"),
        ("efficiency", "high"),
        ("of_ideal", "value"),
        ("step_seconds", "value"),
    ]
    done = [one for one in scene.result["summaries"] if one["done"] and one["point"]["data"] == chosen["data"]]
    for query, (figure, end) in zip(table, columns, strict=False):
        expected = {
            (one["point"]["engine"], str(one["point"]["workers"])): one[figure][end]
            for one in done
            if one[figure] and one[figure][end] is not None
        }
        shown = scene.prometheus.values(fill_in(query, **chosen), "engine", "workers")
        assert shown == pytest.approx(expected), figure
    runs = scene.prometheus.values(fill_in(table[-1], **chosen), "engine", "workers")
    assert runs == {(one["point"]["engine"], str(one["point"]["workers"])): one["done"] for one in done}


def test_the_curves_of_the_scaling_dashboard(scene: SimpleNamespace) -> None:
    chosen = variables(scene.result)
    by_title = dict(queries_of(DASHBOARDS["scaling.json"]))
    rates = {
        (one["point"]["engine"], one["point"]["workers"]): one["images_per_second"]["value"]
        for one in scene.result["summaries"]
    }
    curves = scene.prometheus.values(fill_in(by_title["Throughput over workers"], **chosen), "series", "workers")
    assert curves["horovod", "2"] == pytest.approx(rates["horovod", 2])
    assert curves["linear horovod", "2"] == pytest.approx(2 * rates["horovod", 1])
    assert curves["ideal", "2"] == pytest.approx(rates["ideal", 2])
    assert ("linear ideal", "2") not in curves
    efficiency = scene.prometheus.values(fill_in(by_title["Efficiency over workers"], **chosen), "series", "workers")
    assert efficiency["linear", "1"] == efficiency["linear", "2"] == 1
    assert efficiency["horovod", "1"] == pytest.approx(1)
    worst = min(one["efficiency"]["value"] for one in scene.result["summaries"] if _real(one, workers=2))
    shown = scene.prometheus.value(fill_in(by_title["Efficiency at most workers"], **chosen))
    assert shown == pytest.approx(worst)
    parts = scene.prometheus.values(fill_in(by_title["What a step consists of"], **chosen), "point", "part")
    for one in scene.result["summaries"]:
        point = f"{one['point']['engine']} x {one['point']['workers']}"
        shares = {part: share["value"] for part, share in one["shares"].items() if share}
        assert {part: parts[point, part] for part in shares} == pytest.approx(shares)


def test_the_single_figures_of_the_scaling_dashboard(scene: SimpleNamespace) -> None:
    chosen = variables(scene.result)
    queries = {title: fill_in(query, **chosen) for title, query in queries_of(DASHBOARDS["scaling.json"])}
    done = [one for one in scene.result["summaries"] if one["done"] and one["point"]["data"] == chosen["data"]]
    fastest = max(one["images_per_second"]["value"] for one in done if _real(one, workers=2))
    assert scene.prometheus.value(queries["Images a second at most workers"]) == pytest.approx(fastest)
    assert scene.prometheus.value(queries["Runs a point"]) == min(one["done"] for one in done)
    ended = max(run["began"] + run["seconds"] for run in scene.result["runs"])
    now = time.time()
    assert scene.prometheus.value(queries["Age of the result"], now) == pytest.approx(now - ended, abs=0.01)
    earlier = scene.prometheus.values(queries["Efficiency of earlier sweeps"], "engine", "workers")
    expected = {
        ("horovod", str(workers)): one["efficiency"]["value"]
        for workers in (1, 2)
        for one in done
        if _real(one, workers) and one["efficiency"]
    }
    assert earlier == pytest.approx(expected) and expected


def _real(summary: dict[str, Any], workers: int) -> bool:
    return summary["point"]["engine"] != "ideal" and summary["point"]["workers"] == workers


def test_the_live_dashboard_agrees_with_the_history_of_the_run(scene: SimpleNamespace) -> None:
    """Loss, learning rate and accuracy that Prometheus has at a moment are those of one line of metrics.jsonl."""
    by_title = dict(reversed(list(queries_of(DASHBOARDS["live-job.json"]))))
    chosen = variables(scene.result)
    ranks = scene.prometheus.value(fill_in(by_title["Ranks"], **chosen))
    assert ranks == RANKS
    moment = time.time()
    shown = {
        title: scene.prometheus.value(fill_in(by_title[title], **chosen), moment)
        for title in ("Loss", "Learning rate", "Accuracy")
    }

    def written() -> bool:
        lines = [json.loads(line) for line in (scene.folder / "run" / "metrics.jsonl").read_text().splitlines()]
        found = [
            {"Loss": one["loss"], "Learning rate": one["learning_rate"], "Accuracy": one["accuracy_percent"] / 100}
            for one in lines
            if one["kind"] == "interval"
        ]
        return any(shown == pytest.approx(one, rel=1e-6) for one in found)

    servers.wait_for(written, lambda: f"an interval with {shown}")
    tested = [query for title, query in queries_of(DASHBOARDS["live-job.json"]) if "hvdkit_test_" in query]
    by_test = sorted(scene.prometheus.value(fill_in(query, **chosen), moment) for query in tested)
    lines = [json.loads(line) for line in (scene.folder / "run" / "metrics.jsonl").read_text().splitlines()]
    judged = [(one["loss"], one["accuracy_percent"] / 100) for one in lines if one["kind"] == "evaluation"]
    assert any(by_test == pytest.approx(sorted(one), rel=1e-6) for one in judged)
    own = scene.prometheus.values(fill_in(by_title["Own work by rank"], **chosen), "rank")
    step = scene.prometheus.values(fill_in(by_title["Step time by rank"], **chosen), "rank")
    assert set(own) == set(step) == {"0", "1"}
    assert all(0 < own[rank] <= step[rank] * 1.5 for rank in own)  # asked a moment apart
    slowest = scene.prometheus.query(fill_in(by_title["Slowest ranks"], **chosen))
    assert {one["metric"]["library"] for one in slowest} == {"MPI"} and all(one["metric"]["host"] for one in slowest)


@pytest.mark.parametrize("job", [JOB, OTHER_JOB])
def test_the_gpu_dashboard_finds_the_pods_label_under_either_name(scene: SimpleNamespace, job: str) -> None:
    chosen = variables(scene.result) | {"job": job}
    panels = [(title, query) for title, query in queries_of(DASHBOARDS["gpu.json"]) if "watt" not in title]
    for title, query in panels:
        found = scene.prometheus.query(fill_in(query, **chosen))
        assert found, title
        pods = {one["metric"]["pod"] for one in found if "pod" in one["metric"]}
        assert pods <= {f"{job}-worker-0"}, title
    by_title = dict(reversed(panels))
    assert scene.prometheus.value(fill_in(by_title["GPUs"], **chosen)) == 2
    assert scene.prometheus.value(fill_in(by_title["Hottest"], **chosen)) == 61
    assert scene.prometheus.value(fill_in(by_title["Fullest memory"], **chosen)) == pytest.approx(30000 / 40000)
    enough = (
        "min(count_over_time(DCGM_FI_PROF_NVLINK_TX_BYTES[9s])) >= 8"  # a rate over less than its window is too low
    )
    servers.wait_for(lambda: scene.prometheus.query(enough), lambda: enough)
    sent = scene.prometheus.values(fill_in(by_title["NVLink"], **chosen, rate_interval="5s"), "gpu")
    assert sent == pytest.approx({"0": 1e9, "1": 1e9}, rel=0.25)


def test_the_rules_are_loaded_and_a_healthy_job_alarms_nobody(scene: SimpleNamespace) -> None:
    loaded = {rule["name"]: rule for rule in scene.prometheus.rules()}
    assert set(loaded) == {rule["alert"] for rule in rules()}
    assert {rule["health"] for rule in loaded.values()} == {"ok"}
    assert [rule["name"] for rule in loaded.values() if rule["state"] == "firing"] == []


def test_prune_removes_what_is_old_and_ours(tmp_path: Path) -> None:
    with servers.pushgateway(tmp_path) as gateway:
        awkward = {"model": "my/own model", "engine": "horovod", "workers": "2", "note": ""}
        assert push_result(gateway, "train-bcdfg", {"seconds": 3.0}, grouping=awkward, warn=pytest.fail)
        assert push_result(gateway, "ä 100%", {"seconds": 3.0}, grouping={}, warn=pytest.fail)
        foreign = CollectorRegistry()
        Gauge("backup_seconds", "Not ours.", registry=foreign).set(1)
        push_to_gateway(gateway, "backup", foreign)

        def prune(*flags: str) -> dict[str, Any]:
            command = [*HVDKIT, "metrics", "prune", "--pushgateway", gateway, "--json", *flags]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
            return json.loads(done.stdout)

        assert prune("--older-than", "1h")["removed"] == []
        planned = prune("--older-than", "0s", "--dry-run")
        assert [one["labels"]["job"] for one in sorted(planned["removed"], key=str)] == ["train", "ä 100%"]
        assert planned["kept"] == 1
        assert len(prune("--older-than", "0s", "--job", "nobody")["removed"]) == 0
        removed = prune("--older-than", "0s")["removed"]
        assert sorted(map(str, (one["labels"] for one in removed))) == sorted(
            map(str, (one["labels"] for one in planned["removed"]))
        )
        left = prune("--older-than", "0s")
        assert left == {"version": 1, "dry_run": False, "removed": [], "kept": 1}


def test_promtool_agrees_with_the_alerts() -> None:
    file = Path(__file__).with_name("test_prometheus_alerts.yaml")
    done = subprocess.run([servers.program("promtool"), "test", "rules", str(file)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    tests = yaml.safe_load(file.read_text())["tests"]
    tested = {rule["alertname"] for rule in itertools.chain(*(test["alert_rule_test"] for test in tests))}
    assert tested == {rule["alert"] for rule in rules()}
