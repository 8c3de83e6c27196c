"""Namespaces in which a cluster lives and dies: process ids, network, mounts, host name.

    supervisor ─► unshare ─► first process (id 1 inside) ─► the start of the cluster, then the user's command
                                                        └─► etcd, kubelets, pods …, once their parents are gone

Each arrow is also a promise of the kernel: when the left side dies, by whatever signal, the right side is killed.
"""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

from . import cgroups
from .places import Places
from .problem import Problem

_KINDS = ("--pid", "--net", "--mount", "--uts", "--ipc")
_MODULE = (sys.executable, "-m", "tests.e2e.cluster")
# Where programs write whatever one tells them: fresh and gone afterwards.
_SCRATCH = ("/run", "/var/log", "/var/lib/cni", "/var/lib/kubelet")
# What a kubelet insists on setting is the whole machine's: here it sets copies.
_SWITCHES = (
    "/proc/sys/vm/overcommit_memory",
    "/proc/sys/vm/panic_on_oom",
    "/proc/sys/kernel/panic",
    "/proc/sys/kernel/panic_on_oops",
    "/proc/sys/kernel/keys/root_maxkeys",
    "/proc/sys/kernel/keys/root_maxbytes",
)


def in_own_namespaces(*words: str) -> None:
    """Run a command of this module in namespaces that end with it."""
    if code := subprocess.run(_new_namespaces(None, *words)).returncode:
        raise Problem(f"`{words[0]}` failed with exit code {code}; see above")


def supervise(places: Places, *words: str) -> int:
    """Run a command of this module in namespaces of its own, in the cluster's folder; its exit code."""
    process = subprocess.Popen(_new_namespaces(places, *words))

    def end(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGHUP, end)
    signal.signal(signal.SIGINT, lambda *_: None)  # a Ctrl-C also reaches the command, and that decides
    try:
        code = process.wait()
    finally:
        process.kill()
        process.wait()
    return code if code >= 0 else 128 - code


def first_process(places: Places | None, words: list[str]) -> int:
    """The first process of new namespaces: makes them a home, starts the command, and buries the orphans."""
    if places:
        cgroups.enter(places.name)
        places.first_process.write_text(str(Path("/proc/self").readlink()))  # /proc is still the outside's here
    _mount()
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    signal.signal(signal.SIGINT, lambda *_: None)
    child = subprocess.Popen([*_MODULE, *words])
    while True:
        pid, status = os.wait()
        if pid == child.pid:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def enter(places: Places, command: list[str]) -> None:
    """Become a command in a cluster that runs."""
    variables = [f"{name}={value}" for name, value in places.variables().items()]
    there = ["nsenter", "--target", places.first_process.read_text(), *_KINDS]
    os.execvp("nsenter", [*there, "env", "-C", str(Path.cwd()), *variables, *command])


def _new_namespaces(places: Places | None, *words: str) -> list[str]:
    folder = [f"--folder={places.folder}"] if places else []
    unshare = ("unshare", "--fork", "--kill-child", *_KINDS)
    return ["setpriv", "--pdeathsig", "KILL", *unshare, *_MODULE, "first-process", *folder, "--", *words]


def _mount() -> None:
    _run("mount", "-t", "proc", "proc", "/proc")
    for folder in map(Path, _SCRATCH):
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
        _run("mount", "-t", "tmpfs", "-o", "mode=755", "scratch", str(folder))
    for switch in map(Path, _SWITCHES):
        copy = Path("/run", switch.name)
        copy.write_text(switch.read_text())
        _run("mount", "--bind", str(copy), str(switch))


def _run(*command: str) -> None:
    subprocess.run(command, check=True)
