"""hvdkit's commands on a real cluster, as a user who has the rights of manifests/rbac.yaml and no more."""

import errno
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from cluster.cluster import Cluster

BUSYBOX = "localhost/busybox:1"
RBAC = Path(__file__).parents[2] / "manifests" / "rbac.yaml"


class User:
    """Somebody who may use hvdkit in one namespace."""

    def __init__(self, cluster: Cluster, namespace: str, folder: Path, *, rights: bool = True) -> None:
        self.cluster, self.namespace, self.folder = cluster, namespace, folder
        objects = list(yaml.safe_load_all(RBAC.read_text()))
        for made in objects if rights else objects[:1]:
            cluster.apply({**made, "metadata": {**made["metadata"], "namespace": namespace}})
        self.environment = {
            **os.environ,
            "KUBECONFIG": str(cluster.kubeconfig_for("hvdkit", namespace)),
            "XDG_STATE_HOME": str(folder / "state"),
            "NO_COLOR": "1",
        }

    def start(self, *words: str, **more: Any) -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, "-m", "hvdkit", *words],
            env=self.environment,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **more,
        )

    def hvdkit(self, *words: str, code: int | None = 0, limit: float = 240) -> subprocess.CompletedProcess[str]:
        """Run a command to its end; it must leave with `code`."""
        process = self.start(*words)
        try:
            out, err = process.communicate(timeout=limit)
        finally:
            process.kill()
        done = subprocess.CompletedProcess(words, process.returncode, out, err)
        assert code is None or done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def json(self, *words: str) -> Any:
        return json.loads(self.hvdkit(*words, "--json").stdout)

    def why(self, name: str, trouble: str, limit: float = 120) -> dict:
        """What `hvdkit why` says, once it says that it is this trouble."""
        found: dict = {}

        def is_it() -> bool:
            found.update(self.json("why", name))
            return found["trouble"] == trouble

        wait_for(is_it, lambda: f"why says '{trouble}', not {found}", limit)
        return found

    def objects(self, name: str) -> list[str]:
        """All that is left of a job."""
        kinds = "mpijobs,jobs,pods,services,networkpolicies"
        listed = self.cluster.kubectl(
            "get", kinds, f"--namespace={self.namespace}", f"--selector=hvdkit.io/job={name}", "--output=name"
        )
        return listed.split()


class Terminal:
    """hvdkit as it looks at a terminal, where Ctrl-C is a key. `with Terminal(user, …) as screen: …`"""

    def __init__(self, user: User, *words: str) -> None:
        self.seen = ""
        self._screen, theirs = pty.openpty()
        self.process = subprocess.Popen(
            ["setsid", "--ctty", sys.executable, "-m", "hvdkit", *words],  # keys become signals for its session only
            env={name: value for name, value in user.environment.items() if name != "NO_COLOR"},
            cwd=user.folder,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)  # or its end would not be seen

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._screen)

    def press(self, keys: str) -> None:
        os.write(self._screen, keys.encode())

    def wait_for(self, text: str, limit: float = 120) -> None:
        """Until this is on the screen."""
        end = time.monotonic() + limit
        while text not in self.seen:
            assert self._read(end), f"not on the screen within {limit} s: {text!r}\n{self.seen}"

    def exit_code(self, limit: float = 120) -> int:
        """Once it has ended."""
        end = time.monotonic() + limit
        while self._read(end):
            pass
        return self.process.wait(max(1.0, end - time.monotonic()))

    def _read(self, end: float) -> bool:
        """Whether there was more to see before `end`."""
        if not select.select([self._screen], [], [], max(0.0, end - time.monotonic()))[0]:
            return False
        try:
            self.seen += os.read(self._screen, 65536).decode(errors="replace")
        except OSError as error:
            if error.errno != errno.EIO:  # that is how a terminal says that nobody writes to it any more
                raise
            return False
        return True


def wait_for(condition: Callable[[], Any], what: str | Callable[[], str], limit: float = 120) -> Any:
    """What the condition gives, once that is true."""
    end = time.monotonic() + limit
    while not (found := condition()):
        assert time.monotonic() < end, f"not within {limit} s: {what() if callable(what) else what}"
        time.sleep(0.5)
    return found


def plain_job(name: str, script: str, *flags: str) -> list[str]:
    """The words of a launch whose pods run a shell script, without Horovod or hvdkit in the image."""
    words = ["launch", "--backend", "job", "--independent", "--name", name, "--image", BUSYBOX]
    words += ["--pull-policy", "Never", "--restart-policy", "Never", "--backoff-limit", "0", "--grace", "2", *flags]
    return [*words, "--", "sh", "-c", script]


def interrupt(process: subprocess.Popen) -> None:
    """Ctrl-C."""
    process.send_signal(signal.SIGINT)
