"""Live Prometheus metrics: every rank serves its own, and rank 0 those of the world as well."""

import contextlib
import errno
import os
import socket
import threading
import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hvdkit
from hvdkit.errors import EnvironmentProblem, InputError
from hvdkit.train.report import Evaluation, Interval, Reporter

if TYPE_CHECKING:
    from prometheus_client import Metric

LARGEST_PORT = 65535
BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0)  # seconds a step

_HELP = {
    "hvdkit_info": "What this rank runs; the value is always 1.",
    "hvdkit_world_size": "Ranks that train together.",
    "hvdkit_restarts": "Starts of this training before the present one.",
    "hvdkit_steps": "Steps of this rank since its process began.",
    "hvdkit_images": "Images that this rank trained on since its process began.",
    "hvdkit_step_seconds": "Duration of a step of this rank.",
    "hvdkit_data_wait_seconds": "Time this rank has waited for data.",
    "hvdkit_allreduce_wait_seconds": "Time this rank has waited for allreduce.",
    "hvdkit_loss": "Mean training loss of the last interval.",
    "hvdkit_accuracy_ratio": "Share of the training images of the last interval that the model got right.",
    "hvdkit_images_per_second": "Images a second of all ranks in the last interval.",
    "hvdkit_learning_rate": "Learning rate of the last step.",
    "hvdkit_epoch": "Epoch that is being trained, from 1.",
    "hvdkit_current_step": "Steps done since the beginning of the training, also before a restart.",
    "hvdkit_planned_steps": "Steps that the training will have in all.",
    "hvdkit_checkpoint_timestamp_seconds": "When the newest checkpoint was complete (Unix time).",
    "hvdkit_test_accuracy_ratio": "Share of the test images that the model got right.",
    "hvdkit_test_loss": "Mean loss over the test images.",
}


class LiveMetrics(Reporter):
    """Serves /metrics on `port` + local rank. Every series carries the job's name and the rank.

    A step adds to plain numbers, and they become metrics when Prometheus asks: a fifth of what the client's own
    counters cost. Values of the world come only from the rank that is told intervals, so that a sum is right.
    """

    def __init__(
        self,
        *,
        port: int,
        job: str,
        rank: int,
        local_rank: int,
        world_size: int,
        host: str,
        model: str,
        data: str,
        engine: str,
        library: str,
        restarts: int = 0,
        address: str | None = None,
    ) -> None:
        """Listen on all addresses, or only on `address`; InputError when that is not possible."""
        self.restarts = restarts
        self._labels = {"hvdkit_job": job, "rank": str(rank)}
        self._info = {"host": host, "model": model, "data": data, "engine": engine, "library": library}
        self._world_size = world_size
        self._lock = threading.Lock()
        self._steps = self._images = 0
        self._buckets = [0] * (len(BUCKETS) + 1)
        self._seconds = self._data_wait = 0.0
        self._allreduce_wait: float | None = None
        self._gauges: dict[str, float] = {}
        self._server, self._thread = self._listen(port, local_rank, address)
        self.port: int = self._server.server_port
        # A loader worker is a copy of this process; it must not hold the port of a rank that was killed.
        os.register_at_fork(after_in_child=self._server.socket.close)

    def observe_step(self, seconds: float, data_wait: float, allreduce_wait: float | None, images: int) -> None:
        """One step of this rank is done; called in every step, so it must cost next to nothing."""
        bucket = bisect_left(BUCKETS, seconds)
        with self._lock:
            self._steps += 1
            self._images += images
            self._buckets[bucket] += 1
            self._seconds += seconds
            self._data_wait += data_wait
            if allreduce_wait is not None:
                self._allreduce_wait = (self._allreduce_wait or 0.0) + allreduce_wait

    def interval(self, interval: Interval) -> None:
        gauges = {
            "hvdkit_loss": interval.loss,
            "hvdkit_accuracy_ratio": interval.accuracy_percent / 100,
            "hvdkit_images_per_second": interval.images_per_second,
            "hvdkit_learning_rate": interval.learning_rate,
            "hvdkit_epoch": interval.epoch,
            "hvdkit_current_step": interval.step,
            "hvdkit_planned_steps": interval.steps,
        }
        if interval.checkpoint_age_seconds is not None:
            gauges["hvdkit_checkpoint_timestamp_seconds"] = time.time() - interval.checkpoint_age_seconds
        with self._lock:
            self._gauges.update(gauges)

    def evaluation(self, evaluation: Evaluation) -> None:
        with self._lock:
            self._gauges["hvdkit_test_accuracy_ratio"] = evaluation.accuracy_percent / 100
            self._gauges["hvdkit_test_loss"] = evaluation.loss

    def note(self, text: str) -> None:
        pass  # for people

    def summary(self, summary: Mapping[str, Any]) -> None:
        pass  # Prometheus would hardly come by in time: push.py

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def collect(self) -> Iterator["Metric"]:
        """What the client asks of a collector: all metrics as they stand, from one moment."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
        from prometheus_client.utils import floatToGoString

        with self._lock:
            counters = {
                "hvdkit_restarts": self.restarts,
                "hvdkit_steps": self._steps,
                "hvdkit_images": self._images,
                "hvdkit_data_wait_seconds": self._data_wait,
                "hvdkit_allreduce_wait_seconds": self._allreduce_wait,
            }
            gauges = {"hvdkit_world_size": self._world_size, **self._gauges}
            counts, seconds = list(self._buckets), self._seconds

        def family(kind: type, name: str, labels: Mapping[str, str] = self._labels, **values: Any) -> "Metric":
            metric = kind(name, _HELP[name], labels=list(labels))
            metric.add_metric(list(labels.values()), **values)
            return metric

        yield family(
            GaugeMetricFamily, "hvdkit_info", self._labels | self._info | {"version": hvdkit.__version__}, value=1
        )
        for name, value in gauges.items():
            yield family(GaugeMetricFamily, name, value=value)
        for name, value in counters.items():
            if value is not None:
                yield family(CounterMetricFamily, name, value=value)
        buckets, total = [], 0
        for bound, count in zip((*BUCKETS, float("inf")), counts, strict=True):
            total += count
            buckets.append((floatToGoString(bound), total))
        yield family(HistogramMetricFamily, "hvdkit_step_seconds", buckets=buckets, sum_value=seconds)

    def _listen(self, port: int, local_rank: int, address: str | None) -> tuple[Any, threading.Thread]:
        try:
            from prometheus_client import CollectorRegistry, start_http_server
        except ImportError as error:
            raise EnvironmentProblem(
                f"--metrics-port: the Prometheus client cannot be used ({error}); run \"pip install 'hvdkit[train]'\"."
            ) from error
        own = port + local_rank
        where = f"--metrics-port {port}: port {own} of local rank {local_rank}"
        if own > LARGEST_PORT:
            raise InputError(f"{where} is above {LARGEST_PORT}; choose a lower one.")
        registry = CollectorRegistry()
        registry.register(self)
        for attempt in [address] if address else _all_addresses():
            try:
                return start_http_server(own, attempt, registry)
            except OSError as error:
                failure = error
                if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    break
        if failure.errno == errno.EADDRINUSE:
            holder = find_holder(own)
            raise InputError(f"{where} is in use{f' by {holder}' if holder else ''}; choose another one.")
        raise InputError(
            f"{where} cannot be opened on address {attempt} ({failure.strerror or failure}); choose another one."
        )


def _all_addresses() -> list[str]:
    """What to listen on for everybody: a pod may have an IPv6 address only."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        if not probe.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY):
            return ["::", "0.0.0.0"]  # the first takes IPv4 as well
    return ["0.0.0.0"]


def find_holder(port: int) -> str | None:
    """The process that holds a TCP port of this machine, as far as we may see it."""
    sockets = {f"socket:[{inode}]" for inode in _inodes(port)}
    for process in sorted(Path("/proc").glob("[0-9]*"), key=lambda path: int(path.name)):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            if any(_target(descriptor) in sockets for descriptor in (process / "fd").iterdir()):
                words = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").split()
                return f"process {process.name} ({' '.join(words)[:80]})"
    return None


def _inodes(port: int) -> Iterator[str]:
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for row in Path("/proc/net", table).read_text().splitlines()[1:]:
                fields = row.split()
                if fields[1].endswith(f":{port:04X}") and fields[9] != "0":  # 0: closed, and only waits
                    yield fields[9]


def _target(link: Path) -> str | None:
    try:
        return str(link.readlink())
    except OSError:
        return None
