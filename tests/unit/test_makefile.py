"""The Makefile, without running what it says."""

import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


def recipe(*words: str) -> list[str]:
    """The lines that make would run, in order, in a clone that has set up nothing yet."""
    command = ["make", "--dry-run", "--no-print-directory", "VENV=not-there", *words]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("target", ["e2e", "e2e-cluster", "images", "soak"])
def test_who_is_not_root_is_told_before_anything_is_made(target: str) -> None:
    first, *others = recipe(target)
    assert first.startswith('[ "$(id -u)" = 0 ] || { echo "make: ') and first.endswith("exit 3; }")
    assert others and not any("id -u" in line for line in others)


@pytest.mark.parametrize("target", ["demo", "test", "lint", "bench"])
def test_what_needs_no_root_asks_for_none(target: str) -> None:
    assert not any("id -u" in line for line in recipe(target))


def test_soak_runs_every_long_check() -> None:
    lines = "\n".join(recipe("soak"))
    missing = [path.name for path in (REPOSITORY / "tests/soak").glob("*.py") if f"tests/soak/{path.name}" not in lines]
    assert not missing
