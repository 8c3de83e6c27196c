"""The result of a run for a Pushgateway, which keeps it for Prometheus when the run has ended."""

import math
import re
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from hvdkit.errors import InputError

SECONDS = 5.0  # to wait for the gateway; the training is over and people wait

# Figures of the summary: its key → the metric, what a unit of it is in base units, the help.
_FIGURES = {
    "images_per_second": ("hvdkit_result_images_per_second", 1, "Images a second of all ranks."),
    "test_accuracy_percent": ("hvdkit_result_test_accuracy_ratio", 0.01, "Share of the test images got right."),
    "train_loss": ("hvdkit_result_train_loss", 1, "Training loss at the end."),
    "seconds": ("hvdkit_result_seconds", 1, "Duration of the training."),
    "steps": ("hvdkit_result_steps", 1, "Steps of the training."),
    "epochs": ("hvdkit_result_epochs", 1, "Epochs of the training."),
    "ranks": ("hvdkit_result_world_size", 1, "Ranks that trained together."),
    "data_wait_percent": ("hvdkit_result_data_wait_ratio", 0.01, "Share of the time spent waiting for data."),
    "allreduce_wait_percent": ("hvdkit_result_allreduce_wait_ratio", 0.01, "Share of it waiting for allreduce."),
}
_INFO = ("model", "data", "device", "library", "hosts")
_RANDOM_END = re.compile(r"-[bcdfghjklmnpqrstvwxz2456789]{5}$")  # what hvdkit appends to a name that nobody gave


def check_address(address: str) -> str:
    """The URL of a Pushgateway given as host:port or URL; InputError when it is neither."""
    has_scheme = "://" in address
    url = address if has_scheme else f"http://{address}"
    try:
        parts = urlsplit(url)
        host, port, login = parts.hostname, parts.port, parts.username
    except ValueError as error:
        raise InputError(f"--pushgateway '{address}' is no address ({error}); say host:9091 or a URL.") from None
    if parts.scheme not in ("http", "https") or not host or re.search(r"[\s?#]", address):
        raise InputError(f"--pushgateway '{address}' is no address; say host:9091 or http://host:9091.")
    if login is not None:
        raise InputError("--pushgateway: a user or password in the address is not supported; leave it out.")
    if not has_scheme and port is None:
        raise InputError(f"--pushgateway '{address}' has no port; a Pushgateway usually listens on {address}:9091.")
    return url.rstrip("/")


def push_result(
    address: str,
    job: str,
    summary: Mapping[str, Any],
    *,
    grouping: Mapping[str, str],
    warn: Callable[[str], None],
    seconds: float = SECONDS,
) -> bool:
    """Replace the gateway's result of this kind of run by this one; one warning and False when that fails.

    A gateway forgets no group by itself, so the key must take few values: the job's name without its random end,
    and `grouping` (model, engine, workers). The full name is a label of hvdkit_result_info, and goes with it.
    """
    try:
        from prometheus_client import push_to_gateway

        url = check_address(address)
        push_to_gateway(url, _RANDOM_END.sub("", job), _registry(job, summary), dict(grouping), timeout=seconds)
    except Exception as error:  # whatever it is, the training has succeeded
        reason = getattr(error, "reason", None) or error
        warn(f"the result was not pushed to {address}: {reason}; nothing else is lost.")
        return False
    return True


def _registry(job: str, summary: Mapping[str, Any]) -> Any:
    from prometheus_client import CollectorRegistry, Gauge

    registry = CollectorRegistry()
    for key, (name, unit, text) in _FIGURES.items():
        value = summary.get(key)
        if value is not None and math.isfinite(value):
            Gauge(name, text, registry=registry).set(value * unit)
    Gauge("hvdkit_result_timestamp_seconds", "When the training ended (Unix time).", registry=registry).set(time.time())
    info = {"hvdkit_job": job} | {key: str(summary[key]) for key in _INFO if summary.get(key) is not None}
    Gauge("hvdkit_result_info", "What was trained; the value is always 1.", list(info), registry=registry).labels(
        **info
    ).set(1)
    return registry
