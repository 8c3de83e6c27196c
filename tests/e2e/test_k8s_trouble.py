"""Jobs that fail, or nearly do, on a real cluster: the right exit code and the right `why`."""

import re
from collections.abc import Iterator

import pytest
from cluster.cluster import Cluster
from kubernetes_jobs import User
from kubernetes_training import LIMIT, Place, place_to_train

RAISES = "import horovod.torch as hvd; hvd.init(); assert hvd.rank() != 1, 'the data of rank 1 is bad'"
GREEDY = "import os; x = b'x' * 10**9 if os.environ['OMPI_COMM_WORLD_RANK'] == '1' else b''; print(len(x))"
TRAINS = "import horovod.torch as hvd; hvd.init(); print('trained')"


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
    admin.hvdkit(*words, "--detach", "--", "true")
    answer = place.user.why("nfs", "mount", limit=LIMIT)
    assert "NFS server" in answer["what_to_do"] and "10.244.255.1:/exports" in "".join(answer["evidence"])
    admin.hvdkit("delete", "nfs", "-n", place.user.namespace)


def wait_for_line(stream, pattern: str) -> str:
    """What came up to a line with this in it; the stream's end is none."""
    read = ""
    while not re.search(pattern, read):
        line = stream.readline()
        assert line, f"the output ended without {pattern}:\n{read}"
        read += line
    return read
