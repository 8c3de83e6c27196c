"""An image of a user's own project on top of the worker's: their packages, then their code."""

from pathlib import Path

from hvdkit.images.builders import Build

DOCKERFILE = """\
FROM {base}
USER 0
{requirements}COPY --chown=1000:1000 . /workspace
USER 1000:1000
"""
# The constraints of the image hold torch and what Horovod was compiled against; another torch would break it.
REQUIREMENTS = """\
COPY requirements.txt /opt/hvdkit/share/hvdkit/user.txt
RUN --mount=type=cache,target=/root/.cache/pip \\
    pip install --constraint /opt/hvdkit/share/hvdkit/constraints.txt --requirement /opt/hvdkit/share/hvdkit/user.txt
"""
# What is no part of a program, where the project does not say so itself.
IGNORED = (".git", ".venv", "venv", "**/__pycache__", "**/*.pyc", ".pytest_cache", ".ruff_cache", ".mypy_cache", "runs")


def user_build(project: Path, *, image: str, base: str, folder: Path) -> Build:
    """What to tell a builder; `folder` takes the files that it reads."""
    dockerfile = folder / "Dockerfile"
    requirements = REQUIREMENTS if (project / "requirements.txt").is_file() else ""
    dockerfile.write_text(DOCKERFILE.format(base=base, requirements=requirements))
    own = [project / name for name in (".dockerignore", ".containerignore")]
    ignore = None
    if not any(path.is_file() for path in own):
        ignore = folder / "Dockerfile.dockerignore"
        ignore.write_text("".join(f"{line}\n" for line in IGNORED))
    return Build(dockerfile=dockerfile, context=project, names=(image,), ignore_file=ignore)
