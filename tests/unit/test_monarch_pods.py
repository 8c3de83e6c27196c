"""How the controller of a Monarch job waits for its mesh; the API server is played, so that it can refuse."""

import importlib.util
import math
import threading
from collections.abc import Iterator
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from hvdkit.errors import EnvironmentProblem
from hvdkit.runtime import monarch_controller, monarch_mesh, monarch_pods

kubernetes = pytest.importorskip("kubernetes")


class Answer(BaseHTTPRequestHandler):
    """The same status to every request."""

    def do_GET(self) -> None:
        self.server.asked.append((self.command, self.path, self.headers["Authorization"]))
        self.send_response(self.server.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_DELETE = do_GET

    def log_message(self, *words: object) -> None:
        """Nobody reads it."""


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadingHTTPServer]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        server.asked = []
        threading.Thread(target=server.serve_forever, daemon=True).start()
        there = kubernetes.client.Configuration(host=f"http://127.0.0.1:{server.server_port}")
        there.retries = 0
        monkeypatch.setattr(kubernetes.client.Configuration, "get_default_copy", lambda: there)
        monkeypatch.setattr(kubernetes.config, "load_incluster_config", lambda: None)  # this is no pod
        monkeypatch.setenv("HVDKIT_NAMESPACE", "team-a")
        yield server
        server.shutdown()


def test_a_controller_without_rights_says_so_at_once(api: ThreadingHTTPServer) -> None:
    api.status = 403
    with pytest.raises(EnvironmentProblem, match=r"may not list the pods of namespace team-a.*RoleBinding"):
        monarch_pods.wait_for_pods("train", 2, 3600)


def test_an_api_server_that_stumbles_is_waited_for(api: ThreadingHTTPServer) -> None:
    api.status = 500
    with pytest.raises(EnvironmentProblem, match=r"not there within 0 s: all \(the API server does not answer"):
        monarch_pods.wait_for_pods("train", 2, 0)


class TestDeletingTheMesh:
    @pytest.fixture(autouse=True)
    def pod(self, api: ThreadingHTTPServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "token").write_text("secret\n")
        monkeypatch.setattr(monarch_pods, "_ACCOUNT", tmp_path)
        monkeypatch.setattr(monarch_pods, "SECONDS_BEFORE_ANOTHER_TRY", (0.0, 0.0))
        monkeypatch.setattr(monarch_pods, "_connection", lambda: HTTPConnection("127.0.0.1", api.server_port))
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")

    @pytest.mark.parametrize("status", [200, 404])
    def test_gone_is_gone(self, api: ThreadingHTTPServer, status: int, capsys) -> None:
        api.status = status
        monarch_pods.delete_mesh("train")
        path = "/apis/monarch.pytorch.org/v1alpha1/namespaces/team-a/monarchmeshes/train"
        assert api.asked == [("DELETE", path, "Bearer secret")]
        assert capsys.readouterr().err == ""

    @pytest.mark.parametrize(("status", "tries"), [(503, 3), (403, 1)])
    def test_what_passes_is_tried_again_and_the_log_says_what_does_not(
        self, api: ThreadingHTTPServer, status: int, tries: int, capsys
    ) -> None:
        api.status = status
        monarch_pods.delete_mesh("train")
        assert len(api.asked) == tries
        assert "the MonarchMesh train could not be deleted" in capsys.readouterr().err

    def test_also_where_the_image_lacks_monarch(
        self, api: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        api.status = 200
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
        monkeypatch.setattr(monarch_controller, "stop_when_asked", lambda: None)
        with pytest.raises(EnvironmentProblem, match="hvdkit image build --monarch"):
            monarch_controller.main(["--mesh", "train", "--hosts", "2", "--procs", "1", "--", "true"])
        assert len(api.asked) == 1


def test_monarch_is_let_try_again_and_its_last_error_counts(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(monarch_mesh, "SECONDS_BEFORE_ANOTHER_TRY", (0.0, 0.0))
    outcomes: list = [RuntimeError("Failed to watch pods: (504)\nReason: Timeout"), "a mesh"]

    def attach() -> str:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    assert monarch_mesh.tried_again(attach) == "a mesh"
    assert "tries again: Failed to watch pods: (504) Reason: Timeout\n" in capsys.readouterr().err
    outcomes += [RuntimeError("first"), RuntimeError("second"), RuntimeError("last")]
    with pytest.raises(RuntimeError, match="last"):
        monarch_mesh.tried_again(attach)


def test_ranks_are_on_the_node_of_their_own_pod_not_of_the_controllers() -> None:
    told = {"HVDKIT_NODE": "controllers", "HVDKIT_CHANNEL": "10.0.0.1 99 secret", "PATH": "/bin"}
    assert monarch_mesh.for_ranks(told) == {"HVDKIT_CHANNEL": "10.0.0.1 99 secret"}


@pytest.mark.parametrize(("flags", "seconds"), [([], 7.0), (["--queued"], math.inf)])
def test_in_a_queue_there_is_no_limit(monkeypatch: pytest.MonkeyPatch, flags: list[str], seconds: float) -> None:
    waited = []
    monkeypatch.setattr(monarch_pods, "wait_for_pods", lambda *given: waited.append(given))
    monkeypatch.setattr(monarch_pods, "delete_mesh", lambda mesh: None)
    monkeypatch.setattr(monarch_controller, "run_ranks", lambda options, command: options.wait_seconds)
    monkeypatch.setattr(monarch_controller, "stop_when_asked", lambda: None)
    words = ["--mesh", "train", "--hosts", "2", "--procs", "1", "--wait-seconds", "7", *flags, "--", "true"]
    assert monarch_controller.main(words) == 7.0  # ranks must start in time once their pods are there
    assert waited == [("train", 2, seconds)]
