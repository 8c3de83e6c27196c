"""Does the verdict tell the truth? Real ranks with a fault of known kind and size, and healthy ones.

    python tests/soak/bench_verdicts.py --output benchmarks/results/bench-verdicts.json
    python tests/soak/bench_verdicts.py --quick                the strong faults of one model only

4 causes x 3 strengths x 2 models, about half an hour. In every round all cases of a model run one after the other, with
the healthy points that they are judged against. A case passes when its cause is the largest limit of those that the
healthy run of the same model does not have, and a straggler's rank is right.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hvdkit.bench.environment import environment
from hvdkit.bench.points import IDEAL, Point, SweepSettings
from hvdkit.bench.results import Results, Run
from hvdkit.bench.runners import LocalRunner
from hvdkit.bench.samples import Figures
from hvdkit.bench.sweep import run_once
from hvdkit.bench.verdict import Judgement, diagnose
from hvdkit.local.machine import usable_cores

LOCAL_TESTS = Path(__file__).resolve().parent.parent / "local"  # whose bench_causes.py has the faults
MODELS = ("bench_causes:small", "bench_causes:dense")
BATCH, STEPS, WARMUP = 256, 30, 6
# Of the healthy step: what is added to it.
SLEEPS = {"weak": 0.3, "middle": 0.6, "strong": 1.5}
CYCLES = {"weak": 1.5, "middle": 2.5, "strong": 4.0}  # Horovod's cycle: longer than a step, so that every step waits
CROWDS = {"weak": 2, "middle": 3, "strong": 4}  # ranks a core


@dataclass(frozen=True, kw_only=True)
class Case:
    """Two or more Horovod ranks with something wrong."""

    cause: str | None
    strength: str
    settings: SweepSettings
    workers: int
    data: str = "synthetic"


def settings(model: str, workers: int, **changes: Any) -> SweepSettings:
    return SweepSettings(
        workers=(1, workers), model=model, batch_size=BATCH, steps=STEPS, warmup_steps=WARMUP, threads=1, **changes
    )


def cases(model: str, step: float, cores: int, strengths: Collection[str]) -> list[Case]:
    """Faults of these strengths, sized by the healthy step of this machine."""
    two = settings(model, 2)
    made = [Case(cause=None, strength="healthy", settings=two, workers=2)]
    for strength, size in SLEEPS.items():
        doze = replace(two, env=(f"BENCH_DOZE={size * step:.6f}",))
        made.append(Case(cause="stragglers", strength=strength, settings=doze, workers=2))
        data = "bench_causes:sluggish"
        late = (f"BENCH_SLUGGISH={size * step / BATCH:.9f}",)
        slow = replace(two, env=late, data=(data,), train_args=("--loader-workers", "0"))
        made.append(Case(cause="input", strength=strength, settings=slow, workers=2, data=data))
    for strength, size in CYCLES.items():
        rare = replace(two, env=(f"HOROVOD_CYCLE_TIME={1000 * size * step:.1f}",))
        made.append(Case(cause="communication", strength=strength, settings=rare, workers=2))
    for strength, ranks in CROWDS.items():
        workers = ranks * cores
        made.append(
            Case(cause="oversubscription", strength=strength, settings=settings(model, workers), workers=workers)
        )
    return [case for case in made if case.cause is None or case.strength in strengths]


def run(spec: SweepSettings, point: Point, repeat: int, logs: Path) -> Run:
    done = run_once(spec, point, repeat, LocalRunner(), logs, timeout=300)
    if done.problem:
        print(f"  {point} failed: {done.problem}", file=sys.stderr)
    return done


def measure(model: str, rounds: int, strengths: Collection[str], logs: Path) -> list[tuple[Case, Judgement]]:
    """Every case of a model, judged."""
    cores, facts = usable_cores(), environment()
    plain = settings(model, 2)
    first: Figures = run(plain, Point(data="synthetic", engine="horovod", workers=1), 0, logs).figures
    todo = cases(model, first.step_seconds, cores, strengths)
    shared: list[Run] = []
    own: dict[int, list[Run]] = {number: [] for number in range(len(todo))}
    for repeat in range(rounds):
        print(f"{model}: round {repeat + 1} of {rounds}", file=sys.stderr)
        for workers in sorted({1, *(case.workers for case in todo)}):
            point = Point(data="synthetic", engine=IDEAL, workers=workers)
            shared.append(run(settings(model, max(2, workers)), point, repeat, logs))
        shared.append(run(plain, Point(data="synthetic", engine="horovod", workers=1), repeat, logs))
        for number, case in enumerate(todo):
            point = Point(data=case.data, engine="horovod", workers=case.workers)
            own[number].append(run(case.settings, point, repeat, logs))
    return [(case, judge(case, [*shared, *own[number]], facts)) for number, case in enumerate(todo)]


def judge(case: Case, runs: list[Run], facts: dict[str, Any]) -> Judgement:
    """The harness's own verdict. The healthy points count as measured with the case's data, since it has no others."""
    renamed = [replace(one, point=replace(one.point, data=case.data)) for one in runs]
    spec = replace(case.settings, data=(case.data,))
    kept = [one for one in renamed if one.point.workers in spec.workers]
    return diagnose(Results(settings=spec, environment=facts, created="", runs=kept)).judgements[0]


def passed(case: Case, judgement: Judgement, healthy: set[str]) -> bool:
    named = [finding.cause for finding in judgement.limits]
    if case.cause is None:
        return not {"communication", "input", "stragglers", "oversubscription"} & set(named)
    new = [cause for cause in named if cause not in healthy]
    if case.cause == "stragglers" and new[:1] == ["stragglers"]:
        evidence = next(finding for finding in judgement.limits if finding.cause == "stragglers").evidence
        return any(sentence.startswith("rank 1 on ") for sentence in evidence)
    return new[:1] == [case.cause]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--quick", action="store_true", help="only the strong faults, of the first model")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    strengths = ("strong",) if arguments.quick else tuple(SLEEPS)
    models = arguments.models[:1] if arguments.quick else arguments.models
    os.environ["PYTHONPATH"] = f"{LOCAL_TESTS}:{LOCAL_TESTS.parent.parent}"
    record: dict[str, Any] = {"version": 1, "check": "bench_verdicts", "environment": environment(), "cases": []}
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="hvdkit-soak-") as logs:
        for model in models:
            judged = measure(model, arguments.rounds, strengths, Path(logs))
            healthy = {finding.cause for finding in judged[0][1].limits}
            for case, judgement in judged:
                right = passed(case, judgement, healthy)
                found = [{"cause": one.cause, "share": one.share.as_json()} for one in judgement.limits]
                record["cases"].append(
                    {
                        "model": model,
                        "cause": case.cause,
                        "strength": case.strength,
                        "passed": right,
                        "limits": found,
                        "text": judgement.text,
                    }
                )
                print(f"{'ok    ' if right else 'WRONG '} {model} {case.cause} {case.strength}: {judgement.text}")
    wrong = sum(not case["passed"] for case in record["cases"])
    record["minutes"] = round((time.monotonic() - began) / 60, 1)
    print(f"{len(record['cases']) - wrong} of {len(record['cases'])} verdicts are right")
    if arguments.output:
        arguments.output.write_text(json.dumps(record, indent=1) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
