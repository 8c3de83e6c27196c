"""The life of jobs on a real cluster, through every command; the user has the rights of manifests/rbac.yaml only."""

import json
import secrets
import shlex
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cluster.cluster import Cluster
from kubernetes_jobs import BUSYBOX, Terminal, User, interrupt, plain_job, wait_for
from kubernetes_training import WITH_MONARCH


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    return Cluster.current()


@pytest.fixture(scope="module", autouse=True)
def long_ago(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[User]:
    """Somebody whose detached job fails now; the last test here asks why, a minute later."""
    name = cluster.namespace(f"ago-{secrets.token_hex(3)}", "restricted")
    somebody = User(cluster, name, tmp_path_factory.mktemp("long-ago"))
    somebody.hvdkit(*plain_job("ago", "echo last words; exit 7", "--detach"))
    yield somebody
    cluster.kubectl("delete", "namespace", name, "--wait=false")


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
    watching = user.start("status", "apart", "--watch")
    assert "has not ended within 1 s" in user.hvdkit("wait", "apart", "--timeout", "1", code=3).stderr
    user.hvdkit("wait", "apart", "--save-logs", str(tmp_path / "kept"), code=3)
    assert [file.read_text() for file in (tmp_path / "kept").iterdir()] == ["done\n"]
    seen, said = watching.communicate(timeout=60)
    first, *_, last = seen.splitlines()
    assert (watching.returncode, said) == (0, "")
    assert not first.startswith("apart: Failed") and last.startswith("apart: Failed")


def test_suspended_and_resumed(user: User) -> None:
    user.hvdkit(*plain_job("nap", "echo awake; sleep 600", "--suspend", "--detach"))
    assert user.json("status", "nap")["phase"] == "Suspended"
    assert user.json("why", "nap")["trouble"] == "suspended"
    user.hvdkit("resume", "nap")
    wait_for(lambda: user.json("status", "nap")["phase"] == "Running", "it runs")
    assert user.hvdkit("suspend", "nap").stdout == "nap is suspended.\n"
    wait_for(lambda: user.json("status", "nap")["pods"] == [], "its pods are gone")
    assert "not for backend job" in user.hvdkit("scale", "nap", "--workers", "3", code=2).stderr
    user.hvdkit(*plain_job("rest", "true", "--suspend", "--detach"))
    assert "there is nothing to delete" in user.hvdkit("delete", "--all", "--finished").stdout
    assert sorted(user.hvdkit("delete", "--all").stdout.splitlines()) == ["nap deleted.", "rest deleted."]
    assert user.json("list")["jobs"] == []


def test_an_mpijob_is_scaled_resumed_and_suspended(user: User) -> None:
    """Its pods come and go. What they would run is not in this image, and does not matter here."""
    words = ["launch", "--backend", "mpijob", "--name", "wide", "--image", BUSYBOX, "--pull-policy", "Never"]
    words += ["--workers", "1", "--min-workers", "1", "--max-workers", "2", "--grace", "2", "--suspend", "--detach"]
    user.hvdkit(*words, "--", "true")
    assert user.json("status", "wide")["phase"] == "Suspended"

    def workers() -> list[str]:
        return sorted(one.removeprefix("pod/") for one in user.objects("wide") if one.startswith("pod/wide-worker-"))

    def wait_for_workers(*names: str) -> None:
        wait_for(lambda: workers() == list(names), lambda: f"the workers are {names}, not {workers()}")

    assert "outside the 1 to 2 workers" in user.hvdkit("scale", "wide", "--workers", "3", code=2).stderr
    assert user.hvdkit("resume", "wide").stdout == "wide is resumed.\n"
    wait_for_workers("wide-worker-0")
    assert user.hvdkit("scale", "wide", "--workers", "2").stdout == "wide: 1 -> 2 workers.\n"
    wait_for_workers("wide-worker-0", "wide-worker-1")
    assert user.hvdkit("scale", "wide", "--workers", "1").stdout == "wide: 2 -> 1 workers.\n"
    wait_for_workers("wide-worker-0")
    assert user.hvdkit("suspend", "wide").stdout == "wide is suspended.\n"
    wait_for_workers()
    assert user.json("status", "wide")["phase"] == "Suspended"


def test_inside_a_pod(user: User, cluster: Cluster) -> None:
    """There is no kubeconfig: the pod's ServiceAccount, which has the rights of manifests/rbac.yaml, logs in."""
    commands = [["hvdkit", *plain_job("child", "echo hello from a child")], ["hvdkit", "status", "child", "--json"]]
    container = {
        "name": "main",
        "image": WITH_MONARCH,
        "command": ["sh", "-c", " && ".join(map(shlex.join, commands))],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    spec = {
        "serviceAccountName": "hvdkit",
        "restartPolicy": "Never",
        "securityContext": {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
    }
    where = f"--namespace={user.namespace}"
    metadata = {"name": "inside", "namespace": user.namespace}
    cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    wait_for(lambda: cluster.get("pod", "inside", where)["status"]["phase"] in ("Succeeded", "Failed"), "it has ended")
    said = cluster.kubectl("logs", "inside", where)
    assert cluster.get("pod", "inside", where)["status"]["phase"] == "Succeeded", said
    assert f"backend job (as asked), namespace {user.namespace} of context in-cluster" in said
    assert "\nhello from a child\n" in said
    status = json.loads(said[said.index("\n{\n") :])
    assert (status["phase"], status["context"]) == ("Succeeded", "in-cluster")


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


@pytest.mark.parametrize("answer", ["k", "d"])
def test_at_a_terminal_ranks_are_in_colour_and_ctrl_c_asks(user: User, answer: str) -> None:
    with Terminal(user, *plain_job("halt", "echo '[1] started'; sleep 600")) as screen:
        screen.wait_for("\x1b[32m[1]\x1b[0m started")
        screen.press("\x03")
        screen.wait_for("hvdkit: keep halt running, or delete it? [K/d] ")
        screen.press(f"{answer}\n")
        assert screen.exit_code() == 130, screen.seen
    if answer == "k":
        assert "halt goes on; `hvdkit logs -f halt` follows it" in screen.seen
        assert user.json("status", "halt")["phase"] == "Running"
    else:
        assert "halt is being deleted" in screen.seen
        wait_for(lambda: user.objects("halt") == [], "it is gone")


class TestFailures:
    def test_an_image_that_does_not_exist(self, user: User) -> None:
        words = plain_job("image", "true", "--start-timeout", "6")
        words[words.index(BUSYBOX)] = "localhost/nothing:1"
        done = user.hvdkit(*words, code=3)
        assert "hvdkit: image has not started within 6 s: " in done.stderr and "localhost/nothing:1" in done.stderr
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
        # Who may not see nodes is not told before.
        done = user.hvdkit(*plain_job("gpus", "true", "--gpus", "800", "--start-timeout", "6"), code=3)
        assert "hvdkit: gpus has not started within 6 s: " in done.stderr
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

    def test_without_rights(self, cluster: Cluster, namespace: str, tmp_path: Path) -> None:
        nobody = User(cluster, namespace, tmp_path, rights=False)
        done = nobody.hvdkit(*plain_job("none", "true"), code=3)
        assert "you may not create jobs in namespace" in done.stderr and "manifests/rbac.yaml" in done.stderr
        assert "manifests/rbac.yaml" in nobody.hvdkit("list", code=3).stderr


def test_json_of_a_whole_launch(user: User) -> None:
    done = user.hvdkit(*plain_job("robot", "exit 9", "--json"), code=9)
    outcome = json.loads(done.stdout)
    assert (outcome["phase"], outcome["exit_code"], outcome["why"]["trouble"]) == ("Failed", 9, "program")


def test_why_of_a_detached_job_a_minute_after_its_end(long_ago: User, tmp_path: Path) -> None:
    """The last here, so that most of the minute has passed. Whoever asks now has no record of the launch."""
    long_ago.environment["XDG_STATE_HOME"] = str(tmp_path / "elsewhere")
    ended = wait_for(lambda: long_ago.json("status", "ago")["ended"], "it has ended")
    time.sleep(max(0.0, 61 - (datetime.now(UTC) - datetime.fromisoformat(ended)).total_seconds()))
    answer = long_ago.json("why", "ago")
    assert answer["trouble"] == "program" and "exit code 7" in answer["cause"]
    assert any("last words" in line for line in answer["evidence"])
