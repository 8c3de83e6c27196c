"""What README.md and hvdkit/jobs/README.md show is real: the hvdkit.yaml loads and renders, the backend works."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hvdkit.checks.validate import validate_objects
from hvdkit.config.file import read_file
from hvdkit.config.settings import make_spec
from hvdkit.jobs import render

ROOT = Path(__file__).parents[2]


def blocks(document: str, language: str) -> list[str]:
    """The code blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / document).read_text(), re.DOTALL | re.MULTILINE)


def python(folder: Path, *words: str, text: str = "", **variables: str) -> str:
    """What Python prints in a folder; the settings of whoever runs the tests do not count."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("HVDKIT_")}
    command, env = [sys.executable, *words], clean | variables
    done = subprocess.run(command, cwd=folder, env=env, input=text, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def settings_file(tmp_path: Path) -> Path:
    """The hvdkit.yaml of the README."""
    (block,) = [block for block in blocks("README.md", "yaml") if block.startswith("version: 1\n")]
    file = tmp_path / "hvdkit.yaml"
    file.write_text(block)
    return file


@pytest.mark.parametrize(
    ("profile", "backend", "ranks"), [(None, "mpijob", 2), ("gpu", "mpijob", 32), ("ddp", "indexed-job", 2)]
)
def test_each_profile_of_the_example_renders_to_valid_objects(
    settings_file: Path, profile: str | None, backend: str, ranks: int
) -> None:
    spec = make_spec(read_file(settings_file, profile), name="train")
    assert (spec.backend, spec.world_size) == (backend, ranks)
    assert validate_objects(render(spec), pod_security="restricted") == []


def test_the_readme_shows_what_config_prints(settings_file: Path) -> None:
    shown = r"^    \$ (HVDKIT_\w+)=(\S+) hvdkit (config .*)\n((?:    .*\n)+?)    …$"
    name, value, words, lines = re.search(shown, (ROOT / "README.md").read_text(), re.MULTILINE).groups()
    printed = python(settings_file.parent, "-m", "hvdkit", *words.split(), **{name: value}).splitlines()
    assert {line.strip() for line in lines.splitlines()} <= set(printed)


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", "hvdkit/jobs/README.md", "tests/e2e/README.md"])
def test_links_to_files_lead_somewhere(document: str) -> None:
    targets = re.findall(r"\]\((?!https?://|#)([^)#]+)", (ROOT / document).read_text())
    assert [target for target in targets if not (ROOT / document).parent.joinpath(target).exists()] == []


def test_a_backend_is_one_file_and_one_line(tmp_path: Path) -> None:
    """The example of hvdkit/jobs/README.md in a copy of the package, used from the command line."""
    module, line = blocks("hvdkit/jobs/README.md", "python")
    copy = tmp_path / "hvdkit"
    shutil.copytree(ROOT / "hvdkit", copy, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "jobs" / "pod.py").write_text(module)
    table = copy / "jobs" / "__init__.py"
    before, opening, after = table.read_text().partition("MODULES = {\n")
    assert opening
    table.write_text(before + opening + line + after)

    words = ("--backend=pod", "--image=example.org/train:1", "--nfs=10.0.0.5:/exports/data:/data", "--format=json")
    printed = python(tmp_path, "-m", "hvdkit", "render", *words, "--", "python", "train.py", PYTHONPATH=str(tmp_path))
    (pod,) = json.loads(printed)["items"]
    assert pod["kind"] == "Pod"
    assert validate_objects([pod], pod_security="baseline") == []

    live = json.dumps([pod | {"status": {"phase": "Running"}}])
    state = "import sys, json; from hvdkit.jobs import state_of; print(state_of('pod', json.load(sys.stdin)).phase)"
    assert python(tmp_path, "-c", state, text=live, PYTHONPATH=str(tmp_path)) == "Running\n"
