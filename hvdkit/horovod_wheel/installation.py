"""Puts a built wheel into the running Python's environment."""

import subprocess
import sys
from pathlib import Path

from hvdkit.errors import EnvironmentProblem
from hvdkit.horovod_wheel import check
from hvdkit.horovod_wheel.target import Target


def working(target: Target) -> check.Installed | None:
    """The installed Horovod when it is exactly this target's wheel and loads."""
    if (check.installed_facts() or {}).get("key") != target.key:
        return None
    try:
        return check.check()
    except EnvironmentProblem:
        return None  # its files are damaged: installing it again mends that


def install(wheel: Path) -> None:
    """Install the wheel over whatever Horovod there is, then what it requires and is missing."""
    # Two steps: another build of the same version must replace the old one, but its requirements must not be touched.
    for options in (["--force-reinstall", "--no-deps"], []):
        pip = [sys.executable, "-m", "pip", "install", "--no-input", "--disable-pip-version-check", *options]
        done = subprocess.run([*pip, str(wheel)], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            errors = [line for line in done.stderr.splitlines() if line.lower().startswith("error: ")]
            reason = errors[0].partition(": ")[2] if errors else f"exit code {done.returncode}"
            raise EnvironmentProblem(f"pip could not install {wheel.name}: {reason}")
