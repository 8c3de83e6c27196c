"""A real Prometheus and a real Pushgateway for the tests, from Debian's packages.

They are unpacked and not installed, so that no service starts. There is no network inside `make e2e`: run
`python tests/e2e/prometheus_server.py` before, which fetches them into the cache.
"""

import contextlib
import http.server
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

PACKAGES = ("prometheus", "prometheus-pushgateway")
SECONDS = 60.0  # generous: a condition that holds ends the wait at once


def folder() -> Path:
    """Where the packages are unpacked."""
    cache = os.environ.get("HVDKIT_CACHE_DIR") or Path.home() / ".cache" / "hvdkit"
    return Path(cache) / "debian-prometheus"


def fetch() -> None:
    """Download and unpack what is not there yet."""
    if missing():
        folder().mkdir(parents=True, exist_ok=True)
        download = ["apt-get", "download", "-q", *PACKAGES]
        if subprocess.run(download, cwd=folder(), check=False).returncode != 0:
            # Where the lists of packages are missing, as in a new container, or name versions that are gone.
            subprocess.run(["apt-get", "update", "-q"], check=True)
            subprocess.run(download, cwd=folder(), check=True)
        for package in folder().glob("*.deb"):
            subprocess.run(["dpkg-deb", "-x", str(package), str(folder())], check=True)


def missing() -> list[str]:
    """Programs that are neither on the path nor unpacked."""
    return [name for name in ("promtool", *PACKAGES) if program(name) is None]


def program(name: str) -> str | None:
    """The program's path."""
    return shutil.which(name) or shutil.which(folder() / "usr" / "bin" / name)


def free_port() -> int:
    """A port that nobody has now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(condition: Callable[[], Any], what: Callable[[], str], seconds: float = SECONDS) -> Any:
    """The first answer that is true; an AssertionError that says what was waited for."""
    deadline = time.monotonic() + seconds
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"waited {seconds:.0f} s for {what()}"
        time.sleep(0.2)
    return answer


@contextlib.contextmanager
def running(*command: str, log: Path, ready: str) -> Iterator[subprocess.Popen]:
    """A server, from the moment that it answers `ready` to the end of the block."""
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
        try:

            def answers() -> bool:
                assert process.poll() is None, log.read_text()
                with contextlib.suppress(OSError), urllib.request.urlopen(ready, timeout=5) as answer:
                    return answer.status == 200
                return False

            wait_for(answers, lambda: f"{command[0]}:\n{log.read_text()}")
            yield process
        finally:
            process.terminate()
            process.wait(timeout=SECONDS)


@contextlib.contextmanager
def pushgateway(where: Path) -> Iterator[str]:
    """host:port of a new Pushgateway."""
    address = f"127.0.0.1:{free_port()}"
    command = (program("prometheus-pushgateway"), f"--web.listen-address={address}")
    with running(*command, log=where / "pushgateway.log", ready=f"http://{address}/-/ready"):
        yield address


class Prometheus:
    """A new Prometheus to ask."""

    def __init__(self, address: str) -> None:
        self.address = address

    def query(self, expression: str, at: float | None = None) -> list[dict[str, Any]]:
        """The instant vector (or scalar, as one without labels) that an expression gives now, or at a Unix time."""
        data = self._get("query", query=expression, **({} if at is None else {"time": f"{at:.3f}"}))
        if data["resultType"] == "scalar":
            return [{"metric": {}, "value": data["result"]}]
        return data["result"]

    def values(self, expression: str, *labels: str) -> dict[Any, float]:
        """Values by one label, or by a tuple of labels."""
        found = {}
        for one in self.query(expression):
            key = tuple(one["metric"].get(label, "") for label in labels)
            found[key[0] if len(labels) == 1 else key] = float(one["value"][1])
        return found

    def value(self, expression: str, at: float | None = None) -> float:
        """The only value."""
        (one,) = self.query(expression, at)
        return float(one["value"][1])

    def rules(self) -> list[dict[str, Any]]:
        return [rule for group in self._get("rules")["groups"] for rule in group["rules"]]

    def targets(self) -> list[dict[str, Any]]:
        return self._get("targets")["activeTargets"]

    def _get(self, what: str, **parameters: str) -> Any:
        url = f"http://{self.address}/api/v1/{what}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                return json.loads(answer.read())["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from error


@contextlib.contextmanager
def prometheus(where: Path, configuration: dict[str, Any]) -> Iterator[Prometheus]:
    """A new Prometheus with that configuration, its files in `where`."""
    file = where / "prometheus.yml"
    file.write_text(yaml.safe_dump(configuration))
    address = f"127.0.0.1:{free_port()}"
    command = (
        program("prometheus"),
        f"--config.file={file}",
        f"--storage.tsdb.path={where / 'data'}",
        f"--web.listen-address={address}",
    )
    with running(*command, log=where / "prometheus.log", ready=f"http://{address}/-/ready"):
        yield Prometheus(address)


@contextlib.contextmanager
def serving(text: Callable[[], str]) -> Iterator[str]:
    """host:port of an exporter that answers with what `text` gives at that moment."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = text().encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


if __name__ == "__main__":
    fetch()
    sys.exit(f"still missing: {', '.join(missing())}" if missing() else 0)
