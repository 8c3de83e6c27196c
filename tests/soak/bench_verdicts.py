"""Does the verdict tell the truth? Real ranks with a fault of known kind and size, and healthy ones.

    python tests/soak/bench_verdicts.py --output benchmarks/results/bench-verdicts.json
    python tests/soak/bench_verdicts.py --quick                the strong faults of one model only

4 causes x 3 strengths x 2 models and both healthy, about 30 minutes on two cores. In every round all of them run one
after the other, with the healthy points that they are judged against. A case passes when its cause is the largest that
the verdict names; a straggler's rank must be right, too, and efficiency must fall as computed by hand: the healthy step
over that step and the sleep. A healthy run passes when nothing is named.

Each run is kept in a file beside the output (….runs.json) as soon as it is there, and what that has is not run again.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from hvdkit.bench.environment import environment
from hvdkit.bench.points import FEWEST_REPEATS, IDEAL, Point, SweepSettings
from hvdkit.bench.results import Results, Run
from hvdkit.bench.runners import local_command, local_environment, run_command
from hvdkit.bench.samples import read_log
from hvdkit.bench.statistics import Estimate, geometric_mean
from hvdkit.bench.train_words import train_words
from hvdkit.bench.verdict import Judgement, diagnose
from hvdkit.errors import HvdkitError
from hvdkit.local.machine import usable_cores

HERE = Path(__file__).resolve().parent
LOCAL_TESTS = HERE.parent / "local"  # whose bench_causes.py has the faults, and bench_verdict_ranks.py what ranks run
MODELS = ("bench_causes:small", "bench_causes:dense")
BATCH = 128  # images a pass; a step has as many passes as it needs to be this long:
STEP = 0.3  # seconds, so that a healthy allreduce is far below 5 % of a step, which a verdict would name, rightly
STEPS, WARMUP = 8, 2
TIMEOUT = 300.0  # seconds for a world with all its trainings
# Of the healthy step: what is added to it.
SLEEPS = {"weak": 0.3, "middle": 0.5, "strong": 1.0}
CYCLES = {"weak": 1.3, "middle": 1.6, "strong": 2.2}  # Horovod's cycle: longer than a step, so that every step waits
CROWDS = {"weak": 2, "middle": 3, "strong": 4}  # ranks a core
HEALTHY = "healthy"
TOLERANCE = 0.05  # how far efficiency may be from that computed by hand


@dataclass(frozen=True, kw_only=True)
class Training:
    """A model with one fault, or none."""

    model: str
    cause: str | None = None
    strength: str = HEALTHY
    data: str = "synthetic"
    sleep: float = 0.0
    """Seconds a step: of rank 1, or of every rank's loader."""

    passes: int = 1


@dataclass(frozen=True, kw_only=True)
class World:
    """Ranks that start once and run several trainings."""

    engine: str
    workers: int
    cycle: float | None = None
    """Horovod's, in milliseconds; None: as hvdkit has it, which is short against these steps."""

    steps: int = STEPS
    trainings: tuple[Training, ...]

    def settings(self, training: Training) -> SweepSettings:
        own = ("--loader-workers", "0") if training.data != "synthetic" else ()
        return SweepSettings(
            workers=(1, max(2, self.workers)),
            model=training.model,
            data=(training.data,),
            batch_size=BATCH,
            steps=self.steps,
            warmup_steps=WARMUP,
            env=() if self.cycle is None else (f"HOROVOD_CYCLE_TIME={self.cycle:.1f}",),
            train_args=("--accumulate", str(training.passes), *own),
        )

    def point(self, training: Training) -> Point:
        return Point(data=training.data, engine=self.engine, workers=self.workers)


@dataclass
class Kept:
    """What was measured so far, on the disk after each world."""

    path: Path | None
    sizes: dict[str, dict[str, float]] = field(default_factory=dict)
    """Model → passes a step, and seconds of a step."""

    runs: list[tuple[Training, Run]] = field(default_factory=list)

    @classmethod
    def at(cls, path: Path | None) -> "Kept":
        if path is None or not path.exists():
            return cls(path)
        values = json.loads(path.read_text())
        if values["environment"] != environment():
            raise SystemExit(f"{path} was made on another machine or with other versions; delete it, or say --anew.")
        runs = [(Training(**run.pop("training")), _run(run)) for run in values["runs"]]
        return cls(path, values["sizes"], runs)

    def add(self, found: dict[Training, Run]) -> None:
        self.runs += found.items()
        if self.path is not None:
            runs = [{"training": asdict(training), **run.as_json()} for training, run in self.runs]
            new = self.path.with_name(f"{self.path.name}.new")
            values = {"environment": environment(), "sizes": self.sizes, "runs": runs}
            new.write_text(json.dumps(values, separators=(",", ":")) + "\n")
            new.replace(self.path)

    def done(self, repeat: int) -> set[tuple[Training, Point]]:
        return {(one, run.point) for one, run in self.runs if run.repeat == repeat and run.problem is None}


def _run(values: dict[str, Any]) -> Run:
    point = Point(**values.pop("point"))
    return Run(point=point, warmup=WARMUP, **{name: value for name, value in values.items() if name != "status"})


def worlds(sizes: dict[str, dict[str, float]], strengths: Collection[str], cores: int) -> list[World]:
    """Faults of these strengths, sized by the healthy step of this machine."""
    plain = tuple(Training(model=model, passes=int(size["passes"])) for model, size in sizes.items())
    # Where ranks share cores steps are long by themselves.
    half = tuple(replace(training, passes=max(1, training.passes // 2)) for training in plain)

    def faults(healthy: tuple[Training, ...], cause: str, strength: str, **changes: Any) -> tuple[Training, ...]:
        return tuple(replace(training, cause=cause, strength=strength, **changes) for training in healthy)

    def sleepers(cause: str, **changes: Any) -> Iterator[Training]:
        for strength in strengths:
            for one in faults(plain, cause, strength, **changes):
                yield replace(one, sleep=round(SLEEPS[strength] * sizes[one.model]["step"], 6))

    two = (*plain, *sleepers("stragglers"), *sleepers("input", data="bench_causes:sluggish"))
    both = tuple(dict.fromkeys((*plain, *half)))
    made = [World(engine=engine, workers=1, trainings=both) for engine in ("horovod", IDEAL)]
    made += [World(engine=IDEAL, workers=2, trainings=plain), World(engine="horovod", workers=2, trainings=two)]
    step = max(size["step"] for size in sizes.values())
    for strength in strengths:
        slow = faults(plain, "communication", strength)
        made.append(World(engine="horovod", workers=2, cycle=1000 * CYCLES[strength] * step, trainings=slow))
        crowd, ranks = faults(half, "oversubscription", strength), CROWDS[strength] * cores
        made.append(World(engine=IDEAL, workers=ranks, trainings=half))
        made.append(World(engine="horovod", workers=ranks, trainings=crowd))
    return made


def run_world(world: World, repeat: int, kept: Kept) -> dict[Training, Run]:
    """Its trainings that are still to be run; those that fail are tried once more."""
    done = kept.done(repeat)
    left = [training for training in world.trainings if (training, world.point(training)) not in done]
    found: dict[Training, Run] = {}
    for _ in range(2):
        if left:
            found |= start_world(world, left, repeat)
            left = [training for training in left if found[training].problem]
            for training in left:
                print(f"  {world.point(training)} failed: {found[training].problem}", file=sys.stderr)
    return found


def start_world(world: World, trainings: list[Training], repeat: int) -> dict[Training, Run]:
    """One launch; each training's lines are in files of its own."""
    with tempfile.TemporaryDirectory(prefix="hvdkit-soak-") as name:
        folder = Path(name)
        todo = {
            "engine": world.engine,
            "ranks": world.workers,
            "trainings": [words_of(world, one) for one in trainings],
        }
        (folder / "todo.json").write_text(json.dumps(todo))
        for number in range(len(trainings)):
            (folder / f"barrier-{number}").mkdir()
        words = local_command(world.settings(trainings[0]), world.point(trainings[0]), "")
        words = [*words[: words.index("--") + 1], "python", str(LOCAL_TESTS / "bench_verdict_ranks.py"), name]
        load, began, clock = os.getloadavg()[0], time.time(), time.monotonic()
        problem = None
        try:
            with (folder / "log").open("wb") as log:
                code = run_command(words, local_environment(os.environ, folder / "state"), log, TIMEOUT)
            if code:
                problem = f"exit code {code}: {(folder / 'log').read_text(errors='replace')[-1000:]}"
        except HvdkitError as error:
            problem = str(error)
        taken = (time.monotonic() - clock) / len(trainings)
        facts = {"repeat": repeat, "warmup": WARMUP, "load_before": load, "began": began, "seconds": taken}
        return {
            training: read_run(folder, number, {"point": world.point(training), **facts}, problem)
            for number, training in enumerate(trainings)
        }


def words_of(world: World, training: Training) -> dict[str, Any]:
    """What the ranks are told of a training."""
    settings, point = world.settings(training), world.point(training)
    dozes, late = (training.sleep if training.cause == cause else 0.0 for cause in ("stragglers", "input"))
    images = BATCH * training.passes
    env = {"BENCH_DOZE": f"{dozes / training.passes:.9f}", "BENCH_SLUGGISH": f"{late / images:.12f}"}
    return {"words": train_words(settings, point), "env": env}


def read_run(folder: Path, number: int, facts: dict[str, Any], problem: str | None) -> Run:
    """A training that was done before its world failed counts."""
    logs = sorted(folder.glob(f"{number}-*.log"))
    try:
        run = Run(**facts, **read_log([line for log in logs for line in log.read_text().splitlines()], facts["point"]))
        _ = run.figures
    except HvdkitError as error:
        return Run(**facts, problem=problem or str(error))
    return run


def judge(training: Training, world: World, kept: Kept) -> Judgement:
    """The harness's own verdict. The healthy points count as measured with the case's data, since it has no others."""
    alone = replace(training, cause=None, strength=HEALTHY, data="synthetic", sleep=0.0)
    counts = {1, world.workers}
    runs = [
        replace(run, point=replace(run.point, data=training.data))
        for one, run in kept.runs
        if (one == training and run.point.workers == world.workers and run.point.engine == "horovod")
        or (one == alone and run.point.workers in counts and (run.point.engine == IDEAL or run.point.workers == 1))
    ]
    results = Results(settings=world.settings(training), environment=environment(), created="", runs=runs)
    return diagnose(results).judgements[0]


def off_by_hand(training: Training, kept: Kept) -> Estimate | None:
    """Efficiency over that computed by hand, in each round: the healthy one x step / (step + sleep)."""

    def rounds(wanted: Training) -> dict[int, Run]:
        point = Point(data="synthetic", engine="horovod", workers=2)
        return {run.repeat: run for one, run in kept.runs if one == wanted and run.point == point and not run.problem}

    healthy = rounds(replace(training, cause=None, strength=HEALTHY, sleep=0.0))
    ratios = []
    for repeat, run in rounds(training).items():
        if repeat in healthy:
            step = healthy[repeat].figures.step_seconds
            fell = run.figures.images_per_second / healthy[repeat].figures.images_per_second
            ratios.append(fell / (step / (step + training.sleep)))
    return geometric_mean(ratios)


def passed(training: Training, judgement: Judgement, off: Estimate | None) -> bool:
    causes = [finding.cause for finding in judgement.limits]
    if training.cause is None:
        return judgement.workers > 0 and not causes  # 0: too few runs for a verdict
    if causes[:1] != [training.cause]:
        return False
    if training.cause == "stragglers":
        evidence = judgement.limits[0].evidence
        right = any(sentence.startswith("rank 1 on ") for sentence in evidence)
        return right and off is not None and abs(off.value - 1) <= TOLERANCE
    return True


def judge_all(made: list[World], kept: Kept) -> list[dict[str, Any]]:
    """Every case, with what was said of it."""
    cases = []
    for world in made:
        if world.engine == IDEAL or world.workers == 1:
            continue
        for training in world.trainings:
            judgement = judge(training, world, kept)
            off = off_by_hand(training, kept) if training.cause == "stragglers" else None
            case = {
                "model": training.model,
                "cause": training.cause,
                "strength": training.strength,
                "workers": world.workers,
                "passed": passed(training, judgement, off),
                "efficiency": judgement.efficiency and judgement.efficiency.as_json(),
                "limits": [{"cause": one.cause, "share": one.share.as_json()} for one in judgement.limits],
                "text": judgement.text,
            }
            if off is not None:
                case |= {"sleep_seconds": training.sleep, "efficiency_over_by_hand": off.as_json()}
            cases.append(case)
    return cases


def find_sizes(models: Collection[str], kept: Kept) -> None:
    """How many passes make a step of the wanted length, from a first run of each model alone."""
    missing = tuple(Training(model=model) for model in models if model not in kept.sizes)
    if not missing:
        return
    first = start_world(World(engine="horovod", workers=1, steps=4 * STEPS, trainings=missing), list(missing), 0)
    for training, run in first.items():
        if run.problem:
            raise SystemExit(f"the first run of {training.model} failed: {run.problem}")
        passes = max(1, round(STEP / run.figures.step_seconds))
        kept.sizes[training.model] = {"passes": passes, "step": passes * run.figures.step_seconds}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=FEWEST_REPEATS)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--quick", action="store_true", help="only the strong faults, of the first model")
    parser.add_argument("--anew", action="store_true", help="forget the runs of an earlier sitting")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    strengths = ("strong",) if arguments.quick else tuple(SLEEPS)
    models = arguments.models[:1] if arguments.quick else arguments.models
    os.environ["PYTHONPATH"] = f"{LOCAL_TESTS}:{HERE.parent.parent}"
    file = arguments.output and arguments.output.with_suffix(".runs.json")
    if file and arguments.anew:
        file.unlink(missing_ok=True)
    kept = Kept.at(file)
    began = time.monotonic()
    find_sizes(models, kept)
    made = worlds({model: kept.sizes[model] for model in models}, strengths, usable_cores())
    for repeat in range(arguments.rounds):
        for world in made if repeat % 2 == 0 else reversed(made):
            kept.add(run_world(world, repeat, kept))
        minutes = (time.monotonic() - began) / 60
        print(f"round {repeat + 1} of {arguments.rounds} after {minutes:.1f} minutes", file=sys.stderr)
    record: dict[str, Any] = {"version": 1, "check": "bench_verdicts", "environment": environment()}
    record |= {"sizes": kept.sizes, "rounds": arguments.rounds, "cases": judge_all(made, kept)}
    record["minutes"] = round((time.monotonic() - began) / 60, 1)  # of this sitting
    for case in record["cases"]:
        said = "ok    " if case["passed"] else "WRONG "
        off = case.get("efficiency_over_by_hand")
        hand = f" Efficiency is {off['value']:.3f} of that by hand." if off else ""
        print(f"{said} {case['model']} {case['cause']} {case['strength']}: {case['text']}{hand}")
    wrong = sum(not case["passed"] for case in record["cases"])
    print(f"{len(record['cases']) - wrong} of {len(record['cases'])} verdicts are right")
    if arguments.output:
        arguments.output.write_text(json.dumps(record, indent=1) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
