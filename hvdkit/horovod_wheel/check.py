"""Reads what the installed Horovod can do, in a process of its own: a broken one may end the process."""

import importlib.metadata
import json
import subprocess
import sys
from dataclasses import asdict, dataclass

from hvdkit.errors import EnvironmentProblem, InputError
from hvdkit.horovod_wheel.relocate import FACTS_FILE

FEATURES = ("mpi", "gloo", "nccl", "cuda")
INSTALL = "run hvdkit horovod install"
TIMEOUT_SECONDS = 300
MARK = "hvdkit-check "

# Horovod's import prints and goes on when its library does not load, so the library is asked for by name. Looking for
# garbage in what torch has made, also in the end, would be a quarter of the time.
PROBE = f"""
import gc, json
gc.disable()
import torch
import horovod.torch.mpi_ops as ops
features = {{name: bool(getattr(ops, name + "_built")()) for name in {FEATURES!r}}}
print({MARK!r} + json.dumps({{"torch": torch.__version__, "features": features}}))
gc.freeze()
"""


@dataclass(frozen=True, kw_only=True)
class Installed:
    """An installed Horovod that loads."""

    version: str
    torch: str
    """The torch that is installed."""
    built_for_torch: str | None
    """The torch it was built for; None: not a wheel of ours, so nobody knows."""
    key: str | None
    """The target it was built for; None: not a wheel of ours."""
    features: dict[str, bool]

    def to_json(self) -> dict:
        """For machines."""
        return {"schema": 1, **asdict(self)}


def parse_requirements(text: str) -> list[str]:
    """`mpi,nccl` as a list; raises for a feature that does not exist."""
    wanted = [part.strip().lower() for part in text.split(",") if part.strip()]
    unknown = [name for name in wanted if name not in FEATURES]
    if unknown:
        raise InputError(f"--require names {', '.join(unknown)}, but knows only {', '.join(FEATURES)}")
    return wanted


def installed_facts() -> dict | None:
    """What our wheel says of itself, without loading it; None when Horovod is not installed or not our wheel."""
    try:
        text = importlib.metadata.distribution("horovod").read_text(FACTS_FILE)
        return json.loads(text) if text else None
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return None


def check() -> Installed:
    """What the installed Horovod can do; raises when there is none or when it does not load."""
    try:
        version = importlib.metadata.version("horovod")
    except importlib.metadata.PackageNotFoundError:
        raise EnvironmentProblem(f"Horovod is not installed for {sys.executable}: {INSTALL}") from None
    facts = installed_facts() or {}
    try:
        probe = subprocess.run(
            [sys.executable, "-c", PROBE], capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise EnvironmentProblem(f"Horovod {version} did not load within {TIMEOUT_SECONDS} s: {INSTALL}") from None
    answers = [line for line in probe.stdout.splitlines() if line.startswith(MARK)]
    if probe.returncode != 0 or not answers:
        raise EnvironmentProblem(f"Horovod {version} does not load ({_reason(facts, probe)}): {INSTALL}")
    answer = json.loads(answers[-1].removeprefix(MARK))
    return Installed(
        version=version,
        torch=answer["torch"],
        built_for_torch=facts.get("torch"),
        key=facts.get("key"),
        features=answer["features"],
    )


def _reason(facts: dict, probe: subprocess.CompletedProcess) -> str:
    from hvdkit.horovod_wheel import target

    try:
        torch = target.read_torch().version
    except EnvironmentProblem as problem:
        return str(problem).partition(":")[0]
    if facts and facts["torch"] != torch:
        return f"it was built for torch {facts['torch']}, and torch {torch} is installed"
    if probe.returncode < 0:
        return f"it ended by signal {-probe.returncode}"
    lines = [line for line in probe.stderr.splitlines() if line.strip()]
    return lines[-1].strip() if lines else f"exit code {probe.returncode}"
