"""The cluster for tests: it starts, does what tests rely on, and nothing of it is left, whatever ends it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from cluster.places import Places
from cluster.processes import wait_until

ROOT = Path(__file__).parent.parent.parent
HARNESS = (sys.executable, "-m", "tests.e2e.cluster")
POD = """
kubectl create namespace killed --dry-run=client --output=yaml | kubectl apply --filename=-
kubectl run pod --namespace=killed --image=localhost/busybox:1 --command -- sleep infinity
kubectl wait --for=condition=Ready pod/pod --namespace=killed --timeout=120s
"""


def harness(*words: str, before: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*before, *HARNESS, *words], cwd=ROOT, capture_output=True, text=True, timeout=900)


def machine() -> dict[str, str]:
    """What a cluster must not change: network, mounts and the kernel's switches of the machine it runs on."""
    switches = (
        "vm/overcommit_memory",
        "vm/panic_on_oom",
        "kernel/panic",
        "kernel/panic_on_oops",
        "net/ipv4/ip_forward",
    )
    return {
        "interfaces": subprocess.run(["ip", "-br", "address"], capture_output=True, text=True, check=True).stdout,
        "rules": subprocess.run(["iptables-save"], capture_output=True, text=True, check=True).stdout,
        "mounts": Path("/proc/self/mounts").read_text(),
        "kubeconfig": str(sorted(Path.home().glob(".kube/**/*"))),
        **{name: Path("/proc/sys", name).read_text() for name in switches},
    }


def processes(name: str) -> list[int]:
    """Every process of a cluster, pods and all."""
    groups = Path("/sys/fs/cgroup").glob(f"**/hvdkit-e2e-{name}/**/cgroup.procs")
    return sorted({int(line) for group in groups for line in group.read_text().split()})


def left_over(name: str) -> list[Path]:
    folder = Places.of(name).folder
    return [*Path("/sys/fs/cgroup").glob(f"**/hvdkit-e2e-{name}"), *([folder] if folder.exists() else [])]


def test_a_cluster_does_what_tests_rely_on_and_goes() -> None:
    before = machine()
    checks = f"{sys.executable} -m pytest -p no:cacheprovider -v tests/e2e/cluster/checks.py"
    done = harness("run", "--name=checked", "--", "sh", "-c", f"{checks}; exit $((40 + $?))")
    assert done.returncode == 40, done.stdout + done.stderr
    assert machine() == before
    assert left_over("checked") == []


def test_nothing_survives_kill_9_of_a_cluster_that_stays() -> None:
    before = machine()
    try:
        up = harness("up", "--name=killed")
        assert up.returncode == 0, up.stderr
        assert "cluster: killed is up after" in up.stdout
        again = harness("up", "--name=killed")
        assert (again.returncode, "is running already" in again.stderr) == (3, True)

        pod = harness("enter", "--name=killed", "--", "sh", "-ec", POD)
        assert pod.returncode == 0, pod.stderr
        assert machine() == before  # also while it runs

        alive = processes("killed")
        assert len(alive) > 10
        os.kill(int(Places.of("killed").supervisor.read_text()), signal.SIGKILL)
        wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in alive), "all of its processes have ended")
        assert machine() == before
        assert harness("enter", "--name=killed", "--", "true").returncode == 3

        up = harness("up", "--name=killed")  # over what the dead one left
        assert up.returncode == 0, up.stderr
        fresh = harness("enter", "--name=killed", "--", "kubectl", "get", "namespace", "killed")
        assert "NotFound" in fresh.stderr
    finally:
        down = harness("down", "--name=killed")
    assert down.returncode == 0, down.stderr
    assert processes("killed") == []
    assert left_over("killed") == []
    gone = harness("enter", "--name=killed", "--", "true")
    assert (gone.returncode, gone.stderr) == (
        3,
        "cluster: no cluster killed is running; `make cluster-up` starts the one named dev\n",
    )


def test_a_user_who_is_not_root_is_told_so() -> None:
    done = harness("run", "--", "true", before=("unshare", "--user"))
    assert done.returncode == 3
    assert done.stderr == (
        "cluster: a cluster makes namespaces, bridges and mounts, and needs root: run it with sudo\n"
    )


def test_a_kernel_that_refuses_is_told_by_name() -> None:
    refuse = 'echo 0 > /proc/sys/user/max_net_namespaces && exec "$@"'
    done = harness("run", "--", "true", before=("unshare", "--user", "--map-root-user", "sh", "-c", refuse, "sh"))
    assert done.returncode == 3
    said = "cluster: this kernel does not give a cluster namespaces of processes, network and mounts: unshare"
    assert done.stderr.startswith(said)


def test_an_archive_that_is_not_there_is_told_by_name() -> None:
    done = harness("run", "--image=no/such.tar", "--", "true")
    assert (done.returncode, "no/such.tar is not there" in done.stderr) == (3, True)
