"""The cluster and the Pushgateway as `hvdkit doctor` sees them.

The API server here is a small HTTP server that answers the discovery requests as Kubernetes does; a real cluster
is the matter of the tests in e2e/.
"""

import http.server
import json
import sys
import threading

import pytest

from hvdkit.checks import doctor_services
from hvdkit.checks.doctor_finding import FAILURE, OK, WARNING

CLOSED = "http://127.0.0.1:1"  # a port where nobody listens


@pytest.fixture(autouse=True)
def nobody_configured(tmp_path, monkeypatch):
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "HVDKIT_PUSHGATEWAY", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    doctor_services._probe.cache_clear()
    yield
    doctor_services._probe.cache_clear()


@pytest.fixture
def serve():
    """Starts servers that answer the given paths with (status, text), and 404 otherwise; returns the address."""
    servers = []

    def start(answers: dict[str, tuple[int, str]]) -> str:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                status, text = answers.get(self.path, (404, "{}"))
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, format, *values):
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_address[1]}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def kubeconfig(tmp_path, monkeypatch, server: str) -> None:
    path = tmp_path / "kubeconfig"
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "lab",
        "clusters": [{"name": "lab", "cluster": {"server": server}}],
        "users": [{"name": "me", "user": {"token": "secret"}}],
        "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "me"}}],
    }
    path.write_text(json.dumps(document))
    monkeypatch.setenv("KUBECONFIG", str(path))


VERSION = json.dumps(
    dict.fromkeys(
        ("buildDate", "compiler", "gitCommit", "gitTreeState", "goVersion", "major", "minor", "platform"), "x"
    )
    | {"gitVersion": "v1.35.4"}
)


def resources(group_version: str, *kinds: str) -> str:
    listed = [
        {"name": f"{kind.lower()}s", "singularName": "", "namespaced": True, "kind": kind, "verbs": ["get"]}
        for kind in kinds
    ]
    return json.dumps({"kind": "APIResourceList", "groupVersion": group_version, "resources": listed})


def test_no_cluster_is_in_order():
    finding = doctor_services.check_cluster()
    assert finding.status == OK
    assert "this machine" in finding.text
    assert doctor_services.check_mpi_operator() is None


def test_a_cluster_without_the_client_is_a_warning(tmp_path, monkeypatch):
    kubeconfig(tmp_path, monkeypatch, CLOSED)
    monkeypatch.setitem(sys.modules, "kubernetes", None)  # makes its import fail
    finding = doctor_services.check_cluster()
    assert finding.status == WARNING
    assert finding.way_out == "pip install 'hvdkit[cluster]'"


def test_a_cluster_that_does_not_answer_is_a_failure(tmp_path, monkeypatch):
    kubeconfig(tmp_path, monkeypatch, CLOSED)
    finding = doctor_services.check_cluster()
    assert finding.status == FAILURE
    assert "lab at http://127.0.0.1:1" in finding.text
    assert "Connection refused" in finding.text
    assert doctor_services.check_mpi_operator() is None


def test_a_cluster_that_refuses_us_is_a_failure(tmp_path, monkeypatch, serve):
    kubeconfig(tmp_path, monkeypatch, serve({"/version/": (401, "{}")}))
    finding = doctor_services.check_cluster()
    assert finding.status == FAILURE
    assert "401 Unauthorized" in finding.text


def test_a_kubeconfig_that_is_no_kubeconfig_is_a_failure(tmp_path, monkeypatch):
    path = tmp_path / "kubeconfig"
    path.write_text("clusters: [")
    monkeypatch.setenv("KUBECONFIG", str(path))
    finding = doctor_services.check_cluster()
    assert finding.status == FAILURE
    assert "cannot be read" in finding.text


def test_missing_operators_are_warnings_with_the_pinned_command(tmp_path, monkeypatch, serve):
    kubeconfig(tmp_path, monkeypatch, serve({"/version/": (200, VERSION)}))
    assert doctor_services.check_cluster().status == OK
    assert "v1.35.4" in doctor_services.check_cluster().text
    finding = doctor_services.check_mpi_operator()
    assert finding.status == WARNING
    assert "mpi-operator/v0.8.2/deploy" in finding.way_out
    finding = doctor_services.check_training_operator()
    assert finding.status == WARNING
    assert "ref=v1.9.3" in finding.way_out


def test_operators_are_seen(tmp_path, monkeypatch, serve):
    answers = {
        "/version/": (200, VERSION),
        "/apis/kubeflow.org/v2beta1": (200, resources("kubeflow.org/v2beta1", "MPIJob")),
        "/apis/kubeflow.org/v1": (200, resources("kubeflow.org/v1", "PyTorchJob", "MPIJob")),
    }
    kubeconfig(tmp_path, monkeypatch, serve(answers))
    assert doctor_services.check_mpi_operator().status == OK
    assert doctor_services.check_training_operator().status == OK


def test_the_v1_mpijob_of_training_operator_is_not_ours(tmp_path, monkeypatch, serve):
    answers = {
        "/version/": (200, VERSION),
        "/apis/kubeflow.org/v1": (200, resources("kubeflow.org/v1", "PyTorchJob", "MPIJob")),
    }
    kubeconfig(tmp_path, monkeypatch, serve(answers))
    assert doctor_services.check_mpi_operator().status == WARNING


def test_the_pushgateway_is_asked_only_when_named(monkeypatch, serve):
    assert doctor_services.check_pushgateway() is None
    address = serve({"/-/ready": (200, "OK")})
    for named in (address, address + "/", address.removeprefix("http://")):
        monkeypatch.setenv("HVDKIT_PUSHGATEWAY", named)
        assert doctor_services.check_pushgateway().status == OK


@pytest.mark.parametrize("named", [CLOSED, "127.0.0.1:1", "http://", "nonsense://x", "http://[::1"])
def test_a_pushgateway_that_does_not_answer_is_a_failure(monkeypatch, named):
    monkeypatch.setenv("HVDKIT_PUSHGATEWAY", named)
    finding = doctor_services.check_pushgateway()
    assert finding.status == FAILURE
    assert "does not answer" in finding.text


def test_a_pushgateway_that_is_not_ready_is_a_failure(monkeypatch, serve):
    monkeypatch.setenv("HVDKIT_PUSHGATEWAY", serve({"/-/ready": (503, "no")}))
    assert "503" in doctor_services.check_pushgateway().text
