"""What a check of `hvdkit doctor` finds."""

import subprocess
from dataclasses import dataclass

OK, WARNING, FAILURE = "ok", "warning", "failure"


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    name: str
    """What was looked at."""

    status: str
    """ok, warning or failure."""

    text: str
    """What was found, in one line."""

    way_out: str = ""
    """What to do about it; empty when there is nothing to do."""


def ask(*command: str, seconds: float, environ: dict[str, str] | None = None) -> tuple[int | None, str, str]:
    """Run a program: its exit code (None when it took too long or cannot be started), stdout and stderr."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=seconds, env=environ, check=False
        )
    except subprocess.TimeoutExpired:
        return None, "", f"no answer within {seconds:g} s"
    except OSError as error:
        return None, "", f"{command[0]} cannot be started: {error.strerror}"
    return done.returncode, done.stdout, done.stderr


def last_line(text: str, otherwise: str) -> str:
    """The last line with something in it, which is where programs and tracebacks say what is wrong."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else otherwise


def how_it_ended(code: int | None) -> str:
    """An exit code in words."""
    if code is None:
        return "it did not end"
    return f"signal {-code} ended it" if code < 0 else f"it left with exit code {code}"
