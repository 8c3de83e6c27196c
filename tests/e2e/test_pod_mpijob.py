"""The programs of an MPIJob in pods with a network, a host name and a memory limit of their own, over real SSH."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from machines import Machines

sys.path.insert(0, str(Path(__file__).parent.parent / "local"))
from launching import wait_until
from pods import Pod, alive, make_keys, pod, rank_script, written

from hvdkit.runtime.processes import descendants

FULL = {name: f"{name}.train.team.svc" for name in ("a", "b")}  # as mpi-operator writes them

ALLREDUCE = """
import os, socket, sys, time
import horovod.torch as hvd, torch
hvd.init()
total = hvd.allreduce(torch.tensor([hvd.rank() + 1.0]), op=hvd.Sum, name="ranks")
print(f"rank {hvd.rank()} of {hvd.size()} on {socket.gethostname()}: {total.item():.0f}", os.environ["OWN"])
"""

# As a training loop does it: whoever is asked to stop tells the others at the next step.
AGREE = """
import signal, sys
import horovod.torch as hvd, torch
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(True))
hvd.init()
print("training")
while not hvd.allreduce(torch.tensor([float(bool(asked))]), op=hvd.Sum, name="stop").item():
    pass
print("saved")
hvd.shutdown()
sys.exit(75)
"""

GREEDY = """
import os, time
if os.environ["OMPI_COMM_WORLD_RANK"] == "1":
    print("taking all the memory", flush=True)
    memory = bytearray(1 << 30)
    memory[:] = b"x" * len(memory)
time.sleep(600)
"""

ELASTIC = """
import os, signal, socket, sys, time
import horovod.torch as hvd, torch
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(True))
hvd.init()
state = hvd.elastic.TorchState(step=0)

@hvd.elastic.run
def train(state):
    while True:
        total = hvd.allreduce(torch.tensor([1.0, float(bool(asked))]), op=hvd.Sum, name="step")
        state.step += 1
        if state.step % 20 == 0 and hvd.rank() == 0:
            print(f"step of {int(total[0])} ranks on {socket.gethostname()}", flush=True)
        if total[1]:
            print("saved", flush=True)
            sys.exit(75)
        time.sleep(0.02)
        state.commit()

train(state)
"""


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory):
    machines = Machines(["a", "b"], tmp_path_factory.mktemp("machines"))
    with (machines.folder / "hosts").open("a") as hosts:
        hosts.writelines(f"10.77.0.{number + 2} {name}\n" for number, name in enumerate(FULL.values()))
    yield machines
    machines.stop()


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_keys(tmp_path_factory.mktemp("mounted"))


class Worker(Pod):
    """A worker pod in the namespaces of a machine."""

    def __init__(self, folder: Path, name: str, keys: Path, memory: Path | None = None) -> None:
        self.log = folder / f"worker-{name}.log"
        enter = f"echo $$ > {memory}/cgroup.procs && " if memory else ""
        program = f"{enter}hostname {name} && exec {sys.executable} -m hvdkit.runtime.mpijob_worker"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                # Not by `ip netns exec`, which hides the cgroups.
                ["nsenter", f"--net=/run/netns/{name}", "unshare", "--uts", "sh", "-c", program],
                env=os.environ | {"HVDKIT_SSH_FOLDER": str(keys), "OWN": f"variable of {name}"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.name = name

    def ranks(self) -> list[int]:
        """Everything that SSH sessions have started in this pod."""
        return [pid for pid in descendants(self.process.pid) if b"sshd" not in _command_line(pid)]


def _command_line(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


@contextlib.contextmanager
def workers(folder: Path, keys: Path, memory: Path | None = None) -> Iterator[dict[str, Worker]]:
    """Both worker pods; `memory` is the cgroup of b."""
    started = {name: Worker(folder, name, keys, memory if name == "b" else None) for name in FULL}
    try:
        yield started
    finally:
        for worker in started.values():
            worker.process.kill()
            worker.process.wait()


def launcher(folder: Path, keys: Path, *command: str, flags: tuple[str, ...] = (), slots: int = 1, **more: str):
    variables = {
        "HVDKIT_HOSTFILE": written(folder, "hostfile", *(f"{name} slots={slots}" for name in FULL.values())),
        "HVDKIT_SSH_FOLDER": str(keys),
        "HVDKIT_JOB": "train",
        "OMPI_MCA_orte_default_hostfile": str(folder / "hostfile"),
        "OMPI_MCA_orte_set_default_slots": "1",
        **more,
    }
    own = ("--slots", str(slots), "--workers", "2", "--wait-seconds", "100", *flags)
    return pod(folder, "mpijob_launcher", *own, "--", *command, **variables)


def test_ranks_in_two_pods_are_one_world(machines: Machines, keys: Path, tmp_path: Path) -> None:
    script = written(tmp_path, "train.py", ALLREDUCE)
    variables = {"HVDKIT_WORLD_SIZE": "4", "HVDKIT_HOSTS": "2"}
    with workers(tmp_path, keys) as pods, launcher(tmp_path, keys, "python", script, slots=2, **variables) as run:
        assert run.wait() == 0, run.output()
        assert sorted(run.output().splitlines()) == [
            "[0] rank 0 of 4 on a: 10 variable of a",
            "[1] rank 1 of 4 on a: 10 variable of a",
            "[2] rank 2 of 4 on b: 10 variable of b",
            "[3] rank 3 of 4 on b: 10 variable of b",
        ]
        for worker in pods.values():
            wait_until(lambda worker=worker: not worker.ranks(), lambda: "an end of Open MPI's daemons", limit=10)


def test_a_worker_that_comes_late_is_waited_for(machines: Machines, keys: Path, tmp_path: Path) -> None:
    """The race of every plain MPIJob: a worker's name is not in DNS when the launcher starts."""
    hostfile = written(tmp_path, "late", f"{FULL['a']} slots=1", "late.train.team.svc slots=1")
    script = written(tmp_path, "train.py", ALLREDUCE)
    with workers(tmp_path, keys), launcher(tmp_path, keys, "python", script, HVDKIT_HOSTFILE=hostfile) as run:
        run.wait_for("waiting for workers: late (its name does not resolve)")
        with (machines.folder / "hosts").open("a") as hosts:
            hosts.write("10.77.0.3 late.train.team.svc\n")
        assert run.wait() == 0, run.output()
        assert "[1] rank 1 of 2 on b: 3" in run.output()


def test_a_worker_that_must_stop_stops_the_job_in_good_order(machines: Machines, keys: Path, tmp_path: Path) -> None:
    with workers(tmp_path, keys) as pods:
        with launcher(tmp_path, keys, "python", written(tmp_path, "train.py", AGREE)) as run:
            run.wait_for("training", times=2)
            pods["b"].process.terminate()
            assert run.wait() == 75, run.output() + pods["b"].output()
            assert run.output().count("saved") == 2
            assert pods["b"].wait() == 0, pods["b"].output()


def test_kill_of_the_launcher_ends_the_ranks_in_the_pods(machines: Machines, keys: Path, tmp_path: Path) -> None:
    with workers(tmp_path, keys) as pods:
        with launcher(tmp_path, keys, "python", str(rank_script(tmp_path)), "wait") as run:
            run.wait_for("is here", times=2)
            ranks = [pid for worker in pods.values() for pid in worker.ranks()]
            assert ranks
            os.kill(run.process.pid, signal.SIGKILL)
            run.wait()
            wait_until(lambda: not any(map(alive, ranks)), lambda: f"an end of {ranks}", limit=10)


def test_the_loss_of_a_pod_fails_the_job(machines: Machines, keys: Path, tmp_path: Path) -> None:
    with workers(tmp_path, keys) as pods:
        with launcher(tmp_path, keys, "python", str(rank_script(tmp_path)), "wait") as run:
            run.wait_for("is here", times=2)
            for pid in [pods["b"].process.pid, *descendants(pods["b"].process.pid)]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            assert run.wait() not in (0, 75), run.output()
            assert "rank 1 on b" in run.output() or "mpirun" in run.output()


@pytest.fixture
def memory_limit():
    """A cgroup of 256 MiB, of whichever version this machine has."""
    top = Path("/sys/fs/cgroup/memory")
    limit, name = (top, "memory.limit_in_bytes") if top.is_dir() else (top.parent, "memory.max")
    folder = limit / f"hvdkit-test-{os.getpid()}"
    folder.mkdir()
    (folder / name).write_text(str(256 << 20))
    yield folder
    wait_until(lambda: not (folder / "cgroup.procs").read_text(), lambda: "an empty cgroup", limit=30)
    folder.rmdir()


def test_a_rank_killed_for_memory_is_told_from_one_killed_by_hand(
    machines: Machines, keys: Path, tmp_path: Path, memory_limit: Path
) -> None:
    with workers(tmp_path, keys, memory_limit):
        with launcher(tmp_path, keys, "python", written(tmp_path, "greedy.py", GREEDY)) as run:
            assert run.wait() == 137, run.output()
            message = run.termination()
            assert message["out_of_memory"] is True, run.output()
            assert (message["rank"], message["host"]) == (1, "b")
            assert message["reason"] == "rank 1 on b was killed for lack of memory (the limit is 256 MiB)"
            assert message["tail"] == ["taking all the memory"]
        with launcher(tmp_path, keys, "python", str(rank_script(tmp_path)), "wait") as run:
            run.wait_for("is here", times=2)
            [rank] = [pid for pid in _processes(b"rank.py\0wait") if _variable(pid, b"OMPI_COMM_WORLD_RANK") == b"1"]
            os.kill(rank, signal.SIGKILL)
            assert run.wait() == 137, run.output()
            assert run.termination()["out_of_memory"] is False


def _processes(text: bytes) -> list[int]:
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in pids if text in _command_line(pid) and b"hvdkit" not in _command_line(pid)]


def _variable(pid: int, name: bytes) -> bytes:
    entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return next((entry.partition(b"=")[2] for entry in entries if entry.startswith(name + b"=")), b"")


class TestElastic:
    def launcher(self, folder: Path, keys: Path):
        lines = [f"echo {name}" for name in FULL.values()]
        variables = {"HVDKIT_DISCOVER_HOSTS": written(folder, "discover_hosts.sh", "#!/bin/sh", *lines)}
        flags = ("--elastic-min", "1", "--elastic-max", "2")
        return launcher(folder, keys, "python", written(folder, "train.py", ELASTIC), flags=flags, **variables)

    def test_training_goes_on_without_a_pod(self, machines: Machines, keys: Path, tmp_path: Path) -> None:
        with workers(tmp_path, keys) as pods, self.launcher(tmp_path, keys) as run:
            run.wait_for("step of 2 ranks")
            written(tmp_path, "discover_hosts.sh", "#!/bin/sh", f"echo {FULL['a']}")  # the operator notices
            for pid in [pods["b"].process.pid, *descendants(pods["b"].process.pid)]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            run.wait_for("step of 1 ranks on a")
            run.process.terminate()
            assert run.wait() == 75, run.output()
            assert "saved" in run.output()
            wait_until(lambda: not pods["a"].ranks(), lambda: f"an end of {pods['a'].ranks()}", limit=10)

    def test_kill_of_the_launcher_ends_the_ranks(self, machines: Machines, keys: Path, tmp_path: Path) -> None:
        with workers(tmp_path, keys) as pods, self.launcher(tmp_path, keys) as run:
            run.wait_for("step of 2 ranks")
            ranks = [pid for worker in pods.values() for pid in worker.ranks()]
            os.kill(run.process.pid, signal.SIGKILL)
            run.wait()
            wait_until(lambda: not any(map(alive, ranks)), lambda: f"an end of {ranks}", limit=30)


def test_the_worker_serves_as_an_ordinary_user(tmp_path_factory: pytest.TempPathFactory) -> None:
    """As a pod in a `restricted` namespace does: uid 1000, no capability, a mounted key that belongs to root."""
    folder = tmp_path_factory.mktemp("user")
    keys = make_keys(folder)
    for path in (folder, *folder.parents):
        if path != Path(tempfile.gettempdir()) and path.is_relative_to(tempfile.gettempdir()):
            path.chmod(0o755)
    python = next(p for p in (sys.executable, shutil.which("python3", path="/usr/bin")) if p and _others_may_run(p))
    passwd = folder / "passwd"
    passwd.write_text(Path("/etc/passwd").read_text() + "mpiuser:x:1000:1000::/nonexistent:/bin/sh\n")
    subprocess.run(["mount", "--bind", str(passwd), "/etc/passwd"], check=True)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    user = ["setpriv", "--reuid=1000", "--regid=1000", "--clear-groups", "--bounding-set=-all", "--no-new-privs"]
    root = str(Path(__file__).parents[2])
    environ = {"HVDKIT_SSH_FOLDER": str(keys), "PYTHONPATH": root, "PATH": os.environ["PATH"], "OWN": "here"}
    log = folder / "log"
    with log.open("wb") as output:
        worker = subprocess.Popen(
            [*user, python, "-m", "hvdkit.runtime.mpijob_worker"], env=environ, cwd="/", stdout=output, stderr=output
        )
    try:
        client = [*user, python, "-c", _CLIENT]
        answers: list[str] = []

        def answered() -> bool:
            result = subprocess.run(client, env=environ, cwd="/", capture_output=True, text=True)
            answers[:] = [result.stdout, result.stderr]
            return result.returncode == 0

        wait_until(answered, lambda: f"{answers}\n{log.read_text()}")
        assert answers[0].split() == ["1000", "here"]
        worker.terminate()
        assert worker.wait(timeout=60) == 0, log.read_text()
    finally:
        worker.kill()
        worker.wait()
        subprocess.run(["umount", "/etc/passwd"], check=True)


_CLIENT = """
import subprocess, sys
from hvdkit.runtime import mpijob_ssh
config = mpijob_ssh.client_config(mpijob_ssh.new_folder())
sys.exit(subprocess.call(["ssh", "-F", str(config), "127.0.0.1", "id -u; echo $OWN"]))
"""


def _others_may_run(program: str) -> bool:
    return subprocess.run(["setpriv", "--reuid=1000", "--clear-groups", program, "-c", ""], cwd="/").returncode == 0
