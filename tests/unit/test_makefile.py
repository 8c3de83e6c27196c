"""The Makefile, without running what it says, but for its check of what must be there."""

import os
import shutil
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


# Stands for Pythons that this machine does not have, and ends the set-up where it would begin to install.
PYTHON = """#!/bin/sh
case "$*" in
    --version) echo "Python 3.9.2" ;;
    "-m venv"*) echo "all is there" && exit 9 ;;
    *{refused}*) exit 1 ;;
esac
"""
NOTHING = "what no command contains"


def set_up(folder: Path, *programs: str, refused: str = NOTHING, cxx: str | None = None) -> list[str]:
    """What `make demo` says on a machine with just these programs, up to where it would make the venv."""
    (folder / "bin").mkdir()
    (folder / "bin/sed").symlink_to(str(shutil.which("sed")))
    for name in programs:
        program = folder / "bin" / name
        program.write_text(PYTHON.format(refused=f'"{refused}"') if name == "python3" else "#!/bin/sh\n")
        program.chmod(0o755)
    env = {name: value for name, value in os.environ.items() if name not in ("CXX", "PYTHON", "VENV", "MAKEFLAGS")}
    env |= {"PATH": str(folder / "bin")} | ({"CXX": cxx} if cxx else {})
    command = [str(shutil.which("make")), "--no-print-directory", f"VENV={folder}/venv", "demo"]
    done = subprocess.run(command, cwd=REPOSITORY, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2, done.stderr  # make's own
    return [line for line in done.stdout.splitlines() if not line.startswith("python3 -m venv")]


@pytest.mark.parametrize(
    ("programs", "refused", "sentence"),
    [
        (["c++"], NOTHING, "make: python3 is missing; install Python 3.11 or newer."),
        (["c++", "python3"], "version_info", "make: Python 3.9.2 is too old for the pinned torch; set PYTHON="),
        (["c++", "python3"], "ensurepip", "make: Python's venv module is missing; install it (Debian: apt install"),
        (["python3"], NOTHING, "make: a C++ compiler is missing (no c++, g++ or clang++); install one (Debian: apt"),
    ],
)
def test_what_is_missing_is_named_in_one_sentence(
    tmp_path: Path, programs: list[str], refused: str, sentence: str
) -> None:
    (said,) = set_up(tmp_path, *programs, refused=refused)
    assert said.startswith(sentence)


@pytest.mark.parametrize(
    ("compiler", "cxx"), [("c++", None), ("g++", None), ("clang++", None), ("icpx", "icpx"), ("ccache", "ccache g++")]
)
def test_any_compiler_that_the_build_takes_will_do(tmp_path: Path, compiler: str, cxx: str | None) -> None:
    assert set_up(tmp_path, "python3", compiler, cxx=cxx) == ["all is there"]


def test_the_compiler_that_cxx_names_must_be_there(tmp_path: Path) -> None:
    (said,) = set_up(tmp_path, "python3", "g++", cxx="no-such-compiler g++")
    assert said.startswith("make: a C++ compiler is missing (no no-such-compiler); install one")


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
    # What it finds is checked and recorded, with CUDA too.
    assert "tests/soak/horovod_versions.py --cuda" in lines and "hvdkit horovod build" not in lines
