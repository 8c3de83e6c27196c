"""Pods that train from and save to the server of nfs/, which goes away in the middle.

The kubelet, the PersistentVolume and its claim, the arguments of the mount, the server and hvdkit are real; the NFS
client is ours (nfs_client/, NFS 4.1 through FUSE) instead of the kernel's, because this machine's may have none. So it
is shown that a job outlasts a `hard` mount whose server is away, and not how well Linux' own client does its part: for
that, test_nfs_server.py mounts the same server in a Linux kernel that has one.
"""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from cluster.cluster import Cluster
from kubernetes_jobs import User, wait_for
from kubernetes_training import IMAGE, LIMIT, put_mnist
from nfs_pods import EXPORT, NFS, NfsServer, nfs_server, nodes_that_mount_nfs

from hvdkit.train.checkpoints import load

NAMESPACE = "train-nfs"
AWAY = 20  # seconds
STEPS = 400
# Slow enough that the server can go away and come back before it is done.
NETS = """
import time
from torch import nn
class Slow(nn.Sequential):
    def forward(self, images):
        if self.training:
            time.sleep(0.05)
        return super().forward(images)
def slow(classes):
    return Slow(nn.Flatten(), nn.Linear(784, classes))
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NfsServer]:
    cluster = Cluster.current()
    with nodes_that_mount_nfs(cluster), nfs_server(cluster, tmp_path_factory.mktemp("nfs"), fill) as found:
        yield found


@pytest.fixture
def user(server: NfsServer, tmp_path: Path) -> Iterator[User]:
    """With the rights that an NFS volume takes beside the usual ones where `restricted` is enforced."""
    cluster = server.cluster
    cluster.namespace(NAMESPACE, "restricted")
    made = User(cluster, NAMESPACE, tmp_path)
    cluster.kubectl("create", "clusterrole", "volumes", "--verb=create,get", "--resource=persistentvolumes")
    subject = f"--serviceaccount={NAMESPACE}:hvdkit"
    cluster.kubectl("create", "clusterrolebinding", "volumes", "--clusterrole=volumes", subject)
    try:
        yield made
    finally:
        cluster.kubectl("delete", "namespace", NAMESPACE)  # with its pods, so that nothing is mounted any more
        cluster.kubectl("delete", "clusterrolebinding,clusterrole", "volumes")
        cluster.kubectl("delete", "persistentvolume", "--selector=app.kubernetes.io/managed-by=hvdkit")


def test_a_job_outlasts_20_seconds_without_the_server(server: NfsServer, user: User) -> None:
    run = server.disk / "run"
    process = user.start(*launch(server))
    try:
        wait_for(lambda: process.poll() is not None or len(steps_saved(run)) >= 2, "two checkpoints", LIMIT)
        mounts = mounted(server)
        server.stop()
        before = state(run)
        assert steps_saved(run)[-1] < STEPS
        time.sleep(AWAY)
        assert process.poll() is None, process.communicate()
        assert state(run) == before  # it waits
        server.start()
        out, err = process.communicate(timeout=LIMIT)
    finally:
        process.kill()
    assert process.returncode == 0, out + err
    assert f"namespace {NAMESPACE} enforces restricted: NFS is mounted through a PV and a claim" in err

    status = user.json("status", "nfs")
    assert status["phase"] == "Succeeded"
    assert [(pod["phase"], pod["restarts"]) for pod in status["pods"] if pod["launcher"]] == [("Succeeded", 0)]
    assert len(mounts) == 3  # launcher and workers
    assert_volume_is_ours(server)

    history = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    kinds = [line["kind"] for line in history]
    assert (kinds[0], kinds.count("start"), kinds[-1]) == ("start", 1, "summary")
    steps = [line["step"] for line in history if line["kind"] == "interval"]
    assert steps == sorted(set(steps)) and steps[-1] == STEPS
    assert (history[-1]["ranks"], history[-1]["hosts"]) == (2, 2)
    assert [line for line in history if line["kind"] == "evaluation"][-1]["accuracy_percent"] > 80

    checkpoints = sorted((run / "checkpoints").glob("*.pt"))
    assert [load(path).step for path in checkpoints] == steps_saved(run)  # an error unless each is whole
    assert steps_saved(run)[-1] == STEPS
    assert not list((run / "checkpoints").glob(".writing-*"))
    assert {(file.stat().st_uid, file.stat().st_gid) for file in run.rglob("*")} == {(1000, 1000)}
    assert_a_lost_claim_is_told(server, user)


def assert_a_lost_claim_is_told(server: NfsServer, user: User) -> None:
    """Its volume would take no other claim, and the pods of the next job would wait for ever."""
    cluster = server.cluster
    user.hvdkit("delete", "nfs")
    cluster.kubectl("delete", "persistentvolumeclaim", "--all", f"--namespace={NAMESPACE}")

    def released() -> list[str]:
        volumes = cluster.get("persistentvolumes")["items"]
        ours = [one for one in volumes if (one["spec"].get("claimRef") or {}).get("namespace") == NAMESPACE]
        return [one["metadata"]["name"] for one in ours if one["status"]["phase"] == "Released"]

    wait_for(released, "a volume without its claim", LIMIT)
    done = user.hvdkit(*launch(server), code=3)
    assert f"`kubectl delete pv {released()[0]}`" in done.stderr
    assert user.json("list")["jobs"] == []


def fill(disk: Path) -> None:
    put_mnist(disk / "mnist" / "MNIST" / "raw")
    (disk / "nets.py").write_text(NETS)


def launch(server: NfsServer) -> list[str]:
    words = ["launch", "--backend", "mpijob", "--name", "nfs", "--workers", "2", "--image", IMAGE, "--threads", "1"]
    words += ["--nfs", f"{server.address}:{EXPORT}:/data", "--working-dir", "/data"]
    words += ["--", "hvdkit", "train", "--data", "mnist", "--data-dir", "/data/mnist", "--output", "/data/run"]
    words += ["--model", "nets:slow", "--batch-size", "10", "--epochs", "1", "--max-steps", str(STEPS)]
    return [*words, "--checkpoint-every", "20"]


def steps_saved(run: Path) -> list[int]:
    """The steps of the checkpoints on the server's disk."""
    names = [path.name for path in (run / "checkpoints").glob("step-*.pt")]
    return sorted(int(name.removeprefix("step-").partition(".")[0]) for name in names)


def state(run: Path) -> dict[str, tuple[int, int]]:
    """All that the run has on the server's disk."""
    return {str(file): (file.stat().st_size, file.stat().st_mtime_ns) for file in run.rglob("*")}


def mounted(server: NfsServer) -> list[str]:
    """Where the nodes have the server's folder now, once for each pod."""
    source = f"{server.address}:{EXPORT}"
    lines = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    return [line[1] for line in lines if line[0] == source and "kubernetes.io~nfs" in line[1]]


def assert_volume_is_ours(server: NfsServer) -> None:
    """The PV has the options of nfs/volume.yaml, and with these the kubelet has mounted it."""
    expected = next(yaml.safe_load_all((NFS / "volume.yaml").read_text()))["spec"]["mountOptions"]
    volumes = server.cluster.get("persistentvolumes")["items"]
    [volume] = [one for one in volumes if "nfs" in one["spec"]]
    assert volume["spec"]["mountOptions"] == expected
    assert volume["spec"]["nfs"] == {"server": server.address, "path": EXPORT}
    asked = (server.cluster.places.logs / "nfs-client.log").read_text()
    [given] = {line.partition(" -o ")[2] for line in asked.splitlines() if re.match(rf"{server.address}:", line)}
    assert set(given.split(",")) - {"rw"} == set(expected)
