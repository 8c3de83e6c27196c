"""What a sweep measured: its runs, with every rank's samples. Pure."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from hvdkit.bench.points import IDEAL, Point, SweepSettings
from hvdkit.bench.samples import Figures, figures

DONE, FAILED = "done", "failed"


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of a point, with every rank's samples; or why there are none."""

    point: Point
    repeat: int
    """The round that it belongs to, from 0."""

    warmup: int
    began: float
    """Unix time."""

    seconds: float
    """From the command to its end."""

    load_before: float
    """The machine's load average just before."""

    problem: str | None = None
    """Why it failed."""

    hosts: list[str] = field(default_factory=list)
    ranks: list[dict[str, Any]] = field(default_factory=list)
    train: dict[str, Any] = field(default_factory=dict)
    """The training's own summary."""

    versions: dict[str, str] = field(default_factory=dict)

    @cached_property
    def figures(self) -> Figures:
        """Only a run without a problem has them."""
        return figures(self.ranks, ideal=self.point.engine == IDEAL, warmup=self.warmup)

    def as_json(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in ("repeat", "began", "seconds", "load_before", "problem")}
        values["point"] = asdict(self.point)
        values["status"] = FAILED if self.problem is not None else DONE
        if self.problem is None:
            values |= {name: getattr(self, name) for name in ("hosts", "ranks", "train", "versions")}
        return values


class Results:
    """A sweep, finished or not."""

    def __init__(
        self,
        *,
        settings: SweepSettings,
        environment: dict[str, Any],
        created: str,
        runs: Iterable[Run] = (),
        name: str = "",
    ) -> None:
        self.settings = settings
        self.environment = environment
        self.created = created
        """Date and time, UTC."""

        self.name = name
        """How reports call it: the name of its folder."""

        self.runs = runs

    @property
    def runs(self) -> list[Run]:
        """In the order in which they were made."""
        return sorted((run for rounds in self._rounds.values() for run in rounds.values()), key=lambda run: run.began)

    @runs.setter
    def runs(self, runs: Iterable[Run]) -> None:
        self._rounds: dict[Point, dict[int, Run]] = {}
        for run in runs:
            self.add(run)

    def add(self, run: Run) -> None:
        """One more run; it takes the place of a failed one of the same point and round."""
        self._rounds.setdefault(run.point, {})[run.repeat] = run

    def of(self, point: Point) -> list[Run]:
        """The runs of a point, by round."""
        return [run for _, run in sorted(self._rounds.get(point, {}).items())]

    def done(self, point: Point) -> dict[int, Figures]:
        """Round → figures of the runs of a point that succeeded."""
        return {run.repeat: run.figures for run in self.of(point) if run.problem is None}

    def failed(self, point: Point) -> list[Run]:
        return [run for run in self.of(point) if run.problem is not None]

    def points(self) -> list[Point]:
        """Those of the settings that were run, in the order of tables."""
        return [point for point in self.settings.points() if point in self._rounds]
