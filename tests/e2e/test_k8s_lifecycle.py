"""The life of jobs on a real cluster, through every command; the user has the rights of manifests/rbac.yaml only."""

import json
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster.cluster import Cluster
from kubernetes_jobs import BUSYBOX, User, interrupt, plain_job, wait_for


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    return Cluster.current()


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    name = cluster.namespace(f"life-{secrets.token_hex(3)}", "restricted")
    yield name
    cluster.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture
def user(cluster: Cluster, namespace: str, tmp_path: Path) -> User:
    return User(cluster, namespace, tmp_path)


def test_from_launch_to_delete(user: User) -> None:
    done = user.hvdkit(*plain_job("one", "echo hello from $HOSTNAME; sleep 2", "--workers", "2"))
    assert done.stdout.count("hello from one-") == 2
    assert done.stderr.splitlines()[0].startswith("hvdkit: one: 2 ranks on 2 pods; backend job (as asked), namespace ")
    assert "hvdkit: one: Running, 2 of 2 workers ready" in done.stderr
    status = user.json("status", "one")
    assert (status["phase"], status["exit_code"], len(status["pods"])) == ("Succeeded", 0, 2)
    assert [job["name"] for job in user.json("list")["jobs"]] == ["one"]
    assert user.hvdkit("logs", "one").stdout.count("hello from one-") == 2
    assert "nothing is wrong" in user.hvdkit("why", "one").stdout
    assert user.hvdkit("wait", "one").returncode == 0
    assert user.hvdkit("delete", "one").stdout == "one deleted.\n"
    assert user.objects("one") == []
    assert "there is no job 'one'" in user.hvdkit("status", "one", code=2).stderr
    assert "the job 'one' succeeded, and was removed since" in user.hvdkit("why", "one").stdout


def test_what_is_made_for_a_job_goes_with_it(user: User) -> None:
    """An Indexed Job brings a Service and a NetworkPolicy."""
    words = ["launch", "--backend", "indexed-job", "--name", "owned", "--image", BUSYBOX, "--pull-policy", "Never"]
    user.hvdkit(*words, "--detach", "--", "true")
    kinds = {line.partition("/")[0] for line in user.objects("owned")}
    assert {"service", "networkpolicy.networking.k8s.io", "job.batch"} <= kinds
    user.hvdkit("delete", "owned")
    wait_for(lambda: user.objects("owned") == [], lambda: f"nothing is left but {user.objects('owned')}")


def test_the_exit_code_is_the_jobs_and_why_knows_later(user: User) -> None:
    done = user.hvdkit(*plain_job("bad", "echo last words; exit 7"), code=7)
    assert "last words" in done.stdout
    assert "hvdkit: bad failed: pod bad-" in done.stderr and "exit code 7" in done.stderr
    answer = user.json("why", "bad")
    assert answer["trouble"] == "program" and any("last words" in line for line in answer["evidence"])
    user.hvdkit("delete", "bad")
    assert "the job failed, and was removed since" in user.json("why", "bad")["cause"]


def test_a_name_that_is_taken(user: User) -> None:
    user.hvdkit(*plain_job("same", "sleep 600", "--detach"))
    refused = user.hvdkit(*plain_job("same", "true"), code=2)
    assert "there is a job 'same' (backend job)" in refused.stderr and "hvdkit delete same" in refused.stderr
    user.hvdkit("delete", "same")
    user.hvdkit(*plain_job("same", "true"))


@pytest.mark.parametrize("of_hvdkit", [False, True])
def test_the_name_of_a_part_is_taken(user: User, cluster: Cluster, of_hvdkit: bool) -> None:
    """Whose the Service is, somebody with the rights of manifests/rbac.yaml can see."""
    labels = {"app.kubernetes.io/managed-by": "hvdkit", "hvdkit.io/job": "held", "hvdkit.io/backend": "indexed-job"}
    metadata = {"name": "held", "namespace": user.namespace, "labels": labels if of_hvdkit else {}}
    spec = {"clusterIP": "None", "selector": {"nobody": "here"}}
    cluster.apply({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec})
    words = ["launch", "--backend", "indexed-job", "--name", "held", "--image", BUSYBOX, "--pull-policy", "Never"]
    refused = user.hvdkit(*words, "--detach", "--", "true", code=2).stderr
    if not of_hvdkit:
        assert "there is a Service 'held' in namespace" in refused and "that is not hvdkit's" in refused
        return
    assert "a Service of an earlier job 'held' is still in namespace" in refused and "`hvdkit delete held`" in refused
    assert "1 objects that it had left are deleted" in user.hvdkit("delete", "held").stdout
    user.hvdkit(*words, "--detach", "--", "true")


def test_what_is_left_of_an_earlier_job_does_not_count(user: User, cluster: Cluster) -> None:
    """The Job of its launcher says Complete until garbage collection has taken it; a finalizer holds that up here."""
    user.hvdkit(*plain_job("again-launcher", "true"))
    earlier = {"apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "name": "again", "uid": "of-an-earlier-job"}
    change_launcher = ("patch", "job", "again-launcher", f"--namespace={user.namespace}", "--type=merge", "--patch")
    marks = {"finalizers": ["hvdkit.io/held"], "ownerReferences": [{**earlier, "controller": True}]}
    cluster.kubectl(*change_launcher, json.dumps({"metadata": marks}))
    words = ["launch", "--backend", "mpijob", "--name", "again", "--image", BUSYBOX, "--pull-policy", "Never"]
    user.hvdkit(*words, "--backoff-limit", "0", "--detach", "--", "true")
    assert "has not ended within 5 s" in user.hvdkit("wait", "again", "--timeout", "5", code=3).stderr
    assert user.json("status", "again")["phase"] in ("Pending", "Starting")
    (listed,) = [job for job in user.json("list")["jobs"] if job["name"] == "again"]
    assert listed["phase"] in ("Pending", "Starting")
    cluster.kubectl(*change_launcher, json.dumps({"metadata": {"finalizers": None}}))
    assert user.hvdkit("wait", "again", code=None).returncode not in (0, 2, 3)  # the image has no python
    assert user.why("again", "container")


def test_detached_and_waited_for(user: User, tmp_path: Path) -> None:
    assert user.hvdkit(*plain_job("apart", "sleep 5; echo done; exit 3", "--detach")).stdout == "apart\n"
    assert "has not ended within 1 s" in user.hvdkit("wait", "apart", "--timeout", "1", code=3).stderr
    user.hvdkit("wait", "apart", "--save-logs", str(tmp_path / "kept"), code=3)
    assert [file.read_text() for file in (tmp_path / "kept").iterdir()] == ["done\n"]


def test_suspended_and_resumed(user: User) -> None:
    user.hvdkit(*plain_job("nap", "echo awake; sleep 600", "--suspend", "--detach"))
    assert user.json("status", "nap")["phase"] == "Suspended"
    assert user.json("why", "nap")["trouble"] == "suspended"
    user.hvdkit("resume", "nap")
    wait_for(lambda: user.json("status", "nap")["phase"] == "Running", "it runs")
    assert user.hvdkit("suspend", "nap").stdout == "nap is suspended.\n"
    wait_for(lambda: user.json("status", "nap")["pods"] == [], "its pods are gone")
    assert "not for backend job" in user.hvdkit("scale", "nap", "--workers", "3", code=2).stderr


def test_a_command_in_a_pod(user: User) -> None:
    user.hvdkit(*plain_job("shell", "sleep 600", "--detach"))
    wait_for(lambda: user.json("status", "shell")["phase"] == "Running", "it runs")
    script = "echo in $HOSTNAME; echo err >&2; exit 5"
    done = user.hvdkit("exec", "shell", "--worker", "0", "--", "sh", "-c", script, code=5)
    assert done.stdout.startswith("in shell-") and done.stderr == "err\n"
    refused = user.hvdkit("exec", "shell", "--worker", "4", "--", "true", code=2)
    assert "no pod for worker 4; there are 0" in refused.stderr


@pytest.mark.parametrize("choice", ["keep", "delete"])
def test_interrupted(user: User, choice: str) -> None:
    process = user.start(*plain_job("halt", "echo started; sleep 600", "--on-interrupt", choice))
    assert process.stdout is not None and process.stdout.readline() == "started\n"
    interrupt(process)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    if choice == "keep":
        assert "halt goes on; `hvdkit logs -f halt` follows it" in said
        assert user.json("status", "halt")["phase"] == "Running"
    else:
        wait_for(lambda: user.objects("halt") == [], "it is gone")


class TestFailures:
    def test_an_image_that_does_not_exist(self, user: User) -> None:
        words = plain_job("image", "true", "--detach")
        words[words.index(BUSYBOX)] = "localhost/nothing:1"
        user.hvdkit(*words)
        assert "localhost/nothing:1" in user.why("image", "image")["cause"]

    def test_out_of_memory(self, user: User) -> None:
        script = "x=$(head -c 300000000 /dev/zero | tr '\\0' x); echo survived"
        done = user.hvdkit(*plain_job("large", script, "--memory", "32Mi"), code=137)
        assert "used up its memory of 32Mi" in done.stderr
        assert user.json("why", "large")["trouble"] == "out-of-memory"

    def test_gpus_that_no_node_has(self, user: User, cluster: Cluster) -> None:
        admin = {**user.environment, "KUBECONFIG": str(cluster.kubeconfig)}
        everything = User.__new__(User)
        everything.__dict__.update(user.__dict__, environment=admin)
        words = plain_job("gpus", "true", "--gpus", "800", "-n", user.namespace)
        assert "can never fit" in everything.hvdkit(*words, code=3).stderr
        user.hvdkit(*plain_job("gpus", "true", "--gpus", "800", "--detach"))  # who may not see nodes is not told
        assert "nvidia.com/gpu" in user.why("gpus", "scheduling")["cause"]

    def test_a_quota_that_is_used_up(self, user: User, cluster: Cluster) -> None:
        user.hvdkit(*plain_job("many", "sleep 600", "--workers", "2", "--suspend", "--detach"))
        metadata = {"name": "small", "namespace": user.namespace}
        quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": {"hard": {"pods": "1"}}}
        cluster.apply(quota)
        where = f"--namespace={user.namespace}"
        wait_for(lambda: (cluster.get("quota", "small", where).get("status") or {}).get("used"), "the quota counts")
        user.hvdkit("resume", "many")
        assert "quota small" in user.why("many", "quota")["cause"]
        refused = user.hvdkit(*plain_job("more", "true", "--workers", "2"), code=3)
        assert "quota small leaves" in refused.stderr

    def test_a_deadline(self, user: User) -> None:
        done = user.hvdkit(*plain_job("late", "sleep 600", "--deadline", "5", "--grace", "1"), code=None)
        assert done.returncode not in (0, 2, 3) and "--deadline passed" in done.stderr
        assert user.json("why", "late")["trouble"] == "deadline"

    def test_without_rights(self, cluster: Cluster, namespace: str, tmp_path: Path) -> None:
        nobody = User(cluster, namespace, tmp_path, rights=False)
        done = nobody.hvdkit(*plain_job("none", "true"), code=3)
        assert "you may not create jobs in namespace" in done.stderr and "manifests/rbac.yaml" in done.stderr
        assert "manifests/rbac.yaml" in nobody.hvdkit("list", code=3).stderr

    @pytest.mark.alone
    def test_the_api_server_is_away_for_a_while(self, user: User, cluster: Cluster) -> None:
        """Every line once, the end is seen, the exit code is right."""
        script = "i=0; while [ $i -lt 45 ]; do i=$((i+1)); echo tick $i; sleep 1; done; exit 4"
        process = user.start(*plain_job("steady", script))
        assert process.stdout is not None and process.stdout.readline() == "tick 1\n"
        cluster.stop("kube-apiserver")
        time.sleep(20)
        cluster.start("kube-apiserver")
        out, err = process.communicate(timeout=240)
        assert process.returncode == 4, err
        assert out.splitlines() == [f"tick {number}" for number in range(2, 46)]


def test_json_of_a_whole_launch(user: User) -> None:
    done = user.hvdkit(*plain_job("robot", "exit 9", "--json"), code=9)
    outcome = json.loads(done.stdout)
    assert (outcome["phase"], outcome["exit_code"], outcome["why"]["trouble"]) == ("Failed", 9, "program")
