"""What a sweep measures: its points, and the order in which they are run. Pure."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from hvdkit.errors import InputError

ENGINES = ("horovod", "ddp")
IDEAL = "ideal"  # independent processes that do not communicate: what the machine could do
MODES = ("weak", "strong")
FEWEST_REPEATS = 5  # below that an interval over runs says next to nothing


@dataclass(frozen=True, order=True, kw_only=True)
class Point:
    """One place on the curve; it is run several times."""

    data: str
    engine: str
    """One of ENGINES, or IDEAL."""

    workers: int
    slots: int = 1

    @property
    def ranks(self) -> int:
        return self.workers * self.slots

    def __str__(self) -> str:
        return f"{self.engine}, {self.data}, {self.workers} worker{'' if self.workers == 1 else 's'}"


@dataclass(frozen=True, kw_only=True)
class SweepSettings:
    """What was asked for. A sweep that is resumed must ask for the same."""

    workers: tuple[int, ...]
    """Numbers of workers, rising; 1, the baseline, is always among them."""

    slots: int = 1
    """Ranks a worker."""

    backend: str = "local"
    engines: tuple[str, ...] = ("horovod",)
    data: tuple[str, ...] = ("synthetic",)
    """Data sets side by side: synthetic beside a real one shows what the input costs."""

    mode: str = "weak"
    """weak: the batch of a rank stays; strong: the batch of the world stays."""

    model: str = "mnist-cnn"
    batch_size: int = 64
    """Of one rank; in strong mode, of the world."""

    steps: int = 100
    """Steps of a run, warm-up included."""

    warmup_steps: int = 10
    """Steps at the beginning of a run that do not count."""

    repeats: int = FEWEST_REPEATS
    """Runs of each point."""

    threads: int = 1
    """Threads a rank: the same at every point, so that only the number of ranks changes."""

    ideal: bool = True
    """Also run each point as independent processes without communication."""

    env: tuple[str, ...] = ()
    """Variables of all ranks, as NAME=VALUE."""

    job: tuple[str, ...] = ()
    """On a cluster: what else the jobs are made of, as field=value."""

    train_args: tuple[str, ...] = ()
    """More words for `hvdkit train`."""

    def __post_init__(self) -> None:
        if not self.workers or list(self.workers) != sorted(set(self.workers)) or self.workers[0] != 1:
            raise InputError(f"--workers: {list(self.workers)} should be rising and begin with 1, the baseline.")
        for field in ("slots", "batch_size", "warmup_steps", "threads"):
            if getattr(self, field) < 1:
                flag = field.replace("_", "-")
                raise InputError(f"--{flag}: {getattr(self, field)} is not possible; it must be 1 or more.")
        if self.steps < 2 * self.warmup_steps:
            raise InputError(
                f"--steps: of {self.steps} steps {self.warmup_steps} are warm-up (--warmup-steps), which leaves less "
                "than half; raise --steps."
            )
        if self.repeats < FEWEST_REPEATS:
            raise InputError(
                f"--repeats: {self.repeats} runs of a point are too few for an interval; {FEWEST_REPEATS} is the least."
            )
        for field in ("engines", "data"):
            if not getattr(self, field):
                raise InputError(f"--{field}: the list is empty; name one at least, or leave the flag out.")
        for engine in self.engines:
            if engine not in ENGINES:
                raise InputError(f"--engines: there is no '{engine}'; there is {', '.join(ENGINES)}.")
        if self.mode not in MODES:
            raise InputError(f"--mode: there is no '{self.mode}'; there is {', '.join(MODES)}.")
        for variable in self.env:
            if not variable.partition("=")[1]:
                raise InputError(f"--env: '{variable}' should be NAME=VALUE.")
        if self.mode == "strong":
            for workers in self.workers:
                if self.batch_size % (workers * self.slots):
                    raise InputError(
                        f"--batch-size: the world's batch of {self.batch_size} cannot be shared evenly by "
                        f"{workers * self.slots} ranks; in strong mode it must be a multiple of every world size."
                    )

    def batch_of_a_rank(self, ranks: int) -> int:
        return self.batch_size // ranks if self.mode == "strong" else self.batch_size

    def points(self) -> list[Point]:
        """Every point, in the order of tables."""
        engines = (*self.engines, IDEAL) if self.ideal else self.engines
        return [
            Point(data=data, engine=engine, workers=workers, slots=self.slots)
            for data in self.data
            for engine in engines
            for workers in self.workers
        ]

    def schedule(self) -> Iterator[tuple[int, Point]]:
        """Rounds, each with every point once: a noisy minute hits all points alike.

        Every other round runs backwards, so that no point always comes first or always after the same one.
        """
        for repeat in range(self.repeats):
            points = self.points()
            yield from ((repeat, point) for point in (points if repeat % 2 == 0 else reversed(points)))

    def as_json(self) -> dict[str, Any]:
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "SweepSettings":
        return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})
