"""The dashboard Scaling: what `hvdkit bench scaling` pushed."""

from typing import Any

from hvdkit.metrics.dashboards_panels import (
    BAD,
    DOUBTFUL,
    FAINT,
    GOOD,
    Query,
    lines,
    over_workers,
    page,
    rows,
    stacked,
    value,
    variable,
)

_SWEEP = 'model="$model", data="$data", backend="$backend", mode="$mode"'
_CHOSEN = f'{_SWEEP}, engine=~"$engine"'
_REAL = f'{_CHOSEN}, engine!="ideal"'  # independent processes have no efficiency to judge

_PARTS = {"compute": "blue", "data": "green", "communication": "orange", "straggling": "purple", "other": FAINT}


def scaling() -> Any:
    """Efficiency and throughput against workers, what a step consists of, and how it was before."""
    return page(
        "hvdkit-scaling",
        "hvdkit / Scaling",
        "How training scales with workers. Filled by 'hvdkit bench scaling --pushgateway HOST:PORT'.",
        [
            _choice("model", "Model"),
            _choice("data", "Data"),
            _choice("backend", "Backend"),
            _choice("mode", "Mode"),
            _choice("engine", "Engine", several=True),
        ],
        [
            value(
                "Efficiency at most workers",
                "Throughput of the largest number of workers relative to as many times one worker; the worst engine.",
                Query(expression=_largest("hvdkit_bench_efficiency_ratio", "min")),
                unit="percentunit",
                thresholds=((None, BAD), (0.7, DOUBTFUL), (0.9, GOOD)),
                width=6,
                decimals=1,
            ),
            value(
                "Images a second at most workers",
                "Of all ranks together, with the fastest engine.",
                Query(expression=_largest("hvdkit_bench_images_per_second", "max")),
                unit="locale",
                decimals=0,
                width=6,
            ),
            value(
                "Runs a point",
                "Runs behind each figure; intervals over fewer than five say little.",
                Query(expression=f"min(hvdkit_bench_runs{{{_CHOSEN}}})"),
                unit="short",
                thresholds=((None, DOUBTFUL), (5, GOOD)),
                width=6,
            ),
            value(
                "Age of the result",
                "A Pushgateway keeps results until they are replaced or pruned.",
                Query(expression=f"time() - max(hvdkit_bench_timestamp_seconds{{{_SWEEP}}})"),
                unit="s",
                width=6,
            ),
            over_workers(
                "Throughput over workers",
                "Images a second of all ranks. Dotted: N times one worker. Dashed, 'ideal': independent processes that "
                "do not communicate, which is all that this machine could give.",
                Query(
                    expression=f"{_series('hvdkit_bench_images_per_second', _CHOSEN, '$1')} or "
                    f"{_series('hvdkit_bench_linear_images_per_second', _REAL, 'linear $1')}"
                ),
                unit="short",
            ),
            over_workers(
                "Efficiency over workers",
                "Speed-up relative to the number of workers; 100 %, dotted, is perfect scaling. What 'ideal' loses, "
                "the machine takes.",
                Query(
                    expression=f"{_series('hvdkit_bench_efficiency_ratio', _CHOSEN, '$1')} or "
                    f"{_series('hvdkit_bench_efficiency_ratio', _REAL, 'linear')} * 0 + 1"
                ),
                unit="percentunit",
                low=0,
            ),
            stacked(
                "What a step consists of",
                "Shares of the mean step. Communication is the least wait over ranks, straggling the excess over it. "
                "DDP cannot tell them from compute.",
                Query(
                    expression="max by (point, part) (label_join("
                    f'hvdkit_bench_part_ratio{{{_CHOSEN}}}, "point", " x ", "engine", "workers"))'
                ),
                unit="percentunit",
                row="point",
                column="part",
                colours=_PARTS,
            ),
            lines(
                "Efficiency of earlier sweeps",
                "Each push replaces the result before it; here is what Prometheus remembers of them.",
                Query(expression=f"hvdkit_bench_efficiency_ratio{{{_REAL}}}", legend="{{engine}} x {{workers}}"),
                unit="percentunit",
                height=11,
                low=0,
            ),
            rows(
                "Figures",
                "Each point with its 95 % interval over repeated runs.",
                [
                    ("Images/s", _point("hvdkit_bench_images_per_second"), "locale"),
                    ("from", _point("hvdkit_bench_images_per_second_lower"), "locale"),
                    ("to", _point("hvdkit_bench_images_per_second_upper"), "locale"),
                    ("Speed-up", _point("hvdkit_bench_speedup_ratio"), "short"),
                    ("Efficiency", _point("hvdkit_bench_efficiency_ratio"), "percentunit"),
                    ("at least", _point("hvdkit_bench_efficiency_lower_ratio"), "percentunit"),
                    ("at most", _point("hvdkit_bench_efficiency_upper_ratio"), "percentunit"),
                    ("Of ideal", _point("hvdkit_bench_of_ideal_ratio"), "percentunit"),
                    ("Step", _point("hvdkit_bench_step_seconds"), "s"),
                    ("Runs", _point("hvdkit_bench_runs"), "short"),
                ],
                labels=("engine", "workers"),
                height=12,
            ),
        ],
        since="now-7d",
        refresh="1m",
    )


def _choice(label: str, text: str, *, several: bool = False) -> Any:
    return variable(label, text, f"label_values(hvdkit_bench_images_per_second, {label})", several=several)


def _series(metric: str, selector: str, name: str) -> str:
    """With the labels that `over_workers` wants; `$1` in the name is the engine."""
    named = f'label_replace({metric}{{{selector}}}, "series", "{name}", "engine", "(.*)")'
    return f"max by (workers, series) ({named})"


def _largest(metric: str, aggregate: str) -> str:
    """The value at the largest number of workers. Labels are texts that have no largest one, but linear throughput
    rises with the workers."""
    linear = f"hvdkit_bench_linear_images_per_second{{{_REAL}}}"
    picked = f"{linear} == on (engine) group_left max by (engine) ({linear})"
    return f"{aggregate}({metric}{{{_REAL}}} and on (engine, workers) ({picked}))"


def _point(metric: str) -> str:
    return f"max by (engine, workers) ({metric}{{{_CHOSEN}}})"
