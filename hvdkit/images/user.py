"""An image of a user's own project on top of the worker's: their packages, then their code."""

import re
from pathlib import Path

from hvdkit.images.builders import Build

COPY = "COPY --chown=1000:1000 . /workspace\n"
# The constraints of the image hold torch and what Horovod was compiled against; another torch would break it.
PIP = """\
RUN --mount=type=cache,target=/root/.cache/pip \\
    cd /workspace && pip install --constraint /opt/hvdkit/share/hvdkit/constraints.txt --requirement {file}
"""
# A layer of its own, so that a change of the code leaves it alone.
ALONE = "COPY requirements.txt /opt/hvdkit/share/hvdkit/user.txt\n"
# Lines of a requirements.txt that need further files of the project: -r base.txt, -e ., ./lib, wheels/x.whl …
_NEEDS_FILES = re.compile(
    r"""^\s*(
        -[rce] | --(requirement|constraint|editable)\b
        | (-f|--find-links)[\s=]*(?![/\s=]|\S+://)
        | (?!-)(?!\S*://)(\.|\S*/)
        | file: | \S+\s*@\s*(file:|\.|/)
    )""",
    re.MULTILINE | re.VERBOSE,
)
# What is no part of a program, where the project does not say so itself: caches, results, and secrets.
IGNORED = (".git", ".venv", "venv", "**/__pycache__", "**/*.pyc", ".pytest_cache", ".ruff_cache", ".mypy_cache", "runs")
SECRETS = (".env", ".netrc", "kubeconfig", ".kube", "*.pem", "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*")


def user_build(project: Path, *, image: str, base: str, folder: Path) -> Build:
    """What to tell a builder; `folder` takes the files that it reads."""
    dockerfile = folder / "Dockerfile"
    dockerfile.write_text(f"FROM {base}\nUSER 0\n{steps(project / 'requirements.txt')}USER 1000:1000\n")
    own = [project / name for name in (".dockerignore", ".containerignore")]
    ignore = None
    if not any(path.is_file() for path in own):
        ignore = folder / "Dockerfile.dockerignore"
        ignore.write_text("".join(f"{line}\n" for line in (*IGNORED, *(f"**/{name}" for name in SECRETS))))
    return Build(dockerfile=dockerfile, context=project, names=(image,), ignore_file=ignore)


def steps(requirements: Path) -> str:
    """The code and its packages: the packages first, unless their list needs other files of the project."""
    if not requirements.is_file():
        return COPY
    if needs_files(requirements.read_text(errors="replace")):
        return COPY + PIP.format(file="requirements.txt")
    return ALONE + PIP.format(file="/opt/hvdkit/share/hvdkit/user.txt") + COPY


def needs_files(text: str) -> bool:
    """Whether a requirements.txt refers to other files; one that is taken for such a list costs only time."""
    return _NEEDS_FILES.search(text) is not None
