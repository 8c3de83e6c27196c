"""`hvdkit bench` as a user types it: help, mistakes, and nothing heavy imported before it is needed."""

import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from hvdkit.cli import cli
from hvdkit.cli.bench import COMMANDS
from hvdkit.errors import HvdkitError


def hvdkit(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hvdkit", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=cwd)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example(name: str) -> None:
    result = CliRunner().invoke(cli, ["bench", name, "--help"])
    assert result.exit_code == 0, result.output
    assert f"hvdkit bench {name}" in result.output.partition("Example")[2]


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom hvdkit.cli import cli\n"
        "for words in (['bench', '--help'], ['bench', 'scaling', '--help'], ['bench', 'compare', '--help']):\n"
        "    cli(words, standalone_mode=False)\n"
        "print('HEAVY', sorted({'torch', 'matplotlib', 'numpy', 'rich', 'kubernetes'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert result.stdout.splitlines()[-1] == "HEAVY []", result.stdout + result.stderr


def test_a_typo_gets_the_nearest_command() -> None:
    result = hvdkit("bench", "scalings")
    assert result.returncode == 2 and "Did you mean 'scaling'?" in result.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--workers", "two"], "numbers of workers with commas between"),
        (["--workers", "1,0"], "numbers of workers with commas between"),
        (["--workers", "2", "--repeats", "3"], "--repeats: 3 runs"),
        (["--workers", "2", "--engines", "mxnet"], "--engines: there is no 'mxnet'"),
        (["--workers", "2", "--engines", ""], "--engines: the list is empty"),
        (["--workers", "2", "--data", " , "], "--data: the list is empty"),
        (["--workers", "2", "--backend", "mpijob"], "--threads: "),
        (["--workers", "2,3", "--mode", "strong", "--batch-size", "64"], "--batch-size: "),
    ],
)
def test_mistakes_are_one_sentence(words: list[str], said: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["bench", "scaling", *words, "--output", str(tmp_path)], standalone_mode=False)
    assert isinstance(result.exception, HvdkitError | click.UsageError)
    message = getattr(result.exception, "message", str(result.exception))
    assert said in message and result.exception.exit_code == 2
    assert not list(tmp_path.iterdir())


def test_a_report_of_nothing_is_a_sentence_and_no_traceback(tmp_path: Path) -> None:
    result = hvdkit("bench", "report", "missing.json", cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr == "hvdkit: missing.json cannot be read: No such file or directory.\n"
