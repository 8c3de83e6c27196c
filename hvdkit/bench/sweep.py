"""Runs a sweep: every point several times, in rounds; each run is on the disk before the next one starts."""

import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from hvdkit.bench import result_file
from hvdkit.bench.environment import environment
from hvdkit.bench.points import Point, SweepSettings
from hvdkit.bench.results import Results, Run
from hvdkit.bench.runners import NoPointRuns, Runner, RunSpec
from hvdkit.bench.samples import BadRun, read_log
from hvdkit.errors import HvdkitError, InputError

GIVE_UP_AFTER = 2  # failures of a point without a success: its other runs would only cost time


class Watcher(Protocol):
    """Is told how a sweep goes on."""

    def before(self, point: Point, repeat: int, results: Results, left: list[tuple[int, Point]]) -> None:
        """A run starts; `left` are this one and those that come after it."""

    def after(self, run: Run, results: Results, left: list[tuple[int, Point]]) -> None:
        """It has ended."""


def open_results(settings: SweepSettings, folder: Path) -> Results:
    """The results in the folder, if they are of the same sweep; else a sweep that begins."""
    path = folder / result_file.FILE_NAME
    if not path.exists():
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        return Results(settings=settings, environment=environment(), created=now, name=folder.resolve().name)
    results = result_file.load(path)
    before, now = results.settings.as_json(), settings.as_json()
    changed = [name for name in now if now[name] != before[name] and name != "repeats"]  # more of the same is welcome
    if changed:
        name = changed[0]
        raise InputError(
            f"--output: {path} holds another sweep ({name.replace('_', '-')} {_text(before[name])}, now "
            f"{_text(now[name])}); name another folder, or delete it."
        )
    machine = environment()
    if settings.backend != "local":
        machine = results.environment  # a sweep on a cluster may go on from another desk
    for fact in ("processor", "cores", "versions"):
        if results.environment.get(fact) != machine[fact]:
            raise InputError(
                f"--output: {path} was begun with other {fact} ({_text(results.environment.get(fact))}, now "
                f"{_text(machine[fact])}); figures of both do not mix: name another folder."
            )
    results.settings = settings
    return results


def sweep(
    results: Results, runner: Runner, folder: Path, watcher: Watcher, *, timeout: float, rounds: int | None = None
) -> Results:
    """Run what is not there yet, or only so many rounds of it.

    A run that fails is recorded with its reason, and the sweep goes on.
    """
    path = folder / result_file.FILE_NAME
    tried: set[tuple[int, Point]] = set()
    begun: set[int] = set()
    while left := list(_left(results, tried)):
        repeat, point = left[0]
        begun.add(repeat)
        if rounds is not None and len(begun) > rounds:
            break
        tried.add(left[0])
        watcher.before(point, repeat, results, left)
        run = run_once(results.settings, point, repeat, runner, folder / "logs", timeout)
        results.add(run)
        result_file.save(results, path)
        watcher.after(run, results, left[1:])
    result_file.save(results, path)  # also when there was nothing to run: a newer hvdkit may judge better
    return results


def _left(results: Results, tried: set[tuple[int, Point]]) -> Iterator[tuple[int, Point]]:
    """What is still to be run, in order; what failed in an earlier sitting is tried again."""
    done = {(run.repeat, run.point) for run in results.runs if run.problem is None}
    failures = Counter(point for repeat, point in tried if (repeat, point) not in done)
    succeeded = {point for _, point in done}
    over = done | tried
    for repeat, point in results.settings.schedule():
        hopeless = failures[point] >= GIVE_UP_AFTER and point not in succeeded
        if (repeat, point) not in over and not hopeless:
            yield repeat, point


def run_once(settings: SweepSettings, point: Point, repeat: int, runner: Runner, logs: Path, timeout: float) -> Run:
    """One run of a point; a failure is a run with a problem."""
    log = logs / f"{point.engine}-{point.data.replace(':', '.')}-{point.workers}-round{repeat}.log"
    spec = RunSpec(point=point, settings=settings, repeat=repeat, log=log, timeout=timeout)
    load, began, clock = os.getloadavg()[0], time.time(), time.monotonic()
    facts = {"point": point, "repeat": repeat, "warmup": settings.warmup_steps, "load_before": load, "began": began}
    try:
        found = read_log(runner.run_point(spec), point)
        run = Run(seconds=time.monotonic() - clock, **facts, **found)
        _ = run.figures  # BadRun here, and not when a report is made
    except NoPointRuns:
        raise
    except (HvdkitError, BadRun) as error:
        return Run(seconds=time.monotonic() - clock, problem=str(error), **facts)
    log.unlink(missing_ok=True)  # all that matters is in the results; logs of failures stay
    return run


def _text(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
