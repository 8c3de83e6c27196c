"""What Prometheus gets, over real HTTP: live from every rank, and the result at the end. Results through mpirun."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.parse import unquote

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families
from running import run

from hvdkit.errors import InputError
from hvdkit.metrics.live import LiveMetrics
from hvdkit.metrics.push import check_address, push_result
from hvdkit.runtime.results import collect
from hvdkit.train.report import Evaluation, Interval

INTERVAL = Interval(
    step=300,
    steps=469,
    epoch=2,
    epochs=3,
    seconds=5.0,
    images=6400,
    loss=0.5,
    accuracy_percent=81.25,
    images_per_second=1280.0,
    learning_rate=0.04,
    step_seconds=0.08,
    data_wait_seconds=0.001,
    allreduce_wait_seconds=0.002,
    slowest_rank=1,
    slowest_host="vm",
    eta_seconds=12.4,
    checkpoint_age_seconds=100.0,
)
SUMMARY = {
    "model": "mnist-cnn",
    "data": "MNIST",
    "ranks": 4,
    "hosts": 2,
    "library": "MPI",
    "device": "cpu",
    "epochs": 1,
    "steps": 469,
    "test_accuracy_percent": 98.5,
    "test_images": 10_000,
    "train_loss": float("nan"),
    "images_per_second": 1487.0,
    "seconds": 46.0,
    "data_wait_percent": 1.0,
    "allreduce_wait_percent": None,
    "checkpoint": None,
    "output": "out",
}
RANK = {
    "job": "train-bcdfg",
    "world_size": 2,
    "host": "vm",
    "model": "mnist-cnn",
    "data": "MNIST",
    "engine": "horovod",
    "library": "MPI",
}


def free_ports() -> int:
    """A port P such that P and P + 1 are free."""
    for _ in range(100):
        with socket.socket() as first, socket.socket() as second, contextlib.suppress(OSError):
            first.bind(("", 0))
            port = first.getsockname()[1]
            second.bind(("", port + 1))
            return port
    raise AssertionError("no two free ports side by side")


@contextlib.contextmanager
def serving(port: int = 0, rank: int = 0, **changes: object) -> Iterator[LiveMetrics]:
    live = LiveMetrics(port=port, rank=rank, local_rank=rank, **{**RANK, **changes})
    try:
        yield live
    finally:
        live.close()


def scrape(port: int, address: str = "127.0.0.1") -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Sample name → labels → value, over HTTP, as Prometheus' own parser reads it."""
    with urllib.request.urlopen(f"http://{address}:{port}/metrics", timeout=30) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for sample in (sample for family in families for sample in family.samples):
        found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def only(series: dict[tuple[tuple[str, str], ...], float]) -> float:
    (value,) = series.values()
    return value


def test_rank_0_serves_its_own_and_the_worlds_values() -> None:
    with serving(restarts=3) as live:
        live.observe_step(0.0015, 0.25, 0.5, 64)
        live.observe_step(0.05, 0.25, 0.25, 64)
        live.observe_step(0.06, 0.5, 0.25, 32)
        live.observe_step(100.0, 0.0, 0.0, 64)
        before = time.time()
        live.interval(INTERVAL)
        live.evaluation(Evaluation(step=469, epoch=1, accuracy_percent=98.5, images=10_000, loss=0.0625))
        after = time.time()
        found = scrape(live.port)

    assert all(name.startswith("hvdkit_") for name in found)
    base = {"hvdkit_job": "train-bcdfg", "rank": "0"}
    for name, series in found.items():
        for labels in series:
            assert dict(labels).items() >= base.items(), name
    values = {name: only(series) for name, series in found.items() if len(series) == 1}
    taken = values.pop("hvdkit_checkpoint_timestamp_seconds")
    assert before - 100 <= taken <= after - 100
    assert values.pop("hvdkit_step_seconds_sum") == pytest.approx(100.1115)
    assert values == {
        "hvdkit_info": 1,
        "hvdkit_world_size": 2,
        "hvdkit_restarts_total": 3,
        "hvdkit_steps_total": 4,
        "hvdkit_images_total": 224,
        "hvdkit_data_wait_seconds_total": 1.0,
        "hvdkit_allreduce_wait_seconds_total": 1.0,
        "hvdkit_step_seconds_count": 4,
        "hvdkit_loss": 0.5,
        "hvdkit_accuracy_ratio": 0.8125,
        "hvdkit_images_per_second": 1280,
        "hvdkit_learning_rate": 0.04,
        "hvdkit_epoch": 2,
        "hvdkit_current_step": 300,
        "hvdkit_planned_steps": 469,
        "hvdkit_test_accuracy_ratio": 0.985,
        "hvdkit_test_loss": 0.0625,
    }
    ((info, _),) = found["hvdkit_info"].items()
    assert dict(info).items() >= {"host": "vm", "model": "mnist-cnn", "data": "MNIST", "engine": "horovod"}.items()
    buckets = {dict(labels)["le"]: value for labels, value in found["hvdkit_step_seconds_bucket"].items()}
    assert [buckets[bound] for bound in ("0.001", "0.002", "0.05", "0.1", "60.0", "+Inf")] == [0, 1, 2, 3, 3, 4]


def test_the_same_in_the_newer_format() -> None:
    """Prometheus asks for OpenMetrics first, whose parser is strict about names and units."""
    with serving() as live:
        live.observe_step(0.05, 0.25, 0.25, 64)
        live.interval(INTERVAL)
        request = urllib.request.Request(f"http://127.0.0.1:{live.port}/metrics")
        request.add_header("Accept", "application/openmetrics-text; version=1.0.0")
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
            families = {family.name: family.type for family in parse_openmetrics(answer.read().decode())}
    assert families["hvdkit_step_seconds"] == "histogram"
    assert families["hvdkit_steps"] == families["hvdkit_data_wait_seconds"] == "counter"
    assert families["hvdkit_loss"] == "gauge"


def test_local_ranks_listen_side_by_side_and_tell_only_what_they_know() -> None:
    port = free_ports()
    with serving(port, rank=0) as first, serving(port, rank=1) as second:
        assert (first.port, second.port) == (port, port + 1)
        first.interval(INTERVAL)
        second.observe_step(0.05, 0.25, None, 64)
        world, own = scrape(port), scrape(port + 1)
    assert only(world["hvdkit_images_per_second"]) == 1280
    # A rank that knows nothing of the world must not say 0: a sum or a minimum over ranks would be wrong.
    assert "hvdkit_images_per_second" not in own
    assert "hvdkit_loss" not in own
    assert "hvdkit_allreduce_wait_seconds_total" not in own, "the engine cannot tell"
    assert own["hvdkit_steps_total"] == {(("hvdkit_job", "train-bcdfg"), ("rank", "1")): 1}


def test_a_loss_that_is_not_finite_is_seen() -> None:
    with serving() as live:
        live.interval(Interval(**{**vars(INTERVAL), "loss": float("inf"), "checkpoint_age_seconds": None}))
        found = scrape(live.port)
    assert only(found["hvdkit_loss"]) == float("inf")
    assert "hvdkit_checkpoint_timestamp_seconds" not in found, "there is none yet"


def test_each_scrape_is_of_one_moment() -> None:
    with serving() as live:
        done = threading.Event()

        def train() -> None:
            while not done.is_set():
                live.observe_step(0.05, 0.25, 0.25, 64)

        trainer = threading.Thread(target=train)
        trainer.start()
        try:
            scrapes = [scrape(live.port) for _ in range(20)]
        finally:
            done.set()
            trainer.join()
    steps = [only(found["hvdkit_steps_total"]) for found in scrapes]
    assert steps == sorted(steps)
    assert steps[-1] > steps[0]
    for found, count in zip(scrapes, steps, strict=True):
        assert only(found["hvdkit_step_seconds_count"]) == count
        assert only(found["hvdkit_images_total"]) == 64 * count
        assert only(found["hvdkit_data_wait_seconds_total"]) == 0.25 * count


def test_both_families_and_one_address() -> None:
    with serving() as everywhere:
        assert scrape(everywhere.port)
        if has_ipv6_loopback():
            assert scrape(everywhere.port, "[::1]")
    with serving(address="127.0.0.1") as here:
        assert here._server.server_address[0] == "127.0.0.1"
        assert scrape(here.port)


def has_ipv6_loopback() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


LISTENER = """
import socket, sys
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
sys.stdin.read()
"""


def test_a_port_in_use_names_who_holds_it() -> None:
    command = [sys.executable, "-c", LISTENER, "another-training"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        port = int(holder.stdout.readline())
        with pytest.raises(InputError) as caught:
            LiveMetrics(port=port - 1, rank=1, local_rank=1, **RANK)
        holder.stdin.close()
    message = str(caught.value)
    assert message.startswith(
        f"--metrics-port {port - 1}: port {port} of local rank 1 is in use by process {holder.pid} ("
    )
    assert message.endswith("; choose another one.")


def test_ports_and_addresses_that_cannot_be() -> None:
    with pytest.raises(InputError, match="--metrics-port 65535: port 65536 of local rank 1 is above 65535"):
        LiveMetrics(port=65535, rank=1, local_rank=1, **RANK)
    # TEST-NET-1: an address that no machine has.
    with pytest.raises(InputError, match=r"cannot be opened on address 192\.0\.2\.1 \(Cannot assign requested"):
        LiveMetrics(port=0, rank=0, local_rank=0, address="192.0.2.1", **RANK)


def test_a_closed_port_can_be_taken_at_once() -> None:
    with serving() as first:
        port = first.port
        assert scrape(port)
    with serving(port) as second:
        assert scrape(second.port)


WITH_A_COPY = """
import os, sys, time
from hvdkit.metrics.live import LiveMetrics
live = LiveMetrics(port=0, rank=0, local_rank=0, job="j", world_size=1, host="h", model="m", data="d", engine="e",
                   library="l")
if os.fork() == 0:
    print(live.port, os.getpid(), flush=True)
time.sleep(600)
"""


def test_a_loader_worker_does_not_hold_the_port_of_a_rank_that_was_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", WITH_A_COPY], stdout=subprocess.PIPE, text=True) as rank:
        port, copy = map(int, rank.stdout.readline().split())
        try:
            rank.kill()
            rank.wait()
            os.kill(copy, 0)  # it lives on
            with serving(port) as live:
                assert scrape(live.port)
        finally:
            os.kill(copy, signal.SIGKILL)


# The result, pushed


class Gateway:
    """A real HTTP server that keeps what it was sent and answers as told."""

    def __init__(self, status: int = 200) -> None:
        self.requests: list[tuple[str, str, str]] = []
        gateway = self

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                gateway.requests.append((self.command, self.path, body))
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever)

    def __enter__(self) -> "Gateway":
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


def push(address: str, warnings: list[str], job: str = "train-bcdfg", **more: float) -> bool:
    grouping = {"model": "my.models:net", "engine": "horovod", "workers": "4"}
    return push_result(address, job, SUMMARY, grouping=grouping, warn=warnings.append, **more)


@pytest.mark.parametrize("form", ["{}", "http://{}", "http://{}/prefix/"])
def test_the_result_replaces_the_one_of_the_same_kind_of_run(form: str) -> None:
    warnings: list[str] = []
    with Gateway() as gateway:
        assert push(form.format(gateway.address), warnings)
    ((method, path, body),) = gateway.requests
    assert warnings == []
    assert method == "PUT"
    assert unquote(path).removeprefix("/prefix") == (
        "/metrics/job/train/engine/horovod/model/my.models:net/workers/4"
    ), "without the random end of the name: a gateway forgets nothing"
    samples = {sample.name: sample for family in text_string_to_metric_families(body) for sample in family.samples}
    values = {name: sample.value for name, sample in samples.items()}
    assert abs(values.pop("hvdkit_result_timestamp_seconds") - time.time()) < 3600
    assert values == {
        "hvdkit_result_info": 1,
        "hvdkit_result_images_per_second": 1487,
        "hvdkit_result_test_accuracy_ratio": pytest.approx(0.985),
        "hvdkit_result_seconds": 46,
        "hvdkit_result_steps": 469,
        "hvdkit_result_epochs": 1,
        "hvdkit_result_world_size": 4,
        "hvdkit_result_data_wait_ratio": pytest.approx(0.01),
    }
    assert samples["hvdkit_result_info"].labels == {
        "hvdkit_job": "train-bcdfg",
        **{key: str(SUMMARY[key]) for key in ("model", "data", "device", "library", "hosts")},
    }


def test_a_name_that_somebody_gave_stays_as_it_is() -> None:
    with Gateway() as gateway:
        assert push(gateway.address, [], job="mnist-large")
    assert "/job/mnist-large/" in gateway.requests[0][1]


def test_a_gateway_that_is_down_costs_one_warning() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound and not listening: a connection is refused
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        warnings: list[str] = []
        assert push(address, warnings) is False
    assert warnings == [
        f"the result was not pushed to {address}: [Errno 111] Connection refused; nothing else is lost."
    ]


def test_a_gateway_that_refuses_or_sleeps_costs_one_warning() -> None:
    warnings: list[str] = []
    with Gateway(status=400) as gateway:
        assert push(gateway.address, warnings) is False
    assert re.fullmatch(r"the result was not pushed to .*: Bad Request; nothing else is lost\.", warnings.pop())
    with socket.create_server(("127.0.0.1", 0)) as sleeper:
        assert push(f"127.0.0.1:{sleeper.getsockname()[1]}", warnings, seconds=0.2) is False
    assert re.fullmatch(r"the result was not pushed to .*: timed out; nothing else is lost\.", warnings.pop())
    assert push("no address at all", warnings) is False
    assert len(warnings) == 1


@pytest.mark.parametrize(
    "address, url",
    [
        ("gateway:9091", "http://gateway:9091"),
        ("[::1]:9091", "http://[::1]:9091"),
        ("https://metrics.example.org/push/", "https://metrics.example.org/push"),
    ],
)
def test_addresses_that_are_right(address: str, url: str) -> None:
    assert check_address(address) == url


@pytest.mark.parametrize(
    "address",
    ["", "gateway", ":9091", "gateway:port", "gateway:99999", "::1:9091", "[::1:9091", "ftp://gateway:9091", "a b:9091",
     "http://", "http://gateway:9091/?x=1", "me:secret@gateway:9091"],
)  # fmt: skip
def test_addresses_that_are_wrong(address: str) -> None:
    with pytest.raises(InputError, match="--pushgateway") as caught:
        check_address(address)
    assert "secret" not in str(caught.value)


# Results through mpirun

EMITTER = """
import os, random
from hvdkit.runtime.results import emit
rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
chance = random.Random(rank)
for number in range(10):
    samples = [chance.random() for _ in range(1000)]
    emit("samples", {"rank": rank, "number": number, "samples": samples}, lambda line: print(line, flush=True))
"""


def mpirun(*options: str) -> str:
    ended = run("mpirun", "-np", "4", "--oversubscribe", *options, sys.executable, "-c", EMITTER)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_results_of_ranks_that_mpirun_mixes_within_lines() -> None:
    found = collect(mpirun("--tag-output"))
    assert [result.problem for result in found] == [None] * 40
    assert sorted((result.payload["rank"], result.payload["number"]) for result in found) == [
        (rank, number) for rank in range(4) for number in range(10)
    ]


def test_results_that_mpirun_has_damaged_are_told() -> None:
    """Without tags nobody can tell whose piece is whose; what was emitted is there, whole or as a problem."""
    found = collect(mpirun())
    whole = [result for result in found if result.payload]
    assert all(len(result.payload["samples"]) == 1000 for result in whole)
    assert len([result for result in found if result.kind == "samples"]) >= 40
