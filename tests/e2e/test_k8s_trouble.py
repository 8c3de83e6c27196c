"""Jobs that fail, or nearly do, on a real cluster: the right exit code and the right `why`."""

import re
import time
from collections.abc import Iterator

import pytest
from cluster.cluster import Cluster
from cluster.problem import Problem
from kubernetes_jobs import User, wait_for
from kubernetes_training import LIMIT, Place, place_to_train, training

RAISES = "import horovod.torch as hvd; hvd.init(); assert hvd.rank() != 1, 'the data of rank 1 is bad'"
GREEDY = "import os; x = b'x' * 10**9 if os.environ['OMPI_COMM_WORLD_RANK'] == '1' else b''; print(len(x))"
TRAINS = "import horovod.torch as hvd; hvd.init(); print('trained')"
# As long as a test wants it: two minutes of steps that sleep, and seconds once they do not.
SLOWLY = ("--model", "nets:slow", "--batch-size", "10", "--max-steps", "400")
SECONDS_A_STEP = "0.3"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with place_to_train(Cluster.current(), tmp_path_factory.mktemp("user")) as found:
        yield found


@pytest.mark.parametrize("backend", ["mpijob", "indexed-job"])
def test_a_rank_that_raises(place: Place, backend: str) -> None:
    name = f"raises-{backend}"
    words = [*place.launch(name, backend, "--backoff-limit", "0"), "--", "python", "-c", RAISES]
    done = place.user.hvdkit(*words, code=1, limit=LIMIT)
    assert "rank 1" in done.stderr and "the data of rank 1 is bad" in done.stderr
    answer = place.user.json("why", name)
    assert answer["trouble"] == "rank" and any("data of rank 1" in line for line in answer["evidence"])


def test_a_worker_out_of_memory(place: Place) -> None:
    words = place.launch("oom", "mpijob", "--backoff-limit", "0", "--memory", "400Mi")
    done = place.user.hvdkit(*words, "--", "python", "-c", GREEDY, code=137, limit=LIMIT)
    assert "rank 1 in pod oom-worker-1 used up its memory" in done.stderr
    assert place.user.json("why", "oom")["trouble"] == "out-of-memory"


def test_an_mpi_that_puts_all_ranks_into_one_pod(place: Place) -> None:
    words = place.launch("world", "mpijob", "--backoff-limit", "0", "--mpi-arg=--host", "--mpi-arg=localhost:2")
    done = place.user.hvdkit(*words, "--", "python", "-c", TRAINS, code=None, limit=LIMIT)
    assert done.returncode not in (0, 2) and "trained" not in done.stdout
    assert place.user.json("why", "world")["trouble"] == "world"


def test_a_deadline_that_passes_in_a_training(place: Place) -> None:
    (place.shared / "slow").write_text(SECONDS_A_STEP)
    words = place.launch("long", "mpijob", "--working-dir", "/shared", "--deadline", "30", "--grace", "5")
    done = place.user.hvdkit(*words, *training("long", *SLOWLY), code=1, limit=LIMIT)
    assert "hvdkit: long failed: the job was not done when its --deadline passed" in done.stderr
    answer = place.user.json("why", "long")
    assert answer["trouble"] == "deadline" and "--deadline" in answer["what_to_do"]
    place.user.hvdkit("wait", "long", code=1)


@pytest.mark.alone
def test_names_that_come_late(place: Place) -> None:
    """The race of every plain MPIJob, made certain: no name resolves when the launcher starts."""
    place.cluster.stop("coredns")
    process = place.user.start(*place.launch("late", "mpijob"), "--", "python", "-c", "print('here')")
    try:
        said = wait_for_line(process.stdout, r"waiting for workers: .*does not resolve")
    finally:
        place.cluster.start("coredns")
    out, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, said + out + err
    assert out.count("] here") == 2
    assert [(pod["phase"], pod["restarts"]) for pod in place.launchers("late")] == [("Succeeded", 0)]


@pytest.mark.alone  # test_k8s_nfs.py changes how nodes mount NFS
def test_an_nfs_server_that_does_not_answer(place: Place) -> None:
    admin = User.__new__(User)  # who may make PVs: under `restricted`, NFS comes through one
    environment = {**place.user.environment, "KUBECONFIG": str(place.cluster.kubeconfig)}
    admin.__dict__.update(place.user.__dict__, environment=environment)
    words = place.launch("nfs", "mpijob", "-n", place.user.namespace, "--nfs", "10.244.255.1:/exports:/data")
    done = admin.hvdkit(*words, "--start-timeout", "20", "--", "true", code=3, limit=LIMIT)
    assert "hvdkit: nfs has not started within 20 s: " in done.stderr
    answer = place.user.why("nfs", "mount", limit=LIMIT)
    assert "NFS server" in answer["what_to_do"] and "10.244.255.1:/exports" in "".join(answer["evidence"])
    admin.hvdkit("delete", "nfs", "-n", place.user.namespace)


@pytest.mark.alone
def test_the_api_server_is_away_for_a_while(place: Place) -> None:
    """The training goes on, every line of it is shown once, the end is seen, the exit code is right."""
    slow = place.shared / "slow"
    slow.write_text(SECONDS_A_STEP)
    words = place.launch("steady", "mpijob", "--working-dir", "/shared")
    process = place.user.start(*words, *training("steady", *SLOWLY))
    try:
        said = wait_for_line(process.stdout, r"\] step ")
        told = len(place.history("steady"))
        place.cluster.stop("kube-apiserver")
        try:
            time.sleep(20)
            assert len(place.history("steady")) > told
        finally:
            place.cluster.start("kube-apiserver")
        wait_for(lambda: answers(place.cluster), "the API server is back")
        assert process.poll() is None, "the training ended before the API server was back"
        slow.unlink()
        out, err = process.communicate(timeout=LIMIT)
    finally:
        process.kill()
    assert process.returncode == 0, said + out + err
    assert place.history("steady")[-1]["kind"] == "summary"
    shown = (said + out).splitlines()
    assert shown == place.user.hvdkit("logs", "steady").stdout.splitlines()
    steps = [line for line in shown if "] step " in line]
    assert len(steps) == len(set(steps)) >= 4
    assert [(pod["phase"], pod["restarts"]) for pod in place.launchers("steady")] == [("Succeeded", 0)]


def answers(cluster: Cluster) -> bool:
    """Whether the API server does."""
    try:
        return cluster.kubectl("get", "--raw=/readyz") == "ok"
    except Problem:
        return False


def wait_for_line(stream, pattern: str) -> str:
    """What came up to a line with this in it; the stream's end is none."""
    read = ""
    while not re.search(pattern, read):
        line = stream.readline()
        assert line, f"the output ended without {pattern}:\n{read}"
        read += line
    return read
