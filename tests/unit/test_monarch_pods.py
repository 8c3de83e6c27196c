"""How the controller of a Monarch job waits for its mesh; the API server is played, so that it can refuse."""

import math
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from hvdkit.errors import EnvironmentProblem
from hvdkit.runtime import monarch_controller, monarch_pods

kubernetes = pytest.importorskip("kubernetes")


class Answer(BaseHTTPRequestHandler):
    """The same status to every request."""

    def do_GET(self) -> None:
        self.send_response(self.server.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *words: object) -> None:
        """Nobody reads it."""


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadingHTTPServer]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
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
