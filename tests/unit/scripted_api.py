"""An HTTP server that misbehaves as an API server does once in a while: the real one cannot be made to on request."""

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

from hvdkit.cluster.api import Cluster

Answer = Callable[["Request"], None]
SERVED = {"kubeflow.org/v2beta1": ["MPIJob"], "kubeflow.org/v1": ["PyTorchJob"]}


class Request(BaseHTTPRequestHandler):
    """One request, with the ways to answer it."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # small answers would wait for each other

    def handle_any(self) -> None:
        parts = urlsplit(self.path)
        self.route = parts.path
        self.query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
        length = int(self.headers.get("Content-Length") or 0)
        self.body = json.loads(self.rfile.read(length)) if length else None
        self.server.asked.append(SimpleNamespace(method=self.command, route=self.route, query=self.query))
        self.server.answer(self)

    do_GET = do_POST = do_PATCH = do_DELETE = handle_any

    def json(self, status: int, document: Any, **headers: str) -> None:
        data = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(data)

    def status(self, code: int, reason: str = "", message: str = "", **headers: str) -> None:
        self.json(code, {"kind": "Status", "code": code, "reason": reason, "message": message}, **headers)

    def items(self, *objects: Any, version: str = "1", more: str | None = None) -> None:
        self.json(200, {"metadata": {"resourceVersion": version, "continue": more}, "items": list(objects)})

    @contextlib.contextmanager
    def stream(self) -> Iterator[Callable[[bytes], None]]:
        """A chunked answer; leaving the block ends it in good order."""
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

        def send(data: bytes) -> None:
            self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
            self.wfile.flush()

        yield send
        self.wfile.write(b"0\r\n\r\n")

    def cut(self) -> None:
        """End the connection without a word."""
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, *_: Any) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, answer: Answer) -> None:
        super().__init__(("127.0.0.1", 0), Request)
        self.answer = answer
        self.asked: list[SimpleNamespace] = []

    def handle_error(self, *_: Any) -> None:
        pass  # a client that went away


class Api:
    """As much of an API server as a launch meets."""

    def __init__(self, **changes: Any) -> None:
        self.namespace: dict | None = {"metadata": {"name": "default", "labels": {}}}
        self.forbidden: set[tuple[str, str]] = set()
        self.served = dict(SERVED)
        self.nodes: list[dict] = []
        self.quotas: list[dict] = []
        self.refuse: dict[str, tuple[int, str, str]] = {}
        self.made: list[tuple[str, dict]] = []
        self.log: list[str] = []
        self.__dict__.update(changes)

    def __call__(self, request: Request) -> None:
        route, dry = request.route, "dryRun" in request.query
        self.log.append(f"{request.command}{' dry' if dry else ''} {route.rpartition('/')[2]}")
        if route.endswith("selfsubjectaccessreviews"):
            asked = request.body["spec"]["resourceAttributes"]
            allowed = (asked["verb"], asked["resource"]) not in self.forbidden
            request.json(201, {"status": {"allowed": allowed}})
        elif request.command == "POST":
            kind = request.body["kind"]
            if kind in self.refuse and not (dry and self.refuse[kind][1] == "late"):
                status, reason, message = self.refuse[kind]
                request.status(status, reason, message)
                return
            assert request.query["fieldValidation"] == "Strict"
            if not dry:
                self.made.append((kind, request.body))
            request.json(201, {**request.body, "metadata": {**request.body["metadata"], "uid": f"uid-{kind}"}})
        elif request.command in ("PATCH", "DELETE"):
            self.log[-1] += f" {request.body.get('metadata') or request.body.get('preconditions')}"
            request.json(200, {})
        elif route == "/api/v1/namespaces/default":
            request.json(200, self.namespace) if self.namespace else request.status(404, "NotFound", "no")
        elif route.endswith("/nodes"):
            request.items(*self.nodes) if self.nodes else request.status(403, "Forbidden", "you cannot list nodes")
        elif route.endswith("/resourcequotas"):
            request.items(*self.quotas)
        elif route.removeprefix("/apis/") in self.served:
            request.json(200, {"resources": [{"kind": kind} for kind in self.served[route.removeprefix("/apis/")]]})
        else:
            request.status(404, "NotFound", "not found")


@contextlib.contextmanager
def api(answer: Answer, folder: Path, monkeypatch: Any) -> Iterator[tuple[Cluster, Server]]:
    """A cluster whose API server answers like this."""
    server = Server(answer)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(folder / "config", f"http://127.0.0.1:{server.server_port}")))
    try:
        yield Cluster(), server
    finally:
        server.shutdown()
        server.server_close()


def kubeconfig(path: Path, server: str, *, context: str = "test", current: bool = True, namespace: str = "") -> Path:
    """A kubeconfig of one context."""
    place = {"cluster": context, "user": context, **({"namespace": namespace} if namespace else {})}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": context, "cluster": {"server": server}}],
        "users": [{"name": context, "user": {"token": f"token-of-{context}"}}],
        "contexts": [{"name": context, "context": place}],
        **({"current-context": context} if current else {}),
    }
    path.write_text(yaml.safe_dump(document))
    return path
