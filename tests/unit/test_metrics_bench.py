"""A sweep's results as metrics: from a result made by hand, and checked by the schema of results.json."""

import json
from pathlib import Path
from typing import Any

import jsonschema
from prometheus_client import generate_latest

import hvdkit.bench
from hvdkit.metrics.bench import HELP, Sample, metrics_of, push_benchmark, registry

SCHEMA = json.loads((Path(hvdkit.bench.__file__).parent / "results.schema.json").read_text())
PARTS = {"compute": 0.7, "data": 0.05, "communication": 0.2, "straggling": 0.05, "other": None}


def estimate(value: float, spread: float | None = 0.1) -> dict[str, Any]:
    ends = {} if spread is None else {"low": value * (1 - spread), "high": value * (1 + spread)}
    return {"value": value, "low": None, "high": None, "runs": 5} | ends


def summary(engine: str, workers: int, rate: float, data: str = "synthetic", done: int = 5) -> dict[str, Any]:
    speedup = estimate(rate / 100) if engine != "ideal" else None
    return {
        "point": {"data": data, "engine": engine, "workers": workers, "slots": 1},
        "done": done,
        "failed": 0,
        "images_per_second": estimate(rate) if done else None,
        "step_seconds": estimate(64 * workers / rate) if done else None,
        "speedup": speedup,
        "efficiency": speedup and estimate(rate / 100 / workers),
        "of_ideal": None,
        "jitter": estimate(0.02, None) if done else None,
        "shares": {part: share and estimate(share) for part, share in PARTS.items()},
        "own_seconds": [],
        "cores_used": None,
        "peak_memory_bytes": None,
    }


def result(*summaries: dict[str, Any]) -> dict[str, Any]:
    """What metrics_of reads of a results.json."""
    return {
        "flags": {"model": "mnist-cnn", "backend": "local", "mode": "weak"},
        "summaries": list(summaries),
        "runs": [{"began": 1000.0, "seconds": 5.0}, {"began": 1010.0, "seconds": 2.5}],
    }


def test_the_parts_that_are_read_are_those_of_the_schema() -> None:
    schema = SCHEMA["properties"]["summaries"]["items"]
    for one in (summary("horovod", 1, 100.0), summary("ideal", 2, 190.0)):
        jsonschema.validate(one, {**schema, "$defs": SCHEMA["$defs"]})
    assert {"began", "seconds"} <= set(SCHEMA["$defs"]["run"]["properties"])
    assert {"model", "backend", "mode"} <= set(SCHEMA["properties"]["flags"]["properties"])


def values(samples: list[Sample], **labels: str) -> dict[str, float]:
    return {sample.name: sample.value for sample in samples if sample.labels == labels}


def test_every_figure_of_a_point_becomes_a_metric() -> None:
    made = metrics_of(result(summary("horovod", 1, 100.0), summary("horovod", 4, 320.0)))
    assert list(made) == ["synthetic"]
    assert values(made["synthetic"], engine="horovod", workers="4") == {
        "hvdkit_bench_images_per_second": 320.0,
        "hvdkit_bench_images_per_second_lower": 320.0 * 0.9,
        "hvdkit_bench_images_per_second_upper": 320.0 * 1.1,
        "hvdkit_bench_linear_images_per_second": 400.0,
        "hvdkit_bench_speedup_ratio": 3.2,
        "hvdkit_bench_efficiency_ratio": 0.8,
        "hvdkit_bench_efficiency_lower_ratio": 0.8 * 0.9,
        "hvdkit_bench_efficiency_upper_ratio": 0.8 * 1.1,
        "hvdkit_bench_step_seconds": 0.8,
        "hvdkit_bench_runs": 5,
    }
    parts = {
        sample.labels["part"]: sample.value
        for sample in made["synthetic"]
        if sample.labels.get("workers") == "4" and "part" in sample.labels
    }
    assert parts == {part: share for part, share in PARTS.items() if share is not None}
    assert values(made["synthetic"]) == {"hvdkit_bench_timestamp_seconds": 1012.5}
    assert {sample.name for sample in made["synthetic"]} <= set(HELP)


def test_what_was_not_measured_is_left_out() -> None:
    made = metrics_of(result(summary("ddp", 2, 150.0), summary("horovod", 2, 1.0, done=0)))["synthetic"]
    assert "hvdkit_bench_linear_images_per_second" not in {sample.name for sample in made}  # there is no baseline
    assert {sample.labels.get("engine") for sample in made} == {"ddp", None}


def test_data_sets_stay_apart() -> None:
    made = metrics_of(result(summary("ddp", 1, 100.0), summary("ddp", 1, 50.0, data="mnist")))
    rates = {
        data: values(samples, engine="ddp", workers="1")["hvdkit_bench_linear_images_per_second"]
        for data, samples in made.items()
    }
    assert rates == {"synthetic": 100.0, "mnist": 50.0}


def test_an_empty_sweep_has_no_metrics() -> None:
    assert metrics_of({"flags": {}, "summaries": [], "runs": []}) == {}


def test_samples_become_gauges_with_their_labels() -> None:
    samples = metrics_of(result(summary("ddp", 1, 100.0), summary("ddp", 2, 150.0)))["synthetic"]
    text = generate_latest(registry(samples)).decode()
    assert 'hvdkit_bench_images_per_second{engine="ddp",workers="2"} 150.0' in text
    assert "hvdkit_bench_timestamp_seconds 1012.5" in text


def test_a_dead_gateway_costs_one_warning() -> None:
    warnings: list[str] = []
    assert not push_benchmark("127.0.0.1:9", result(summary("ddp", 1, 100.0)), warn=warnings.append)
    assert len(warnings) == 1 and "not pushed to 127.0.0.1:9" in warnings[0]
