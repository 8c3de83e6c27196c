"""What a job is made from: written on its objects, so that a run can be found again in the history of its code."""

import subprocess

from hvdkit import __version__
from hvdkit.config.settings import DEFAULT, Setting


def provenance() -> list[Setting]:
    """The version of hvdkit and, in a git checkout, the commit. `provenance: {}` in hvdkit.yaml leaves both out."""
    known = {"version": __version__, "git-commit": git_commit()}
    return [Setting(path=("provenance", key), value=value, source=DEFAULT) for key, value in known.items() if value]


def git_commit() -> str:
    """The commit that is checked out in this folder; empty without git, a checkout or a first commit."""
    command = ["git", "rev-parse", "--quiet", "--verify", "HEAD"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=2)
    except (OSError, subprocess.TimeoutExpired):  # no git, or a folder on a server that does not answer
        return ""
    return found.stdout.strip() if found.returncode == 0 else ""
