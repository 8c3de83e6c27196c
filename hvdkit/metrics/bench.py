"""The results of `hvdkit bench scaling` as metrics, and their way to a Pushgateway."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from hvdkit.metrics.push import SECONDS, check_address

PUSH_JOB = "hvdkit_bench"
# The key under which a gateway keeps a result until the next one of the same kind: it forgets none by itself, so these
# must take few values. The metrics themselves have the labels engine and workers, and part where there are parts.
GROUPING = ("model", "data", "backend", "mode")

HELP = {
    "hvdkit_bench_images_per_second": "Images a second of all ranks.",
    "hvdkit_bench_images_per_second_lower": "Lower end of its 95 % interval.",
    "hvdkit_bench_images_per_second_upper": "Upper end of its 95 % interval.",
    "hvdkit_bench_linear_images_per_second": "What it would be if N workers were N times as fast as one.",
    "hvdkit_bench_speedup_ratio": "Images a second relative to one worker.",
    "hvdkit_bench_efficiency_ratio": "Speed-up relative to the number of workers.",
    "hvdkit_bench_efficiency_lower_ratio": "Lower end of its 95 % interval.",
    "hvdkit_bench_efficiency_upper_ratio": "Upper end of its 95 % interval.",
    "hvdkit_bench_of_ideal_ratio": "Images a second relative to as many independent processes.",
    "hvdkit_bench_step_seconds": "Step of the slowest rank.",
    "hvdkit_bench_part_ratio": "Share of a step: compute, data, communication, straggling, other.",
    "hvdkit_bench_runs": "Runs behind these figures.",
    "hvdkit_bench_timestamp_seconds": "When the last run of the sweep ended (Unix time).",
}


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A value of a metric."""

    name: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)


def metrics_of(result: Mapping[str, Any]) -> dict[str, list[Sample]]:
    """A sweep's results.json as metrics, for each of its data sets. What was not measured is left out, not zero."""
    made: dict[str, list[Sample]] = {}
    summaries = [summary for summary in result["summaries"] if summary["done"]]
    ended = max((run["began"] + run["seconds"] for run in result["runs"]), default=None)
    for summary in summaries:
        point = summary["point"]
        labels = {"engine": point["engine"], "workers": str(point["workers"])}
        samples = made.setdefault(point["data"], _finite(iter([("hvdkit_bench_timestamp_seconds", ended, {})])))
        samples += _finite((name, value, labels) for name, value in _values(summary, _baseline(summary, summaries)))
        samples += _finite(
            ("hvdkit_bench_part_ratio", share and share["value"], labels | {"part": part})
            for part, share in summary["shares"].items()
        )
    return made


def push_benchmark(
    address: str, result: Mapping[str, Any], *, warn: Callable[[str], None], seconds: float = SECONDS
) -> bool:
    """Replace the gateway's results of this kind of sweep by this one; one warning and False when that fails."""
    flags = result["flags"]
    try:
        from prometheus_client import push_to_gateway

        url = check_address(address)
        for data, samples in metrics_of(result).items():
            grouping = {"data": data} | {name: str(flags[name]) for name in GROUPING if name != "data"}
            push_to_gateway(url, PUSH_JOB, registry(samples), grouping, timeout=seconds)
    except Exception as error:  # whatever it is, the sweep has succeeded
        reason = getattr(error, "reason", None) or error
        warn(f"the result was not pushed to {address}: {reason}; nothing else is lost.")
        return False
    return True


def registry(samples: list[Sample]) -> Any:
    """The samples for the Prometheus client."""
    from prometheus_client import CollectorRegistry, Gauge

    made = CollectorRegistry()
    gauges: dict[str, Any] = {}
    for sample in samples:
        if sample.name not in gauges:
            gauges[sample.name] = Gauge(sample.name, HELP[sample.name], list(sample.labels), registry=made)
        gauge = gauges[sample.name]
        (gauge.labels(**sample.labels) if sample.labels else gauge).set(sample.value)
    return made


def _values(summary: Mapping[str, Any], baseline: float | None) -> Iterator[tuple[str, float | None]]:
    def of(name: str, end: str = "value") -> float | None:
        return summary[name] and summary[name][end]

    yield "hvdkit_bench_images_per_second", of("images_per_second")
    yield "hvdkit_bench_images_per_second_lower", of("images_per_second", "low")
    yield "hvdkit_bench_images_per_second_upper", of("images_per_second", "high")
    yield "hvdkit_bench_linear_images_per_second", baseline and baseline * summary["point"]["workers"]
    yield "hvdkit_bench_speedup_ratio", of("speedup")
    yield "hvdkit_bench_efficiency_ratio", of("efficiency")
    yield "hvdkit_bench_efficiency_lower_ratio", of("efficiency", "low")
    yield "hvdkit_bench_efficiency_upper_ratio", of("efficiency", "high")
    yield "hvdkit_bench_of_ideal_ratio", of("of_ideal")
    yield "hvdkit_bench_step_seconds", of("step_seconds")
    yield "hvdkit_bench_runs", summary["done"]


def _baseline(summary: Mapping[str, Any], summaries: list[Mapping[str, Any]]) -> float | None:
    """Images a second of one worker with the same engine and data."""
    wanted = summary["point"] | {"workers": 1}
    rates = [other["images_per_second"] for other in summaries if other["point"] == wanted]
    return rates[0]["value"] if rates and rates[0] else None


def _finite(values: Iterator[tuple[str, float | None, Mapping[str, str]]]) -> list[Sample]:
    return [
        Sample(name=name, value=value, labels=labels)
        for name, value, labels in values
        if value is not None and math.isfinite(value)
    ]
