"""The worker's SSH sessions: what a shell makes of the environment file (tests/e2e/test_pod_ssh.py has real ones)."""

import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hvdkit.errors import EnvironmentProblem
from hvdkit.runtime import mpijob_ssh
from hvdkit.runtime.mpijob_worker import session_environment

NAMES = st.from_regex(r"\A[A-Z][A-Z0-9_]{0,8}\Z").map(lambda name: f"T_{name}")
VALUES = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=40)


@settings(max_examples=40, deadline=None)
@given(environ=st.dictionaries(NAMES, VALUES, max_size=4))
def test_a_shell_reads_back_every_value(environ: dict[str, str]) -> None:
    script = session_environment(environ) + "env -0"
    output = subprocess.run(["/bin/sh", "-c", script], capture_output=True, check=True).stdout
    seen = dict(entry.split("=", 1) for entry in output.decode().split("\0") if entry.startswith("T_"))
    assert seen == environ


def test_a_sessions_own_variables_stay_its_own() -> None:
    text = session_environment({"HOME": "/", "PATH": "/opt/bin", "BASH_FUNC_x%%": "() { :; }", "not a name": "1"})
    assert text == "export PATH=/opt/bin\n"


def test_a_missing_key_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HVDKIT_SSH_FOLDER", str(tmp_path))
    with pytest.raises(EnvironmentProblem, match="sshAuthMountPath"):
        mpijob_ssh.key_folder()
