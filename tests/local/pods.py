"""Runs the programs of pods as processes of this machine, with what Kubernetes and mpi-operator would give them."""

import contextlib
import json
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

from launching import Launch, wait_until
from running import environment


class Pod(Launch):
    """One program of hvdkit.runtime; its processes are found by an environment variable."""

    def __init__(self, folder: Path, program: str, *arguments: str, **variables: str) -> None:
        self.mark = f"HVDKIT_TEST_MARK={uuid.uuid4().hex}".encode()
        self.log = folder / f"pod-{uuid.uuid4().hex[:6]}.log"
        self.termination_log = self.log.with_suffix(".json")
        name, value = self.mark.decode().split("=")
        own = {"HVDKIT_TERMINATION_LOG": str(self.termination_log), name: value, **variables}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", f"hvdkit.runtime.{program}", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment(**own),
                cwd=folder,
            )

    def wait_for(self, text: str, times: int = 1) -> None:
        """As for a launch, but a pod that has ended says no more."""

        def seen() -> bool:
            ended = self.process.poll() is not None
            found = self.output().count(text) >= times
            assert found or not ended, f"it ended without {times} x {text!r} in its output:\n{self.output()}"
            return found

        wait_until(seen, lambda: f"{times} x {text!r} in the output:\n{self.output()}")

    def termination(self) -> dict:
        """The termination message that the pod left."""
        text = self.termination_log.read_bytes()
        assert len(text) <= 4096
        return json.loads(text)


@contextlib.contextmanager
def pod(folder: Path, program: str, *arguments: str, **variables: str) -> Iterator[Pod]:
    """A pod that a failing test does not leave behind."""
    started = Pod(folder, program, *arguments, **variables)
    try:
        yield started
    finally:
        started.kill_all()


def make_keys(folder: Path) -> Path:
    """What mpi-operator mounts into every pod of a job, as open as a mounted secret is."""
    keys = folder / "keys"
    keys.mkdir()
    subprocess.run(["ssh-keygen", "-q", "-t", "rsa", "-b", "2048", "-N", "", "-f", str(keys / "id_rsa")], check=True)
    (keys / "authorized_keys").write_bytes((keys / "id_rsa.pub").read_bytes())
    for file in keys.iterdir():
        file.chmod(0o644)
    return keys


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def wait_for_port(port: int, owner: Pod) -> None:
    def answers() -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
        return False

    wait_until(answers, lambda: f"port {port}:\n{owner.output()}")


def alive(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


# A rank that needs no torch: says where it is, and what it does next is its argument.
RANK = """
import os, signal, sys, time
rank = next(os.environ[name] for name in ("OMPI_COMM_WORLD_RANK", "HOROVOD_RANK", "RANK") if name in os.environ)
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(True))
print("rank", rank, "is here", flush=True)
if sys.argv[1] == "fail" and rank == "1":
    print("rank 1 is going to fail", flush=True)
    sys.exit(7)
if sys.argv[1] == "leave":
    sys.exit(0)
while not asked:
    time.sleep(0.02)
print("rank", rank, "has saved", flush=True)
sys.exit(75)
"""


def rank_script(folder: Path) -> Path:
    script = folder / "rank.py"
    script.write_text(RANK)
    return script


def written(folder: Path, name: str, *lines: str) -> str:
    """A file with these lines; returns its path."""
    path = folder / name
    path.write_text("".join(f"{line}\n" for line in lines))
    return str(path)


