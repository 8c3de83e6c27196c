"""DDP on the pods of a MonarchMesh in a real cluster, in a namespace that enforces `restricted`.

The Monarch operator is in no registry: a stand-in makes the pods (monarch_operator.py), or the real one where
HVDKIT_E2E_MONARCH_OPERATOR names its binary. The definition of the MonarchMesh is made of our own schema, or the real
one where HVDKIT_E2E_MONARCH_CRD names its file. Everything else is real: the mesh that hvdkit applied, Monarch's worker
loop in its pods, and its KubernetesJob in the controller.

Needs the worker image with Monarch in it: `make images` builds it, and the cluster takes it by --image.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import monarch_operator
import pytest
import yaml
from cluster.cluster import Cluster
from kubernetes_jobs import User, wait_for
from kubernetes_training import IMAGE, LIMIT, WITH_MONARCH, Place, place_to_train, training

PARTS = "monarchmeshes,statefulsets,services,pods,networkpolicies,serviceaccounts,roles,rolebindings"
# Each rank says where it is; then one fails, and the other must not be waited for.
FAULTY = """
import os, socket, sys, time
rank = int(os.environ["RANK"])
print("rank", rank, "on", socket.gethostname(), flush=True)
if rank == 1:
    {fault}
time.sleep(600)
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    cluster = Cluster.current()
    wait_for(lambda: WITH_MONARCH in images_of(cluster), f"a node has {WITH_MONARCH}: start the cluster with --image")
    monarch_operator.install_definition(cluster)
    with place_to_train(cluster, tmp_path_factory.mktemp("user")) as found:
        yield found


@pytest.fixture
def operator(place: Place, tmp_path: Path) -> Iterator[None]:
    with monarch_operator.running(place.cluster, tmp_path / "operator.log"):
        yield


def images_of(cluster: Cluster) -> str:
    return "".join(json.dumps(node["status"].get("images", [])) for node in cluster.get("nodes")["items"])


def launch(place: Place, name: str, *flags: str, image: str = WITH_MONARCH) -> list[str]:
    words = place.launch(name, "monarch", *flags)
    words[words.index(IMAGE)] = image
    return words


def objects(user: User, name: str, kinds: str = PARTS) -> set[str]:
    """What there is of a job, each as kind/name."""
    selector = f"--selector=hvdkit.io/job={name}"
    return set(user.cluster.kubectl("get", kinds, f"--namespace={user.namespace}", selector, "--output=name").split())


def wait_until_the_mesh_is_gone(user: User, name: str) -> None:
    """And all that was made of it; what is left of a job then is its controller."""
    where = f"--namespace={user.namespace}"

    def left() -> list[str]:
        made = user.cluster.kubectl("get", "monarchmeshes,statefulsets,services", where, "--output=name").split()
        return made + [pod["name"] for pod in user.json("status", name)["pods"] if not pod["launcher"]]

    wait_for(lambda: not left(), lambda: f"the mesh is gone, but for {left()}")


def test_ddp_on_the_mesh_that_hvdkit_applied(place: Place, operator: None) -> None:
    """A name with a dash: the mesh then has another one."""
    user, words = place.user, [*launch(place, "ddp-mnist"), *training("ddp", "--max-steps", "220")]
    said = user.hvdkit(*words[:1], "--dry-run", *words[1:]).stdout
    [rendered] = [one for one in yaml.safe_load_all(said) if one["kind"] == "MonarchMesh"]
    process = user.start(*words)
    try:
        where = f"--namespace={user.namespace}"
        found = wait_for(
            lambda: place.cluster.get("monarchmeshes", where)["items"] or process.poll() is not None, "there is a mesh"
        )
        out, err = process.communicate(timeout=LIMIT)
    finally:
        process.kill()
    assert process.returncode == 0, out + err
    [applied] = found
    assert applied["spec"] == rendered["spec"] and applied["metadata"]["name"] == rendered["metadata"]["name"]
    assert "2 ranks on 2 pods; backend monarch" in err.splitlines()[0]
    summary = place.history("ddp")[-1]
    assert (summary["kind"], summary["ranks"], summary["hosts"]) == ("summary", 2, 2)
    assert (summary["engine"], summary["library"]) == ("ddp", "Gloo")
    assert place.accuracy("ddp") >= 95
    wait_until_the_mesh_is_gone(user, "ddp-mnist")
    status = user.json("status", "ddp-mnist")
    assert (status["phase"], status["exit_code"], status["workers"]) == ("Succeeded", 0, 2)
    assert [(pod["phase"], pod["restarts"]) for pod in status["pods"]] == [("Succeeded", 0)]
    assert "nothing is wrong" in user.json("why", "ddp-mnist")["cause"]
    assert "test accuracy" in user.hvdkit("logs", "ddp-mnist", "--rank", "0").stdout
    user.hvdkit("delete", "ddp-mnist")
    wait_for(lambda: not objects(user, "ddp-mnist"), lambda: f"nothing is left but {objects(user, 'ddp-mnist')}")


@pytest.mark.parametrize(
    ("name", "fault", "code", "said"),
    [
        ("raises", "raise RuntimeError('no such luck')", 1, "RuntimeError: no such luck"),
        ("leaves", "sys.exit(7)", 7, "exit code 7"),
    ],
)
def test_a_rank_that_fails(place: Place, operator: None, name: str, fault: str, code: int, said: str) -> None:
    user = place.user
    done = user.hvdkit(*launch(place, name), "--", "python", "-c", FAULTY.format(fault=fault), code=code, limit=LIMIT)
    assert f"[1] rank 1 on {name}-1" in done.stdout
    assert f"hvdkit: {name} failed: rank 1 on {name}-1" in done.stderr and said in done.stdout + done.stderr
    wait_until_the_mesh_is_gone(user, name)
    answer = user.json("why", name)
    assert (answer["trouble"], f"rank 1 on {name}-1" in answer["cause"]) == ("rank", True)
    assert any(said in line for line in [answer["cause"], *answer["evidence"]])
    status = user.json("status", name)
    assert (status["phase"], status["exit_code"]) == ("Failed", code)
    assert user.hvdkit("wait", name, code=code)


def test_deleted_while_it_runs(place: Place, operator: None) -> None:
    user, script = place.user, "print('here', flush=True); import time; time.sleep(600)"
    user.hvdkit(*launch(place, "cut", "--grace", "10", "--detach"), "--", "python", "-c", script)
    wait_for(lambda: "[1] here" in user.hvdkit("logs", "cut", code=None).stdout, "the ranks run", LIMIT)
    status = user.json("status", "cut")
    assert (status["phase"], status["ready"], len(status["pods"])) == ("Running", 2, 3)
    user.hvdkit("delete", "cut")
    wait_for(lambda: not objects(user, "cut"), lambda: f"nothing is left but {objects(user, 'cut')}")


def test_a_worker_that_is_deleted(place: Place, operator: None) -> None:
    """The ranks save and leave. Nobody starts the controller again; the next launch goes on where they were."""
    user, slow = place.user, place.shared / "slow"
    slow.touch()
    flags = ("--model", "nets:slow", "--batch-size", "10", "--max-steps", "300", "--checkpoint-every", "20")
    process = user.start(*launch(place, "lost", "--working-dir", "/shared"), *training("lost", *flags))
    try:
        folder = place.shared / "lost" / "checkpoints"
        wait_for(lambda: folder.exists() and list(folder.glob("*.pt")), "there is a checkpoint", LIMIT)
        place.cluster.kubectl("delete", "pod", "lost-1", f"--namespace={user.namespace}", "--wait=false")
        out, err = process.communicate(timeout=LIMIT)
    finally:
        process.kill()
        slow.unlink()
    assert process.returncode == 75, out + err
    wait_until_the_mesh_is_gone(user, "lost")
    assert user.json("why", "lost")["trouble"] == "stopped"
    user.hvdkit(*launch(place, "again", "--working-dir", "/shared"), *training("lost", *flags), limit=LIMIT)
    first, second = (one for one in place.history("lost") if one["kind"] == "start")
    assert (first["step"], second["step"] > 0, place.history("lost")[-1]["kind"]) == (0, True, "summary")


def test_an_image_without_monarch(place: Place, operator: None) -> None:
    """Nothing of it can run; the mesh does not stay all the same."""
    user = place.user
    done = user.hvdkit(*launch(place, "bare", image=IMAGE), "--", "true", code=3, limit=LIMIT)
    assert "hvdkit image build --monarch" in done.stderr
    wait_until_the_mesh_is_gone(user, "bare")


def test_without_the_operator(place: Place) -> None:
    user = place.user
    user.hvdkit(*launch(place, "alone", "--detach"), "--", "true")
    answer = user.why("alone", "operator")
    assert "nobody has looked at the MonarchMesh" in answer["cause"]
    user.hvdkit("delete", "alone")
    wait_for(lambda: not objects(user, "alone"), lambda: f"nothing is left but {objects(user, 'alone')}")
