"""The alert rules: parsed here, tried with promtool and a real Prometheus in tests/e2e."""

import shutil
import subprocess
from pathlib import Path

import promql_parser
import pytest
import yaml

from hvdkit.checks.validate import NOTE, validate_files, validate_objects
from hvdkit.metrics.alerts import prometheus_rule, rule_file, rules

FOLDER = Path(__file__).parents[2] / "manifests" / "monitoring"
RULES = {rule["alert"]: rule for rule in rules()}


def test_the_file_is_what_the_code_gives() -> None:
    """After a change: hvdkit metrics alerts > manifests/monitoring/prometheus/alerts.yaml, and keep its first line."""
    assert yaml.safe_load((FOLDER / "prometheus" / "alerts.yaml").read_text()) == rule_file()


def test_the_operator_gets_the_same_rules() -> None:
    assert prometheus_rule()["kind"] == "PrometheusRule"
    assert prometheus_rule()["spec"] == rule_file()


def test_what_must_be_watched_is_watched() -> None:
    assert {"HvdkitJobStalled", "HvdkitStraggler", "HvdkitLossNotFinite", "HvdkitCheckpointTooOld"} <= set(RULES)


@pytest.mark.parametrize("name", RULES)
def test_every_rule_is_promql_and_says_what_to_do(name: str) -> None:
    rule = RULES[name]
    promql_parser.parse(rule["expr"])
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert "{{ $labels.hvdkit_job }}" in rule["annotations"]["summary"]
    assert rule["annotations"]["description"]


def test_the_manifests_are_valid_in_a_restricted_namespace() -> None:
    report = validate_files([str(FOLDER)], pod_security="restricted")
    assert report.objects >= 10
    assert [finding for finding in report.findings if finding.severity != NOTE] == []


def test_the_kustomization_names_every_file() -> None:
    made = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
    assert {file.name for file in FOLDER.glob("*.yaml")} == {
        *made["resources"],
        "kustomization.yaml",
        "pod-monitor.yaml",
    }
    named = {name for generator in made["configMapGenerator"] for name in generator["files"]}
    assert {f"grafana/{file.name}" for file in (FOLDER / "grafana").iterdir()} <= named
    assert {"prometheus/prometheus.yml", "prometheus/alerts.yaml"} <= named


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_what_kustomize_builds_is_valid_and_whole() -> None:
    built = subprocess.run(["kubectl", "kustomize", str(FOLDER)], capture_output=True, text=True, timeout=60)
    assert built.returncode == 0, built.stderr
    objects = list(yaml.safe_load_all(built.stdout))
    assert validate_objects(objects, pod_security="restricted") == []
    maps = {one["metadata"]["name"]: one for one in objects if one["kind"] == "ConfigMap"}
    for deployment in (one for one in objects if one["kind"] == "Deployment"):
        pod = deployment["spec"]["template"]["spec"]
        mounted = {volume["configMap"]["name"] for volume in pod["volumes"] if "configMap" in volume}
        assert mounted <= set(maps)
        assert all(":" in container["image"] for container in pod["containers"])
    dashboards = next(one for name, one in maps.items() if name.startswith("grafana-dashboards"))
    assert set(dashboards["data"]) == {file.name for file in (FOLDER / "grafana").iterdir()}
