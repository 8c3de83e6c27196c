"""Where MNIST comes from when no folder is named: the cache, a mirror, and synthetic digits at last."""

import gzip
import hashlib
import http.server
import struct
import threading
from functools import partial

import pytest
from torchvision.datasets import MNIST

from hvdkit.runtime.engine import SingleEngine
from hvdkit.train import digits
from hvdkit.train.data import load
from hvdkit.train.settings import TrainSettings


@pytest.fixture(autouse=True)
def nothing_here(tmp_path, monkeypatch):
    """A user without data: an empty cache, and a working folder without ../shared/data."""
    monkeypatch.delenv("HVDKIT_DATA_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")


@pytest.fixture
def mirror(tmp_path, monkeypatch):
    """A mirror on this machine that torchvision's MNIST is pointed at; what was asked of it."""
    folder = tmp_path / "mirror"
    folder.mkdir()
    resources = []
    for part, count in (("train", 20), ("t10k", 10)):
        images, labels = digits.make(count, seed=1)
        for name, content in (
            ("images-idx3", struct.pack(">IIII", 0x803, count, 28, 28) + images.numpy().tobytes()),
            ("labels-idx1", struct.pack(">II", 0x801, count) + labels.byte().numpy().tobytes()),
        ):
            packed = gzip.compress(content)
            (folder / f"{part}-{name}-ubyte.gz").write_bytes(packed)
            resources.append((f"{part}-{name}-ubyte.gz", hashlib.md5(packed).hexdigest()))
    asked = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format, *values):
            asked.append(self.path)

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(MNIST, "mirrors", [f"http://127.0.0.1:{server.server_address[1]}/"])
    monkeypatch.setattr(MNIST, "resources", resources)
    yield asked
    server.shutdown()
    server.server_close()


def test_a_download_goes_to_the_cache_and_is_taken_from_there_later(mirror, tmp_path):
    said = []
    data = load(TrainSettings(), SingleEngine(), said.append)
    assert data.name == "MNIST"
    assert (len(data.train.labels), len(data.test.labels)) == (20, 10)
    assert said == []
    assert len(set(mirror)) == 4
    mirror.clear()
    assert load(TrainSettings(), SingleEngine(), said.append).name == "MNIST"
    assert mirror == [], "the second run asks nobody"
    assert [path.name for path in (tmp_path / "cache" / "hvdkit" / "data").iterdir()] == ["MNIST"]


def test_a_mirror_that_sends_something_else_is_not_believed(mirror, tmp_path):
    path = tmp_path / "mirror" / "t10k-labels-idx1-ubyte.gz"
    path.write_bytes(gzip.compress(b"something else"))
    said = []
    assert load(TrainSettings(), SingleEngine(), said.append).name == "synthetic digits"
    assert list((tmp_path / "cache" / "hvdkit" / "data").iterdir()) == []


def test_without_data_and_network_it_says_so_and_takes_synthetic_digits(monkeypatch):
    monkeypatch.setattr(MNIST, "mirrors", ["http://127.0.0.1:1/"])  # a port where nobody listens
    said = []
    data = load(TrainSettings(), SingleEngine(), said.append)
    assert data.name == "synthetic digits"
    assert len(data.train.labels) == 60_000
    assert len(said) == 1
    assert "cannot be downloaded" in said[0]
    assert "\n" not in said[0]


def test_the_shared_folder_beside_the_project_is_found(mirror, tmp_path):
    (tmp_path / "shared").mkdir()
    (tmp_path / "mirror").rename(tmp_path / "shared" / "data")
    assert len(load(TrainSettings(), SingleEngine(), print).train.labels) == 20
    assert mirror == []
