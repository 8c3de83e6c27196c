"""The launcher and worker programs of an MPIJob and their SSH, with real sshd, mpirun and ranks, all on one host.

mpirun needs no SSH to reach its own machine; test_pod_mpijob.py has pods with a network of their own.
"""

import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "local"))
from launching import wait_until
from pods import Pod, alive, free_port, make_keys, pod, rank_script, wait_for_port, written

from hvdkit.runtime import mpijob_ssh
from hvdkit.runtime.mpijob_worker import server_config
from hvdkit.runtime.processes import descendants

ALLREDUCE = """
import horovod.torch as hvd, os, torch
hvd.init()
total = hvd.allreduce(torch.tensor([hvd.rank() + 1.0]), op=hvd.Sum, name="ranks")
print(f"rank {hvd.rank()} of {hvd.size()} by {os.environ['HVDKIT_JOB']}: {total.item():.0f}")
"""


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_keys(tmp_path_factory.mktemp("mounted"))


@pytest.fixture(scope="module")
def port(keys: Path, tmp_path_factory: pytest.TempPathFactory):
    """Of a worker pod's SSH server."""
    number = free_port()
    variables = {"HVDKIT_SSH_FOLDER": str(keys), "HVDKIT_SSH_PORT": str(number)}
    with pod(tmp_path_factory.mktemp("worker"), "mpijob_worker", **variables) as worker:
        wait_for_port(number, worker)
        yield number


def launcher(folder: Path, keys: Path, port: int, *command: str, hosts=("127.0.0.1 slots=2",), wait=60, **more: str):
    """A launcher pod; the operator's hostfile lists `hosts`."""
    variables = {
        "HVDKIT_HOSTFILE": written(folder, "hostfile", *hosts),
        "HVDKIT_SSH_FOLDER": str(keys),
        "HVDKIT_SSH_PORT": str(port),
        "HVDKIT_JOB": "train",
        # What mpi-operator sets.
        "OMPI_MCA_orte_default_hostfile": str(folder / "hostfile"),
        "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
        "OMPI_MCA_orte_set_default_slots": "2",
        "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
        **more,
    }
    flags = ("--slots", "2", "--workers", str(len(hosts)), "--wait-seconds", str(wait))
    return pod(folder, "mpijob_launcher", *flags, "--", *command, **variables)


def test_ranks_are_one_world(tmp_path: Path, keys: Path, port: int) -> None:
    script = written(tmp_path, "train.py", ALLREDUCE)
    with launcher(tmp_path, keys, port, "python", script, HVDKIT_WORLD_SIZE="2", HVDKIT_HOSTS="1") as run:
        assert run.wait() == 0, run.output()
        assert sorted(run.output().splitlines()) == [
            "[0] rank 0 of 2 by train: 3",
            "[1] rank 1 of 2 by train: 3",
        ]
        assert not run.termination_log.exists()


def test_the_failing_ranks_code_and_last_lines_stay(tmp_path: Path, keys: Path, port: int) -> None:
    with launcher(tmp_path, keys, port, "python", str(rank_script(tmp_path)), "fail") as run:
        assert run.wait() == 7, run.output()
        message = run.termination()
        assert message["exit_code"] == 7
        assert message["rank"] == 1
        assert message["host"] == os.uname().nodename
        assert message["tail"][-1] == "rank 1 is going to fail"
        assert message["out_of_memory"] is False
        assert "rank 1 on" in message["reason"]


def test_a_pod_that_must_stop_lets_the_ranks_save(tmp_path: Path, keys: Path, port: int) -> None:
    with launcher(tmp_path, keys, port, "python", str(rank_script(tmp_path)), "wait") as run:
        run.wait_for("is here", times=2)
        run.process.terminate()
        assert run.wait() == 75, run.output()
        assert "rank 0 has saved" in run.output() and "rank 1 has saved" in run.output()
        assert run.termination()["exit_code"] == 75


def test_kill_of_the_launcher_leaves_nothing(tmp_path: Path, keys: Path, port: int) -> None:
    with launcher(tmp_path, keys, port, "python", str(rank_script(tmp_path)), "wait") as run:
        run.wait_for("is here", times=2)
        os.kill(run.process.pid, signal.SIGKILL)
        run.wait()
        run.wait_until_gone()


def test_missing_workers_are_named(tmp_path: Path, keys: Path, port: int) -> None:
    hosts = ("127.0.0.1 slots=2", "train-worker-1.train.team.svc slots=2")
    with launcher(tmp_path, keys, port, "true", hosts=hosts, wait=1) as run:
        assert run.wait() == 3, run.output()
        assert "train-worker-1 (its name does not resolve)" in run.output()
        assert "127.0.0.1" not in run.output()  # this one does answer
        assert "train-worker-1" in run.termination()["reason"]
    with launcher(tmp_path, keys, free_port(), "true", wait=1) as run:
        assert run.wait() == 3, run.output()
        assert "127.0.0.1 (port " in run.output() and "Connection refused" in run.output()


def test_a_launcher_that_waits_can_be_stopped(tmp_path: Path, keys: Path, port: int) -> None:
    """As a pod's first process it would ignore SIGTERM without a handler of its own."""
    hosts = ("127.0.0.1 slots=2", "train-worker-1.train.team.svc slots=2")
    with launcher(tmp_path, keys, port, "true", hosts=hosts) as run:
        wait_until(lambda: handles_sigterm(run.process.pid), lambda: "a handler of SIGTERM")
        run.process.terminate()
        assert run.wait() == 75, run.output()


def handles_sigterm(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        # An MPI that ignores the hostfile, or pods that share a host: the ranks say where they are.
        ({"HVDKIT_WORLD_SIZE": "4"}, "2 ranks instead of 4"),
        ({"HVDKIT_HOSTS": "2"}, "1 host instead of 2"),
    ],
)
def test_another_world_than_the_manifests_fails(tmp_path: Path, keys: Path, port: int, variables, said: str) -> None:
    with launcher(tmp_path, keys, port, "true", **variables) as run:
        assert run.wait() == 1, run.output()
        assert said in run.output()


def test_ranks_on_too_few_hosts_fail(tmp_path: Path, keys: Path, port: int) -> None:
    """Two workers that turn out to be one machine, as when all ranks land in the launcher's pod."""
    hosts = ("127.0.0.1 slots=1", "localhost slots=1")
    variables = {"HVDKIT_NAMES": written(tmp_path, "names", "127.0.0.1 localhost")}
    with launcher(tmp_path, keys, port, "true", hosts=hosts, **variables) as run:
        assert run.wait() != 0, run.output()
        assert "number of hosts should be 2, but the ranks see 1" in run.output()


class TestWorker:
    """The worker's SSH server, reached as the launcher reaches it."""

    ODD = "it's \"quoted\"\n$HOME `id` \\ ünïcode"

    @pytest.fixture
    def worker(self, tmp_path: Path, keys: Path):
        number = free_port()
        variables = {"HVDKIT_SSH_FOLDER": str(keys), "HVDKIT_SSH_PORT": str(number), "SECRET": self.ODD}
        with pod(tmp_path, "mpijob_worker", **variables) as worker:
            wait_for_port(number, worker)
            worker.port = number
            yield worker

    @pytest.fixture
    def ssh(self, tmp_path: Path, keys: Path, worker: Pod, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setenv("HVDKIT_SSH_FOLDER", str(keys))
        monkeypatch.setenv("HVDKIT_SSH_PORT", str(worker.port))
        folder = tmp_path / "client"
        folder.mkdir()
        return ["ssh", "-F", str(mpijob_ssh.client_config(folder))]

    def test_a_session_has_the_containers_variables(self, ssh: list[str]) -> None:
        result = subprocess.run([*ssh, "127.0.0.1", 'printf %s "$SECRET"'], capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
        assert result.stdout == self.ODD

    def test_another_key_does_not_get_in(self, ssh: list[str], tmp_path: Path) -> None:
        other = make_keys(tmp_path) / "id_rsa"
        other.chmod(0o600)
        words = [*ssh, "-o", f"IdentityFile={other}", "127.0.0.1", "true"]
        assert subprocess.run(words).returncode == 0  # the job's own key is in the configuration too
        Path(ssh[2]).with_name("id_rsa").write_bytes(other.read_bytes())
        result = subprocess.run([*ssh, "127.0.0.1", "true"], capture_output=True, text=True)
        assert result.returncode == 255
        assert "Permission denied" in result.stderr

    def test_a_server_with_another_key_is_not_trusted(self, ssh: list[str], tmp_path: Path) -> None:
        other = (make_keys(tmp_path) / "id_rsa.pub").read_text().split()[:2]
        Path(ssh[2]).with_name("known_hosts").write_text(f"* {' '.join(other)}\n")
        result = subprocess.run([*ssh, "127.0.0.1", "true"], capture_output=True, text=True)
        assert result.returncode == 255
        assert "Host key verification failed" in result.stderr

    def test_sessions_cannot_forward(self, ssh: list[str]) -> None:
        words = [*ssh, "-N", "-o", "ExitOnForwardFailure=yes", "-R", f"{free_port()}:127.0.0.1:1", "127.0.0.1"]
        result = subprocess.run(words, capture_output=True, text=True, timeout=60)
        assert result.returncode == 255
        assert "forwarding failed" in result.stderr

    def test_a_pod_that_must_stop_asks_its_ranks(self, ssh: list[str], worker: Pod, tmp_path: Path) -> None:
        wrapper = [sys.executable, "-m", "hvdkit.runtime.pod_wrapper", "--"]
        command = [*wrapper, sys.executable, str(rank_script(tmp_path)), "wait"]
        line = f"OMPI_COMM_WORLD_RANK=0 exec {shlex.join(command)}"
        session = subprocess.Popen([*ssh, "127.0.0.1", line], stdout=subprocess.PIPE, text=True)
        assert session.stdout is not None
        assert session.stdout.readline() == "rank 0 is here\n"
        # By their pids: sshd writes its title over its environment, and with it our mark.
        processes = descendants(worker.process.pid)
        worker.process.terminate()
        assert session.communicate(timeout=60)[0] == "rank 0 has saved\n"
        assert session.returncode == 75
        assert worker.wait() == 0, worker.output()
        wait_until(lambda: not any(map(alive, processes)), lambda: "an end of all sessions", limit=10)

    def test_kill_of_the_worker_ends_its_server(self, worker: Pod) -> None:
        servers = descendants(worker.process.pid)  # sshd, and for a moment a child that answers the test's own look
        os.kill(worker.process.pid, signal.SIGKILL)
        worker.wait()
        wait_until(lambda: servers and not any(map(alive, servers)), lambda: "an end of sshd", limit=10)


def test_a_worker_without_the_key_says_so(tmp_path: Path) -> None:
    with pod(tmp_path, "mpijob_worker", HVDKIT_SSH_FOLDER=str(tmp_path)) as worker:
        assert worker.wait() == 3
        assert "sshAuthMountPath" in worker.output()
        assert "Traceback" not in worker.output()


def test_sshd_accepts_the_configuration(keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HVDKIT_SSH_FOLDER", str(keys))
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


def test_the_client_trusts_only_the_jobs_key(keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HVDKIT_SSH_FOLDER", str(keys))
    folder = tmp_path / "client"
    folder.mkdir()
    config = mpijob_ssh.client_config(folder)
    found = subprocess.run(["ssh", "-G", "-F", str(config), "w-0.job"], capture_output=True, text=True, check=True)
    effective = found.stdout.splitlines()
    for line in ("port 2222", "stricthostkeychecking true", "batchmode yes", "identitiesonly yes"):
        assert line in effective
    key = (keys / "id_rsa.pub").read_text().split()[1]
    assert (folder / "known_hosts").read_text() == f"* ssh-rsa {key}\n"
