"""From a target to its wheel: out of the cache, or built, relocated, tried with two ranks, and then cached."""

import re
import resource
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hvdkit.errors import EnvironmentProblem
from hvdkit.horovod_wheel import cache, changes, compilation, cuda, relocate, smoke, tools
from hvdkit.horovod_wheel.commands import Log
from hvdkit.horovod_wheel.progress import Progress
from hvdkit.horovod_wheel.target import Target

CPU_BUILD_BYTES = 1 << 29  # 200 MB were used; the compiler's and pip's temporary files come on top
CUDA_BUILD_BYTES = 1 << 30  # and 300 MB for the wheels of the toolkit


def build(target: Target, *, force: bool = False, verbose: bool = False) -> tuple[cache.Entry, bool]:
    """The wheel of a target, and whether it came from the cache."""
    with Progress() as progress:
        if not force and (entry := cache.look_up(target.key, progress.say)):
            return entry, True
        waited = []

        def say_waiting(text: str) -> None:
            waited.append(text)
            progress.say(text)

        with cache.locked(target.key, say_waiting) as folder:
            # Whoever waited, waited for this wheel, also with --force.
            if (waited or not force) and (entry := cache.look_up(target.key, lambda _: None)):
                return entry, True
            with cache.explained_errors(), _ended_in_order():
                return _build(target, folder, progress, verbose), False


def _build(target: Target, folder: Path, progress: Progress, verbose: bool) -> cache.Entry:
    compilation.require_compiler()
    _require_plain_path(folder)
    _require_space(folder, CUDA_BUILD_BYTES if target.cuda else CPU_BUILD_BYTES)
    started, cpu_started = time.monotonic(), _cpu_seconds()
    log = Log(cache.root() / f"{target.key}.log")
    progress.say(f"building {target.describe()}; log: {log.path}")
    try:
        progress.step("fetching the build tools")
        clean = tools.clean_environment(folder / "tmp")
        env = tools.install(folder / "tools", target.torch.folder, clean, log)
        progress.step("fetching Horovod's source")
        source = tools.fetch_source(folder / "source", env, log)
        changes.apply(source)
        extra = {}
        if target.cuda:
            progress.step(f"preparing CUDA {target.cuda.version}")
            extra = cuda.prepare(target.cuda, folder / "cuda", clean, log)
        progress.step("configuring")
        raw = compilation.compile_wheel(source, folder / "compiled", target, env | extra, log, progress, verbose)
        progress.step("making the wheel relocatable")
        wheel = relocate.relocate(raw, target, env, folder / "relocate", log)
        smoke.smoke_test(wheel, target.open_mpi, env, folder / "smoke", log, progress)
    finally:
        log.close()
    facts = {
        "target": target.facts(),
        "python": sys.version.split()[0],
        "build_seconds": round(time.monotonic() - started),
        "build_cpu_seconds": round(_cpu_seconds() - cpu_started),
    }
    entry = cache.store(target.key, wheel, log.path, facts)
    log.path.unlink(missing_ok=True)  # it lies beside the wheel now
    return entry


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _require_plain_path(folder: Path) -> None:
    # Horovod's and Gloo's CMake files use their own path as a pattern and in unquoted linker flags.
    if not re.fullmatch(r"[\w./~-]+", str(folder)):
        raise EnvironmentProblem(
            f"Horovod does not compile below {cache.root()}, whose name has a space or a sign in it: "
            "set HVDKIT_CACHE_DIR to a folder with a plain name"
        )


def _require_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise EnvironmentProblem(
            f"the build needs {needed / (1 << 30):.1f} GiB in {cache.root()}, which has {free / (1 << 30):.1f} GiB "
            "free: set HVDKIT_CACHE_DIR to a folder with room"
        )


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """SIGTERM and a closed terminal end a build as Ctrl-C does: compilers ended, nothing half-made left."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, _frame: object) -> None:
        sys.exit(128 + number)

    before: dict[int, Callable | int | None] = {
        number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
