"""What tests rely on, checked from inside a cluster.

`python -m tests.e2e.cluster run -- pytest tests/e2e/cluster/checks.py`, as `test_cluster_lifecycle.py` does it; the
file's name keeps a plain pytest, which has no cluster, from collecting it.
"""

import json
import subprocess
from pathlib import Path

import pytest

from . import Cluster
from .archives import pack
from .build import kubernetes_version
from .images import BUSYBOX
from .problem import Problem

NAMESPACE = "team"
SAFE = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    cluster = Cluster.current()
    cluster.namespace(NAMESPACE)
    return cluster


def template(*command: str, **container: object) -> dict:
    """A pod's template that the level `restricted` accepts."""
    return {
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [
                {"name": "main", "image": BUSYBOX, "command": list(command), "securityContext": SAFE, **container}
            ],
        }
    }


def run(cluster: Cluster, name: str, *command: str, labels: dict | None = None, **container: object) -> None:
    metadata = {"name": name, "namespace": NAMESPACE, "labels": labels or {}}
    cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, **template(*command, **container)})


def wait(cluster: Cluster, condition: str, thing: str, seconds: int = 120) -> None:
    cluster.kubectl("wait", f"--for={condition}", thing, f"--namespace={NAMESPACE}", f"--timeout={seconds}s")


def output(cluster: Cluster, name: str, *command: str) -> str:
    """What a pod prints, once it has succeeded."""
    run(cluster, name, *command)
    try:
        wait(cluster, "jsonpath={.status.phase}=Succeeded", f"pod/{name}")
    except Problem as problem:
        described = cluster.kubectl("describe", "pod", name, f"--namespace={NAMESPACE}")
        pytest.fail(f"{problem}\n{described}\n{cluster.kubectl('logs', name, f'--namespace={NAMESPACE}')}")
    return cluster.kubectl("logs", name, f"--namespace={NAMESPACE}")


def test_the_api_is_the_version_that_was_built(cluster: Cluster) -> None:
    answer = json.loads(cluster.kubectl("version", "--output=json"))
    assert answer["serverVersion"]["gitVersion"] == answer["clientVersion"]["gitVersion"] == kubernetes_version()
    [node] = cluster.get("nodes")["items"]
    assert node["status"]["nodeInfo"]["kubeletVersion"] == kubernetes_version()


def test_a_pod_runs_without_root_and_its_log_is_readable(cluster: Cluster) -> None:
    assert output(cluster, "hello", "sh", "-c", "echo hello from $(id -u)") == "hello from 65534\n"


def test_exec_reaches_a_pod(cluster: Cluster) -> None:
    run(cluster, "waiting", "sleep", "infinity")
    wait(cluster, "condition=Ready", "pod/waiting")
    assert cluster.kubectl("exec", "waiting", f"--namespace={NAMESPACE}", "--", "hostname") == "waiting\n"


def test_restricted_is_enforced(cluster: Cluster) -> None:
    with pytest.raises(Problem, match=r"violates PodSecurity \"restricted:latest\""):
        run(cluster, "root", "id", securityContext={"privileged": True})


def test_names_of_a_headless_service_resolve_and_a_cluster_address_connects(cluster: Cluster) -> None:
    labels = {"app": "web"}
    serve = "mkdir /tmp/www && echo served > /tmp/www/index.html && httpd -f -p 8080 -h /tmp/www"
    often = {"tcpSocket": {"port": 8080}, "periodSeconds": 1}
    run(cluster, "web", "sh", "-c", serve, labels=labels, readinessProbe=often)
    for name, address in (("headless", {"clusterIP": "None"}), ("balanced", {})):
        metadata = {"name": name, "namespace": NAMESPACE}
        spec = {**address, "selector": labels, "ports": [{"port": 80, "targetPort": 8080}]}
        cluster.apply({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec})
    wait(cluster, "condition=Ready", "pod/web")
    address = cluster.get("pod", "web", f"--namespace={NAMESPACE}")["status"]["podIP"]
    # A name and a rule follow the pod with some delay, as in every cluster.
    patiently = "until nslookup headless.team.svc.cluster.local && wget -qO- http://balanced; do sleep 0.2; done"
    answer = output(cluster, "client", "sh", "-c", patiently)
    assert f"Address: {address}" in answer
    assert answer.endswith("served\n")


def test_gpus_are_counted_by_the_scheduler(cluster: Cluster) -> None:
    cluster.set_gpus("node-1", 4)
    run(cluster, "four-gpus", "sleep", "infinity", resources={"limits": {"nvidia.com/gpu": 4}})
    wait(cluster, "condition=Ready", "pod/four-gpus")
    run(cluster, "one-more", "true", resources={"limits": {"nvidia.com/gpu": 1}})
    wait(cluster, "jsonpath={.status.conditions[0].reason}=Unschedulable", "pod/one-more")
    message = cluster.get("pod", "one-more", f"--namespace={NAMESPACE}")["status"]["conditions"][0]["message"]
    assert "Insufficient nvidia.com/gpu" in message
    cluster.kubectl("delete", "pod", "four-gpus", "one-more", f"--namespace={NAMESPACE}")


def test_a_volume_is_shared_between_pods_and_tests(cluster: Cluster) -> None:
    folder = cluster.volume(NAMESPACE, "data")
    (folder / "in").write_text("in")
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "writer", "namespace": NAMESPACE}}
    pod |= template("sh", "-c", "cp /data/in /data/out", volumeMounts=[{"name": "data", "mountPath": "/data"}])
    pod["spec"]["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    cluster.apply(pod)
    wait(cluster, "jsonpath={.status.phase}=Succeeded", "pod/writer")
    assert (folder / "out").read_text() == "in"


def test_a_service_account_may_do_what_its_role_allows(cluster: Cluster) -> None:
    cluster.kubectl("create", "serviceaccount", "reader", f"--namespace={NAMESPACE}")
    cluster.kubectl("create", "role", "read", "--verb=list", "--resource=pods", f"--namespace={NAMESPACE}")
    bind = ("--role=read", f"--serviceaccount={NAMESPACE}:reader", f"--namespace={NAMESPACE}")
    cluster.kubectl("create", "rolebinding", "read", *bind)
    kubeconfig = f"--kubeconfig={cluster.kubeconfig_for('reader', NAMESPACE)}"
    cluster.kubectl("get", "pods", kubeconfig)
    with pytest.raises(Problem, match="cannot list resource"):
        cluster.kubectl("get", "secrets", kubeconfig)


def test_an_image_can_be_imported_while_the_cluster_runs(cluster: Cluster, tmp_path: Path) -> None:
    busybox = Path(subprocess.run(["which", "busybox"], capture_output=True, text=True, check=True).stdout.strip())
    words = ["/busybox", "echo", "late"]
    pack(tmp_path / "late.tar", "localhost/late:1", {"busybox": busybox}, entrypoint=words, user="1000:1000")
    cluster.import_image(tmp_path / "late.tar")
    run(cluster, "late", image="localhost/late:1")
    wait(cluster, "jsonpath={.status.phase}=Succeeded", "pod/late")
    assert cluster.kubectl("logs", "late", f"--namespace={NAMESPACE}") == "late\n"


def test_mpi_operator_makes_the_pods_of_a_job(cluster: Cluster) -> None:
    pods = {"template": template("sleep", "infinity")}
    job = {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": {"name": "train", "namespace": NAMESPACE},
        "spec": {
            "runPolicy": {"cleanPodPolicy": "All"},
            "mpiReplicaSpecs": {
                "Launcher": {"replicas": 1, "restartPolicy": "Never", "template": template("cat", "/etc/mpi/hostfile")},
                "Worker": {"replicas": 2, **pods},
            },
        },
    }
    cluster.apply(job)
    wait(cluster, "condition=Succeeded", "mpijob/train")
    launcher = "--selector=training.kubeflow.org/job-name=train,training.kubeflow.org/job-role=launcher"
    hosts = cluster.kubectl("logs", launcher, f"--namespace={NAMESPACE}").splitlines()
    assert hosts == [f"train-worker-{number}.train.team.svc slots=1" for number in range(2)]
    wait(cluster, "delete", "pod/train-worker-0")


def test_training_operator_makes_the_pods_of_a_job_and_checks_it_first(cluster: Cluster) -> None:
    replica = {"replicas": 1, "template": template("sh", "-c", "echo rank $RANK of $WORLD_SIZE")}
    replica["template"]["spec"]["containers"][0]["name"] = "pytorch"
    job = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "torch", "namespace": NAMESPACE},
        "spec": {"nprocPerNode": "1", "pytorchReplicaSpecs": {"Master": replica}},
    }
    cluster.apply(job)
    wait(cluster, "condition=Succeeded", "pytorchjob/torch")
    assert cluster.kubectl("logs", "torch-master-0", f"--namespace={NAMESPACE}") == "rank 0 of 1\n"
    replica["template"]["spec"]["containers"][0]["name"] = "main"
    job["metadata"]["name"] = "nameless"
    with pytest.raises(Problem, match=r"validator.pytorchjob.training-operator.kubeflow.org"):
        cluster.apply(job)


def test_the_api_server_can_go_and_come_back(cluster: Cluster) -> None:
    cluster.stop("kube-apiserver")
    with pytest.raises(Problem, match="refused"):
        cluster.kubectl("get", "nodes")
    cluster.start("kube-apiserver")
    ask = "until kubectl get --raw=/readyz; do sleep 0.5; done"
    subprocess.run(["sh", "-c", ask], check=True, capture_output=True, timeout=120)
    assert output(cluster, "afterwards", "echo", "back") == "back\n"


def test_a_pod_on_a_second_node_reaches_one_on_the_first(cluster: Cluster) -> None:
    node = cluster.add_node(gpus=2)
    assert [item["metadata"]["name"] for item in cluster.get("nodes")["items"]] == ["node-1", "node-2"]
    address = cluster.get("pod", "web", f"--namespace={NAMESPACE}")["status"]["podIP"]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "there", "namespace": NAMESPACE}}
    pod |= template("wget", "-qO-", f"http://{address}:8080", resources={"limits": {"nvidia.com/gpu": 2}})
    pod["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node.name}
    cluster.apply(pod)
    wait(cluster, "jsonpath={.status.phase}=Succeeded", "pod/there")
    assert cluster.kubectl("logs", "there", f"--namespace={NAMESPACE}") == "served\n"
