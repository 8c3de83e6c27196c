"""manifests/monitoring on a real cluster, applied as the README says, in the `restricted` namespace that it brings.

No registry can be reached. Prometheus and the Pushgateway are Debian's, in images under the names of the manifests;
Grafana is in no package, so that its pod is admitted, gets its volumes and waits for its image. Debian's Prometheus
knows no Kubernetes: to start, it gets the configuration of the manifests without the jobs that look for pods.
"""

import re
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import prometheus_server as servers
import pytest
import yaml
from cluster.archives import Files, pack
from cluster.cluster import Cluster
from kubernetes_jobs import wait_for

MONITORING = Path(__file__).parents[2] / "manifests" / "monitoring"
NAMESPACE = "hvdkit-monitoring"
WHERE = f"--namespace={NAMESPACE}"
PROGRAMS = {"prom/prometheus": "prometheus", "prom/pushgateway": "prometheus-pushgateway"}
NAME = "app.kubernetes.io/name"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster to which the manifests were applied as they are."""
    assert not servers.missing(), "Prometheus is missing; run python tests/e2e/prometheus_server.py"
    found = Cluster.current()
    for image in yaml.safe_load((MONITORING / "kustomization.yaml").read_text())["images"]:
        if image["name"] in PROGRAMS:
            archive = tmp_path_factory.mktemp("image") / "image.tar"
            files = with_libraries(PROGRAMS[image["name"]])
            pack(archive, f"docker.io/{image['name']}:{image['newTag']}", files, entrypoint=["/bin/program"])
            found.import_image(archive)
    found.kubectl("apply", "--kustomize", str(MONITORING))
    yield found
    found.kubectl("delete", "--kustomize", str(MONITORING), "--ignore-not-found", "--wait=false")


def with_libraries(name: str) -> Files:
    """A program of this machine and what it is linked with, as files of an image."""
    path = servers.program(name)
    assert path is not None
    linked = subprocess.run(["ldd", path], capture_output=True, text=True).stdout
    libraries = re.findall(r"(/\S+) \(0x", linked)
    return {"bin/program": Path(path), **{library.lstrip("/"): Path(library) for library in libraries}}


def answers(url: str) -> bool:
    """Whether a server says that it is well; one that answers with an error is an error of the test."""
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return answer.status == 200
    except urllib.error.HTTPError:
        raise
    except OSError:
        return False


def pods(cluster: Cluster) -> dict[str, dict]:
    """The pod of each Deployment; while one replaces another, the newer."""
    found = sorted(cluster.get("pods", WHERE)["items"], key=lambda pod: pod["metadata"]["creationTimestamp"])
    return {pod["metadata"]["labels"][NAME]: pod for pod in found}


def config_maps(cluster: Cluster) -> dict[str, dict[str, str]]:
    return {one["metadata"]["name"]: one["data"] for one in cluster.get("configmaps", WHERE)["items"]}


def test_restricted_pod_security_admits_every_pod(cluster: Cluster) -> None:
    labels = cluster.get("namespace", NAMESPACE)["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    wait_for(lambda: set(pods(cluster)) == {"prometheus", "pushgateway", "grafana"}, "each Deployment has its pod")
    refusals = [one["message"] for one in cluster.get("events", WHERE, "--field-selector=reason=FailedCreate")["items"]]
    # In a namespace so new, its default ServiceAccount may come a moment after the first try.
    assert [said for said in refusals if "service account" not in said] == []


def test_dashboards_and_alerts_are_where_the_pods_look_for_them(cluster: Cluster) -> None:
    found = config_maps(cluster)
    for deployment in cluster.get("deployments", WHERE)["items"]:
        volumes = deployment["spec"]["template"]["spec"]["volumes"]
        assert {one["configMap"]["name"] for one in volumes if "configMap" in one} <= set(found)
    [dashboards] = [data for name, data in found.items() if name.startswith("grafana-dashboards")]
    assert dashboards == {file.name: file.read_text() for file in (MONITORING / "grafana").glob("*.json")}
    [prometheus] = [data for name, data in found.items() if name.startswith("prometheus-")]
    assert prometheus == {
        name: (MONITORING / "prometheus" / name).read_text() for name in ("prometheus.yml", "alerts.yaml")
    }


def test_prometheus_may_look_for_pods_everywhere(cluster: Cluster) -> None:
    account = f"--as=system:serviceaccount:{NAMESPACE}:prometheus"
    for verb in ("list", "watch"):
        assert cluster.kubectl("auth", "can-i", verb, "pods", "--all-namespaces", account).strip() == "yes"


def test_grafana_waits_for_its_image_only(cluster: Cluster) -> None:
    def reason() -> str:
        statuses = pods(cluster)["grafana"]["status"].get("containerStatuses") or [{}]
        return statuses[0].get("state", {}).get("waiting", {}).get("reason", "")

    wait_for(lambda: reason() in ("ErrImagePull", "ImagePullBackOff"), lambda: f"grafana waits for: {reason()}")


def test_prometheus_scrapes_the_pushgateway_and_has_the_alerts(cluster: Cluster, tmp_path: Path) -> None:
    """The last here: it changes the configuration."""
    folder = tmp_path / "monitoring"
    shutil.copytree(MONITORING, folder, ignore=shutil.ignore_patterns("screenshots"))
    file = folder / "prometheus" / "prometheus.yml"
    configuration = yaml.safe_load(file.read_text())
    jobs = configuration["scrape_configs"]
    configuration["scrape_configs"] = [job for job in jobs if "kubernetes_sd_configs" not in job]
    configuration["global"]["scrape_interval"] = "1s"
    file.write_text(yaml.safe_dump(configuration))
    cluster.kubectl("apply", "--kustomize", str(folder))
    for name in ("pushgateway", "prometheus"):
        cluster.kubectl("rollout", "status", f"deployment/{name}", WHERE, "--timeout=180s")
    address = f"{cluster.get('service', 'prometheus', WHERE)['spec']['clusterIP']}:9090"
    # A pod that is ready is not yet behind its Service: kube-proxy refuses connections until it has heard of it.
    wait_for(lambda: answers(f"http://{address}/-/ready"), "Prometheus answers behind its Service")
    prometheus = servers.Prometheus(address)

    def up() -> list[str]:
        return [one["labels"]["job"] for one in prometheus.targets() if one["health"] == "up"]

    wait_for(lambda: up() == ["pushgateway"], lambda: f"the Pushgateway is scraped: {prometheus.targets()}")
    groups = yaml.safe_load((MONITORING / "prometheus" / "alerts.yaml").read_text())["groups"]
    assert {rule["name"] for rule in prometheus.rules()} == {
        rule.get("alert") or rule["record"] for group in groups for rule in group["rules"]
    }
