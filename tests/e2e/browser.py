"""A real, headless Chromium, driven over its DevTools connection on the loopback."""

import base64
import contextlib
import json
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import websocket

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
LIMIT = 60.0


def program() -> str | None:
    """The browser of this machine; Debian's package is called chromium."""
    return next((found for name in PROGRAMS if (found := shutil.which(name))), None)


class Tab:
    """One page, and everything that it complained about."""

    def __init__(self, address: str) -> None:
        self._connection = websocket.create_connection(address, timeout=LIMIT, suppress_origin=True)
        self._number = 0
        self._events: list[dict[str, Any]] = []
        self.complaints: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        self._connection.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._connection.recv())
            if message.get("id") == self._number:
                assert "error" not in message, message
                return message["result"]
            self._note(message)

    def _note(self, message: dict[str, Any]) -> None:
        self._events.append(message)
        kind, parameters = message.get("method"), message.get("params", {})
        if kind == "Runtime.exceptionThrown":
            self.complaints.append(str(parameters["exceptionDetails"]))
        elif kind == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.complaints.append(str(parameters["args"]))
        elif kind == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.complaints.append(parameters["entry"]["text"])

    def requests(self) -> list[str]:
        """Everything that the page asked for."""
        sent = [event["params"] for event in self._events if event.get("method") == "Network.requestWillBeSent"]
        return [parameters["request"]["url"] for parameters in sent]

    def open(self, path: Path, *, dark: bool, width: int = 1000) -> None:
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=features)
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.call("Page.navigate", url=path.as_uri())
        deadline = time.monotonic() + LIMIT
        while self.evaluate("document.readyState") != "complete":
            assert time.monotonic() < deadline, "the page was never complete"
            time.sleep(0.05)

    def evaluate(self, expression: str) -> Any:
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def screenshot(self, path: Path) -> None:
        """The whole page, also what one would have to scroll to."""
        taken = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(taken["data"]))


@contextlib.contextmanager
def started() -> Iterator[Tab]:
    """A browser with one empty page, gone when the test ends."""
    with tempfile.TemporaryDirectory(prefix="hvdkit-browser-") as profile:
        words = [program(), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        words += ["--remote-debugging-port=0", f"--user-data-dir={profile}", "--no-first-run", "about:blank"]
        browser = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            yield Tab(_address(Path(profile) / "DevToolsActivePort", browser))
        finally:
            browser.terminate()
            browser.wait(LIMIT)


def _address(file: Path, browser: subprocess.Popen) -> str:
    """The browser writes its port to a file once it listens."""
    deadline = time.monotonic() + LIMIT
    while not (file.exists() and file.read_text().strip()):
        assert browser.poll() is None, f"Chromium ended with code {browser.returncode}"
        assert time.monotonic() < deadline, "Chromium did not start"
        time.sleep(0.05)
    port = file.read_text().split()[0]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=LIMIT) as answer:
        pages = json.load(answer)
    return next(page["webSocketDebuggerUrl"] for page in pages if page["type"] == "page")
