"""Real training on a real cluster, in a namespace that enforces `restricted`, with hvdkit's own image."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml
from cluster.cluster import Cluster
from kubernetes_jobs import wait_for
from kubernetes_training import IMAGE, LIMIT, Place, place_to_train, training

MANIFEST = Path(__file__).parents[2] / "manifests" / "mpijob.yaml"
# Less than half an epoch of two ranks: enough to learn it.
SHORT = ("--max-steps", "220")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with place_to_train(Cluster.current(), tmp_path_factory.mktemp("user")) as found:
        yield found


def test_an_mpijob_learns_mnist(place: Place) -> None:
    user = place.user
    done = user.hvdkit(*place.launch("mnist", "mpijob", workers=4), *training("mnist"), limit=LIMIT)
    assert "backend mpijob (as asked)" in done.stderr.splitlines()[0]
    assert place.accuracy("mnist") >= 97
    assert list((place.shared / "mnist" / "checkpoints").iterdir())
    summary = place.history("mnist")[-1]
    assert (summary["kind"], summary["ranks"], summary["hosts"], summary["library"]) == ("summary", 4, 4, "MPI")
    assert user.json("status", "mnist")["phase"] == "Succeeded"
    assert [(pod["phase"], pod["restarts"]) for pod in place.launchers("mnist")] == [("Succeeded", 0)]
    wait_for(lambda: len(user.json("status", "mnist")["pods"]) == 1, "the workers are gone")
    assert "test accuracy" in user.hvdkit("logs", "mnist", "--rank", "0").stdout


@pytest.mark.parametrize("engine", ["horovod", "ddp"])
def test_an_indexed_job_learns_mnist_without_an_operator(place: Place, engine: str) -> None:
    words = place.launch(f"indexed-{engine}", "indexed-job", "--engine", engine)
    place.user.hvdkit(*words, *training(engine, *SHORT), limit=LIMIT)
    summary = place.history(engine)[-1]
    assert (summary["ranks"], summary["hosts"], summary["engine"], summary["library"]) == (2, 2, engine, "Gloo")
    assert place.accuracy(engine) >= 97


def test_a_plain_job_is_one_world_on_cifar_files_of_a_claim(place: Place) -> None:
    write_cifar10(place.shared / "cifar")
    flags = ("--model", "nets:of_cifar", "--batch-size", "25", "--lr", "0.001", "--augment", "none")
    words = training("plain", *flags, data="cifar10")
    words[words.index("/shared/data")] = "/shared/cifar"
    place.user.hvdkit(*place.launch("plain", "job", "--working-dir", "/shared"), *words, limit=LIMIT)
    summary = place.history("plain")[-1]
    assert (summary["data"], summary["ranks"], summary["hosts"]) == ("CIFAR-10", 2, 2)
    assert summary["steps"] == 20
    assert place.accuracy("plain") >= 90


def test_a_pytorchjob_runs_two_processes_in_each_pod(place: Place) -> None:
    words = place.launch("torch", "pytorchjob", "--slots", "2")
    done = place.user.hvdkit(*words, *training("torch", "--max-steps", "60"), limit=LIMIT)
    assert "4 ranks on 2 pods; backend pytorchjob" in done.stderr.splitlines()[0]
    summary = place.history("torch")[-1]
    assert (summary["ranks"], summary["hosts"], summary["engine"]) == (4, 2, "ddp")
    assert place.accuracy("torch") >= 85


def test_auto_is_an_mpijob_whose_code_lies_on_the_volume(place: Place) -> None:
    (place.shared / "code.py").write_text(
        "import horovod.torch as hvd, torch\nhvd.init()\n"
        "total = hvd.allreduce(torch.tensor([float(hvd.rank())]), op=hvd.Sum, name='ranks')\n"
        "print('the sum of', hvd.size(), 'ranks is', total.item())\n"
    )
    words = place.launch("volume", "auto", "--working-dir", "/shared")
    done = place.user.hvdkit(*words, "--", "python", "code.py", limit=LIMIT)
    assert "backend mpijob (context" in done.stderr.splitlines()[0]
    assert done.stdout.count("the sum of 2 ranks is 1.0") == 2


def test_the_manifest_that_kubectl_applies(place: Place, tmp_path: Path) -> None:
    """As it is in manifests/, but for what a user must set: the image, the data, and how much the nodes have."""
    (tmp_path / "mpijob.yaml").write_text(MANIFEST.read_text())
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(overlay(place.user.namespace)))
    rendered = place.cluster.kubectl("kustomize", str(tmp_path))
    place.cluster.kubectl("apply", "--filename=-", text=rendered)
    ended = f"--for=condition=Succeeded mpijob/mpijob --namespace={place.user.namespace} --timeout={LIMIT}s"
    place.cluster.kubectl("wait", *ended.split())
    [launcher] = place.launchers("mpijob")
    assert (launcher["phase"], launcher["restarts"]) == ("Succeeded", 0)
    last = place.user.hvdkit("logs", "mpijob", "--rank", "0").stdout.partition("test accuracy  ")[2]
    assert float(last.split()[0]) >= 97


def overlay(namespace: str) -> dict:
    """A kustomization of manifests/mpijob.yaml for a small cluster whose data lie on a claim."""
    replicas = yaml.safe_load(MANIFEST.read_text())["spec"]["mpiReplicaSpecs"]
    changes: list[dict] = []
    for replica in ("Launcher", "Worker"):  # not 4 x 2 processors, and so not 4 x 2 threads
        names = [one["name"] for one in replicas[replica]["template"]["spec"]["containers"][0]["env"]]
        place = f"/spec/mpiReplicaSpecs/{replica}/template/spec/containers/0/env/{names.index('OMP_NUM_THREADS')}/value"
        changes.append({"op": "replace", "path": place, "value": "1"})
    pod = "/spec/mpiReplicaSpecs/Worker/template/spec"
    changes.append({"op": "remove", "path": f"{pod}/containers/0/resources"})
    added = {
        "containers/0/env": {"name": "HVDKIT_DATA_DIR", "value": "/data"},
        "containers/0/volumeMounts": {"name": "data", "mountPath": "/data", "subPath": "data"},
        "volumes": {"name": "data", "persistentVolumeClaim": {"claimName": "shared"}},
    }
    changes += [{"op": "add", "path": f"{pod}/{path}/-", "value": value} for path, value in added.items()]
    name, _, tag = IMAGE.partition(":")
    return {
        "resources": ["mpijob.yaml"],
        "namespace": namespace,
        "images": [{"name": name, "newTag": tag}],
        "patches": [{"target": {"kind": "MPIJob"}, "patch": yaml.safe_dump(changes)}],
    }


def write_cifar10(folder: Path) -> None:
    """Files as CIFAR-10 has them, smaller: a label, then 3 x 32 x 32 bytes; a bright stripe tells the label."""
    chance = np.random.default_rng(1)
    batches = folder / "cifar-10-batches-bin"
    batches.mkdir(parents=True)
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        labels = chance.integers(0, 10, size=200, dtype=np.uint8)
        images = chance.integers(0, 100, size=(200, 3, 32, 32), dtype=np.uint8)
        for image, label in zip(images, labels, strict=True):
            image[:, 3 * label : 3 * label + 3] += 100
        (batches / f"{name}.bin").write_bytes(np.hstack([labels[:, None], images.reshape(200, -1)]).tobytes())
