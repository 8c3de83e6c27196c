"""The programs that no distribution packages at the right version, built with Go once and kept in the cache."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from .places import GO_MODULES, cache
from .problem import Problem

PROGRAMS = ("kube", "coredns", "pause", "mpi-operator", "training-operator")
KUBE_NAMES = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet", "kubectl")
# Operators come with manifests: custom resource definitions, roles and deployment, as their authors publish them.
UPSTREAM = {
    "mpi-operator": "github.com/kubeflow/mpi-operator",
    "training-operator": "github.com/kubeflow/training-operator",
}
_MINIMUM_GO = (1, 26)


def build(only: tuple[str, ...] = PROGRAMS) -> dict[str, Path]:
    """The folder of each program, built first where it is not in the cache."""
    return {program: _cached(program) for program in only}


def program(name: str) -> Path:
    """A built program's file."""
    return _folder(name) / name


def manifests(operator: str) -> Path:
    """The manifests that came with an operator."""
    return _folder(operator) / "manifests"


def link_programs(folder: Path) -> None:
    """Fill a folder with every program under the names that it is called by."""
    folder.mkdir(parents=True)
    for name in KUBE_NAMES:
        (folder / name).symlink_to(program("kube"))
    (folder / "coredns").symlink_to(program("coredns"))


def kubernetes_version() -> str:
    found = re.search(r"^\tk8s.io/kubernetes (v\S+)$", (GO_MODULES / "kube/go.mod").read_text(), re.MULTILINE)
    assert found, "tests/e2e/go/kube/go.mod names no version of k8s.io/kubernetes"
    return found[1]


def _cached(name: str) -> Path:
    folder = _folder(name)
    if folder.is_dir():
        return folder
    _check_go()
    print(f"cluster: building {name}; the first time this takes minutes", file=sys.stderr, flush=True)
    begun = time.monotonic()
    fresh = folder.with_name(f"{folder.name}.{os.getpid()}")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    module = GO_MODULES / name
    _go(module, "build", *_flags(name), "-o", str(fresh / name), "." if (module / "main.go").exists() else "tool")
    if name in UPSTREAM:
        source = _go(module, "list", "-m", "-f", "{{.Dir}}", UPSTREAM[name])
        # Go's module cache is read-only, folders too; a copy that nobody can delete helps nobody.
        shutil.copytree(Path(source.strip()) / "manifests", fresh / "manifests", copy_function=shutil.copyfile)
        for path in [fresh / "manifests", *(fresh / "manifests").rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)
    try:
        fresh.rename(folder)  # in one step: a program is there whole or not at all
    except OSError:
        shutil.rmtree(fresh)  # somebody else was quicker with the same
    print(f"cluster: built {name} in {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
    return folder


def _folder(name: str) -> Path:
    """Named by what decides the outcome: sources, pinned modules, flags. Go's own patch version is left out."""
    parts = [*_flags(name), *(path.read_text() for path in sorted((GO_MODULES / name).iterdir()) if path.is_file())]
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]
    return cache() / "programs" / f"{name}-{key}"


def _flags(name: str) -> tuple[str, ...]:
    settings = ["-s", "-w"]  # no debugger comes here, and it halves the file
    if name == "kube":
        version = kubernetes_version()
        major, minor, _ = version.removeprefix("v").split(".")
        for variable, value in {"gitVersion": version, "gitMajor": major, "gitMinor": minor}.items():
            settings += ["-X", f"k8s.io/component-base/version.{variable}={value}"]
    return ("-mod=readonly", "-trimpath", f"-ldflags={' '.join(settings)}")


def _go(folder: Path, *words: str) -> str:
    # Without C the files are static, and run in images that hold nothing else.
    done = subprocess.run(
        ["go", *words], cwd=folder, env=os.environ | {"CGO_ENABLED": "0"}, capture_output=True, text=True
    )
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if not line.startswith("go: downloading")]
        raise Problem(f"`go {words[0]}` failed in {folder}:\n" + "\n".join(lines[-20:]))
    return done.stdout


def _check_go() -> None:
    wanted = ".".join(map(str, _MINIMUM_GO))
    if shutil.which("go") is None:
        raise Problem(f"Go {wanted} or newer builds the cluster's programs and is not on PATH; install it")
    found = subprocess.run(["go", "env", "GOVERSION"], capture_output=True, text=True, check=True).stdout.strip()
    numbers = tuple(int(number) for number in re.findall(r"\d+", found)[:2])
    if numbers < _MINIMUM_GO:
        raise Problem(f"Go {wanted} or newer builds the cluster's programs, and this is {found}; install a newer one")
