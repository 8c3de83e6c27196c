"""From nothing to a cluster and back: who holds its folder, what is left of one that was killed, and who ends it."""

import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from . import build, cgroups, images, namespaces, requirements
from .places import Places, cache
from .problem import Problem
from .processes import wait_until


def prepare(further: list[str]) -> None:
    """All that needs the network or time: packages, programs, images."""
    requirements.check()
    build.build()
    images.prepare(further)


def run(name: str | None, nodes: int, gpus: int, command: list[str]) -> int:
    """Start a cluster, run a command in it, remove the cluster; the command's exit code."""
    remove_the_dead()
    with _claimed(name) as places:
        start = ("start", f"--folder={places.folder}", f"--nodes={nodes}", f"--gpus={gpus}")
        return namespaces.supervise(places, *start, "--", *command)


def up(name: str, nodes: int, gpus: int) -> None:
    """Start a cluster that stays."""
    places = Places.of(name)
    if _is_held(places):
        raise Problem(f"the cluster {name} is running already; {_ways(name)}")
    remove_the_dead()
    output = cache() / f"{name}-up.log"
    options = [f"--name={name}", f"--nodes={nodes}", f"--gpus={gpus}", "--prepared"]
    words = [sys.executable, "-m", "tests.e2e.cluster", "run", *options, "--", "sleep", "infinity"]
    with output.open("w") as log:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    try:
        wait_until(lambda: places.ready.exists() or process.poll() is not None, "the cluster is up", limit=300)
    except BaseException:
        process.terminate()
        raise
    if process.poll() is not None:
        raise Problem(f"the cluster did not start:\n{output.read_text().strip()}")
    seconds = places.ready.read_text().strip()
    print(f"cluster: {name} is up after {seconds} s; {_ways(name)}")


def enter(name: str, command: list[str]) -> None:
    """Become a command in a cluster that runs."""
    places = Places.of(name)
    if not _is_held(places) or not places.first_process.exists():
        raise Problem(f"no cluster {name} is running; `make cluster-up` starts the one named dev")
    namespaces.enter(places, command)


def down(name: str) -> None:
    """End a cluster and wait until nothing of it is left."""
    places = Places.of(name)
    if _is_held(places):
        os.kill(int(places.supervisor.read_text()), signal.SIGTERM)
        wait_until(lambda: not _is_held(places), f"the cluster {name} has ended")
    remove_the_dead()


def remove_the_dead() -> None:
    """Remove the folders and empty control groups of clusters that were killed; the kernel took the rest."""
    for lock in (cache() / "running").glob("*.lock"):
        places = Places(lock.with_suffix(""))
        with lock.open("w") as file:
            if places.folder.exists() and _locked(file.fileno()):
                _remove(places)


@contextmanager
def _claimed(name: str | None) -> Iterator[Places]:
    """A folder that is ours, under this name or the first free one; gone on the way out."""
    if name and not re.fullmatch("[a-z0-9-]+", name):
        raise Problem(f"--name {name}: letters a to z, digits and dashes only")
    for candidate in [name] if name else [f"run-{number}" for number in range(1, 100)]:
        places = Places.of(candidate)
        places.lock.parent.mkdir(parents=True, exist_ok=True)
        with places.lock.open("w") as file:
            if not _locked(file.fileno()):
                continue
            try:
                places.folder.mkdir()
                places.supervisor.write_text(str(os.getpid()))
                cgroups.create(places.name)
                yield places
            finally:
                _remove(places)
            return
    raise Problem(
        f"the cluster {name} is running already; {_ways(name)}" if name else "99 clusters are running already"
    )


def _remove(places: Places) -> None:
    cgroups.remove(places.name)  # waits for the last process
    if places.logs.exists():  # kept until the next one ends: they say why it failed
        last = cache() / "last-logs"
        shutil.rmtree(last, ignore_errors=True)
        shutil.copytree(places.logs, last)
    subprocess.run(["rm", "-rf", str(places.folder)], check=True)


def _is_held(places: Places) -> bool:
    if not places.lock.exists():
        return False
    with places.lock.open("w") as file:
        return not _locked(file.fileno())


def _locked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _ways(name: str) -> str:
    harness, option = f"{sys.executable} -m tests.e2e.cluster", "" if name == "dev" else f" --name={name}"
    return f"`{harness} enter{option} -- kubectl get pods` enters it, `{harness} down{option}` ends it"
