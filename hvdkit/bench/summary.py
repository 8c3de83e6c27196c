"""Each point of a sweep in figures with 95 % intervals over its runs. Pure."""

import statistics
from dataclasses import asdict, dataclass
from typing import Any

from hvdkit.bench.points import IDEAL, Point
from hvdkit.bench.results import Results
from hvdkit.bench.samples import PARTS, Figures
from hvdkit.bench.statistics import Estimate, geometric_mean, mean


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What the runs of a point say together. None where no run says anything."""

    point: Point
    done: int
    failed: int
    images_per_second: Estimate | None
    step_seconds: Estimate | None
    speedup: Estimate | None
    """Throughput over that of one worker, taken within rounds."""

    efficiency: Estimate | None
    """The speed-up a worker: 1 is perfect. In weak mode T(N) / (N T(1)), in strong mode S / N, which is the same."""

    of_ideal: Estimate | None
    """Throughput over that of as many independent processes, taken within rounds."""

    jitter: Estimate | None
    shares: dict[str, Estimate | None]
    """Share of a step's time for each of PARTS; None where the engine cannot tell."""

    own_seconds: list[float]
    """Each rank's own work in a step, mean over runs."""

    cores_used: float | None
    peak_memory_bytes: int | None

    def as_json(self) -> dict[str, Any]:
        values = {}
        for name, value in vars(self).items():
            if isinstance(value, Estimate):
                value = value.as_json()
            elif name == "shares":
                value = {part: share and share.as_json() for part, share in value.items()}
            elif name == "point":
                value = asdict(value)
            values[name] = value
        return values


def summarise(results: Results) -> list[Summary]:
    """A summary for each point that was run."""
    return [_summary(results, point) for point in results.points()]


def _summary(results: Results, point: Point) -> Summary:
    done = results.done(point)
    baseline = results.done(_sibling(point, workers=1))
    runs = list(done.values())
    speedup = geometric_mean(ratios(done, baseline))
    return Summary(
        point=point,
        done=len(done),
        failed=len(results.failed(point)),
        images_per_second=geometric_mean([run.images_per_second for run in runs]),
        step_seconds=geometric_mean([run.step_seconds for run in runs]),
        speedup=speedup,
        efficiency=speedup and speedup.scaled(1 / point.workers),
        of_ideal=geometric_mean(ratios(done, results.done(_sibling(point, engine=IDEAL)))),
        jitter=mean([run.jitter for run in runs]),
        shares={part: _share(runs, part) for part in PARTS},
        own_seconds=[statistics.fmean(times) for times in zip(*(run.own_seconds for run in runs), strict=True)],
        cores_used=statistics.fmean(run.cores_used for run in runs) if runs else None,
        peak_memory_bytes=max((run.peak_memory_bytes for run in runs), default=None),
    )


def ratios(above: dict[int, Figures], below: dict[int, Figures]) -> list[float]:
    """Throughput over throughput, for each round that has both."""
    return [above[n].images_per_second / below[n].images_per_second for n in sorted(above) if n in below]


def _sibling(point: Point, *, workers: int | None = None, engine: str | None = None) -> Point:
    return Point(data=point.data, engine=engine or point.engine, workers=workers or point.workers, slots=point.slots)


def _share(runs: list[Figures], part: str) -> Estimate | None:
    shares = [run.parts[part] / run.step_seconds for run in runs if run.parts[part] is not None]
    return mean(shares)
