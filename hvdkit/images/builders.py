"""The programs that build images: docker, podman or buildah, whichever works here."""

import re
import shutil
import subprocess
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from hvdkit.errors import EnvironmentProblem, HvdkitError
from hvdkit.horovod_wheel.commands import Log, run
from hvdkit.horovod_wheel.progress import Progress

# Asks the part that does the work: docker's client is often there without a daemon.
PROBES = {
    "docker": ("docker", "version", "--format", "{{.Server.Version}}"),
    "podman": ("podman", "version"),
    "buildah": ("buildah", "version"),
}
CONTEXT_FLAG = "--build-context"  # which hands in the wheels; docker lacks it before 23, and without buildx
SHOWN_LINES = 25
# "[2/3] STEP 4/9: RUN …" of podman and buildah, "#12 [worker 3/8] RUN …" of docker
_STEP = re.compile(r"^(?:\[\d+/\d+\] )?STEP (?P<a>\d+/\d+: .*)|^#\d+ \[(?P<b>[^\]]+\] .*)")


@dataclass(frozen=True, kw_only=True)
class Build:
    """One image to build."""

    dockerfile: Path
    context: Path
    names: tuple[str, ...]
    """All names it gets; the first one is what we call it."""
    target: str | None = None
    arguments: dict[str, str] = field(default_factory=dict)
    contexts: dict[str, Path] = field(default_factory=dict)
    """Further folders that the Dockerfile copies from, by the name it calls them."""
    ignore_file: Path | None = None
    """Instead of the context's .dockerignore; docker finds it by its name, DOCKERFILE.dockerignore."""


def find(wanted: str | None = None) -> str:
    """The builder asked for, or the first that works."""
    problems = {}
    for name in [wanted] if wanted else PROBES:
        problem = _problem_with(name)
        if problem is None:
            return name
        problems[name] = problem
    if wanted:
        raise EnvironmentProblem(f"--builder {wanted} cannot be used: {problems[wanted]}.")
    found = "; ".join(f"{name}: {problem}" for name, problem in problems.items())
    raise EnvironmentProblem(f"no program that builds images works here ({found}); install docker, podman or buildah.")


def _problem_with(name: str) -> str | None:
    if shutil.which(name) is None:
        return "not installed"
    try:
        answer = _ask(*PROBES[name])
        if answer.returncode == 0:
            helped = _ask(name, "build", "--help")
            return None if CONTEXT_FLAG in helped.stdout else f"it is too old, its build has no {CONTEXT_FLAG}"
    except subprocess.TimeoutExpired:
        return "it does not answer"
    said = (answer.stderr or answer.stdout).strip().splitlines()
    return said[-1].rstrip(".") if said else f"exit code {answer.returncode}"


def _ask(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)


def build_command(builder: str, build: Build, further: tuple[str, ...] = ()) -> list[str]:
    """The command line that builds an image; `further` words go before the context, where they win."""
    command = [builder, "build", "--file", str(build.dockerfile)]
    if builder == "docker":
        command += ["--progress", "plain"]
    else:
        # Layers for the next build, which buildah keeps only when told; nothing of a step that failed.
        command += ["--layers", "--force-rm"]
        if build.ignore_file:
            command += ["--ignorefile", str(build.ignore_file)]
    if build.target:
        command += ["--target", build.target]
    for name in build.names:
        command += ["--tag", name]
    for name, value in build.arguments.items():
        command += ["--build-arg", f"{name}={value}"]
    for name, folder in build.contexts.items():
        command += ["--build-context", f"{name}={folder}"]
    return [*command, *further, str(build.context)]


def push_command(builder: str, name: str) -> list[str]:
    """The command line that sends an image to the registry in its name."""
    return [builder, "push", name]


def run_steps(what: str, command: list[str], log_path: Path, *, verbose: bool = False) -> None:
    """Run a builder with progress; on failure show the end of its output, and keep all of it."""
    log_path.parent.mkdir(parents=True, exist_ok=True)
    log = Log(log_path)
    tail: deque[str] = deque(maxlen=SHOWN_LINES)
    with Progress() as progress:
        progress.step(what)

        def on_line(line: str) -> None:
            tail.append(line.rstrip())
            if verbose:
                progress.say(line.rstrip())
            if found := _STEP.match(line):
                progress.step(_one_line(f"{what}: {found['a'] or found['b']}"))

        try:
            code = run(command, log=log, on_line=on_line, on_tick=progress.tick)
        finally:
            log.close()
        if code != 0:
            if not verbose:
                progress.say("\n".join(tail))
            raise HvdkitError(f"{what} failed: {command[0]} ended with code {code}; the full log is {log_path}")


def _one_line(text: str, width: int = 110) -> str:
    words = " ".join(text.split())
    return words if len(words) <= width else f"{words[: width - 1]}…"
