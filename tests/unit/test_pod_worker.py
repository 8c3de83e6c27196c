"""The worker's SSH configuration: what a shell makes of the environment file, and what sshd thinks of its own."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hvdkit.errors import EnvironmentProblem
from hvdkit.runtime import mpijob_ssh
from hvdkit.runtime.mpijob_worker import server_config, session_environment

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


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    words = ["ssh-keygen", "-q", "-t", "rsa", "-b", "2048", "-N", "", "-f", str(tmp_path / "id_rsa")]
    subprocess.run(words, check=True)
    (tmp_path / "id_rsa").chmod(0o644)  # as a secret is mounted
    (tmp_path / "authorized_keys").touch()
    monkeypatch.setenv("HVDKIT_SSH_FOLDER", str(tmp_path))
    return tmp_path


def test_sshd_accepts_the_configuration(keys: Path, tmp_path: Path) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    config = folder / "sshd_config"
    config.write_text(server_config(folder))
    program = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/usr/bin")
    assert program, "install openssh-server"
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # root's sshd refuses to start without it, and no service has made it
    found = subprocess.run([program, "-T", "-f", str(config)], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    effective = found.stdout.splitlines()
    for line in ("port 2222", "usepam no", "passwordauthentication no", "disableforwarding yes", "strictmodes no"):
        assert line in effective
    assert "authenticationmethods publickey" in effective
    assert (folder / "id_rsa").stat().st_mode & 0o777 == 0o600


def test_the_client_trusts_only_the_jobs_key(keys: Path, tmp_path: Path) -> None:
    folder = tmp_path / "client"
    folder.mkdir()
    config = mpijob_ssh.client_config(folder)
    found = subprocess.run(["ssh", "-G", "-F", str(config), "w-0.job"], capture_output=True, text=True, check=True)
    effective = found.stdout.splitlines()
    for line in ("port 2222", "stricthostkeychecking true", "batchmode yes", "identitiesonly yes"):
        assert line in effective
    key = (keys / "id_rsa.pub").read_text().split()[1]
    assert (folder / "known_hosts").read_text() == f"* ssh-rsa {key}\n"


def test_a_missing_key_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HVDKIT_SSH_FOLDER", str(tmp_path))
    with pytest.raises(EnvironmentProblem, match="sshAuthMountPath"):
        mpijob_ssh.key_folder()
