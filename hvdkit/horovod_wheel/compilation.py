"""Compiles the changed source into a wheel, with as many jobs as cores and memory allow."""

import os
import re
import shutil
import sys
from pathlib import Path

from hvdkit.errors import EnvironmentProblem, HvdkitError
from hvdkit.horovod_wheel import changes
from hvdkit.horovod_wheel.commands import Log, run
from hvdkit.horovod_wheel.progress import Progress
from hvdkit.horovod_wheel.target import Target

BYTES_PER_JOB = 2 << 30  # the two files that include all of torch take 1.5 to 2 GB each
COMPILERS = {"CXX": ["c++", "g++", "clang++"], "CC": ["cc", "gcc", "clang"]}
NINJA_STEP = re.compile(r"\[(\d+)/(\d+)\] ")


def find_compiler(variable: str) -> tuple[list[str], list[str]]:
    """The words that start a compiler, none when there is none, and the programs that were looked for.

    `CXX` or `CC` may hold further words, as in "ccache g++"; CMake reads them so as well.
    """
    program, *words = (os.environ.get(variable) or "").split() or [""]
    wanted = [program] if program else COMPILERS[variable]
    found = next(filter(None, map(shutil.which, wanted)), None)
    return ([found, *words] if found else []), wanted


def require_compiler() -> None:
    """Raise when there is no C++ or no C compiler (the bundled Gloo asks CMake for both)."""
    for variable, language in (("CXX", "C++"), ("CC", "C")):
        command, wanted = find_compiler(variable)
        if not command:
            raise EnvironmentProblem(
                f"no {language} compiler is on PATH (looked for {', '.join(wanted)}): "
                "install one, such as g++ from Debian's or Ubuntu's build-essential"
            )


def compile_wheel(
    source: Path, output: Path, target: Target, env: dict[str, str], log: Log, progress: Progress, verbose: bool
) -> Path:
    """The wheel as Horovod's setup.py makes it."""
    env = target.open_mpi.environment(env) | changes.BUILD_ENVIRONMENT
    env |= {
        "CMAKE_TOOLCHAIN_FILE": str(changes.TOOLCHAIN_FILE),
        "HVDKIT_CXX_STANDARD": str(target.torch.cxx_standard),
        "HOROVOD_BUILD_ARCH_FLAGS": " ".join(target.cpu_flags),
        "HOROVOD_LOCAL_VERSION": target.local_version,
        "CMAKE_BUILD_PARALLEL_LEVEL": str(jobs()),
        "MAKEFLAGS": " ",  # set, but to nothing: else setup.py hands make's -j8 to ninja
        "LC_ALL": "C",  # the compiler's errors are looked for in the log
    }

    def on_line(line: str) -> None:
        if verbose:
            progress.say(line.rstrip())
        if step := NINJA_STEP.match(line):
            if step[1] == "1":
                progress.step("compiling")
            progress.count(int(step[1]), int(step[2]))

    # Quiet, because setup.py would otherwise pass make's VERBOSE=1 to ninja, which takes it for a target.
    command = [sys.executable, "setup.py", "--quiet", "bdist_wheel", "--dist-dir", str(output)]
    code = run(command, log=log, env=env, cwd=source, on_line=on_line, on_tick=progress.tick)
    wheels = list(output.glob("*.whl"))
    if code == 0 and wheels:
        return wheels[0]
    log.require_room("compiling")
    reason = log.first_error() or f"setup.py ended with code {code}"
    raise HvdkitError(f"Horovod did not compile ({reason}): the full log is {log.path}")


def jobs() -> int:
    """How many compilers may run at once."""
    cores = len(os.sched_getaffinity(0))
    memory = _free_memory()
    return cores if memory is None else max(1, min(cores, memory // BYTES_PER_JOB))


def _free_memory() -> int | None:
    """Bytes that the build may take: what the machine has left, or the container's limit where that is less."""
    amounts = []
    try:
        meminfo = Path("/proc/meminfo").read_text()
        amounts.append(int(re.search(r"MemAvailable:\s*(\d+) kB", meminfo)[1]) * 1024)
    except (OSError, TypeError):
        pass
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            amounts.append(int(Path(limit).read_text()))
        except (OSError, ValueError):
            continue  # another cgroup version, or "max"
    return min(amounts, default=None)
