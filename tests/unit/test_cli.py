"""The command line as a whole: light, complete, and polite."""

import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from hvdkit.cli import COMMANDS, cli


def hvdkit(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "hvdkit", *arguments], capture_output=True, text=True, timeout=120)


HEAVY = {"torch", "kubernetes", "horovod", "numpy", "rich", "yaml"}  # render writes YAML, so there it may be
LIGHT = (
    ["--help"],
    ["launch", "--workers", "2", "--dry-run", "--backend", "local"],
    ["render", "--backend", "mpijob", "--workers", "2"],
)


@pytest.mark.parametrize("arguments", LIGHT, ids=lambda arguments: arguments[0])
def test_light_commands_import_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys\nfrom hvdkit.cli import cli\n"
        f"try: cli({arguments!r}, standalone_mode=False)\nexcept SystemExit: pass\n"
        f"heavy = {HEAVY - ({'yaml'} if arguments[0] == 'render' else set())!r} & set(sys.modules)\n"
        "print('HEAVY', sorted(heavy))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert result.stdout.splitlines()[-1] == "HEAVY []", result.stdout + result.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example(name: str) -> None:
    result = CliRunner().invoke(cli, [name, "--help"])
    assert result.exit_code == 0
    assert "Example" in result.output and f"hvdkit {name}" in result.output.partition("Example")[2]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_knows_every_file(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert isinstance(command, click.Command)


def test_a_typo_gets_the_nearest_command() -> None:
    result = hvdkit("lunch")
    assert result.returncode == 2
    assert "Did you mean 'launch'?" in result.stderr


def test_version() -> None:
    assert hvdkit("--version").stdout.startswith("hvdkit, version ")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_completes_commands(shell: str) -> None:
    script = hvdkit("completion", shell)
    assert script.returncode == 0 and "_HVDKIT_COMPLETE" in script.stdout


def test_bash_completion_offers_flags() -> None:
    environment = {"_HVDKIT_COMPLETE": "bash_complete", "COMP_WORDS": "hvdkit launch --wor", "COMP_CWORD": "2"}
    code = "import sys; sys.argv[0] = 'hvdkit'; from hvdkit.cli import main; main()"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=environment)
    assert "plain,--workers" in result.stdout
