"""A node goes away under a training that is spread over two, on a real cluster: what happens, and is anything lost?

    python -m tests.e2e.cluster run --nodes 2 --image localhost/hvdkit-worker:0.1.0 -- python tests/soak/node_loss.py

The job is not elastic: two workers on two nodes, a checkpoint every 20 steps on a shared volume. In turn

- kubelet: only the node's kubelet is killed; its containers go on. It comes back when the node is NotReady.
- power, back: its pods fall silent (their network goes first), then kubelet, containerd and every process of its pods
  are killed. All comes back when it is NotReady.
- power, gone: the same, but nothing comes back. The node is marked `out-of-service`, as Kubernetes prescribes for it:
  pods that are merely deleted by force do not free a job, which waits until each of them has failed.

Fails unless each job ends with exit code 0 at its last step, has gone on from the newest checkpoint that there was, and
tells no step twice.
"""

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
sys.path[:0] = [str(REPOSITORY / "benchmarks"), str(REPOSITORY / "tests/e2e")]

from cluster import cgroups  # noqa: E402
from cluster.cluster import Cluster  # noqa: E402
from cluster.containerd import ask_containerd  # noqa: E402
from cluster.node import Node  # noqa: E402
from kubernetes_jobs import wait_for  # noqa: E402
from kubernetes_training import LIMIT, Place, place_to_train, training  # noqa: E402
from machine_facts import machine_facts  # noqa: E402
from test_k8s_recovery import assert_every_step_once, starts  # noqa: E402

SCENES = ("kubelet", "power, back", "power, gone")
STEPS = 4000
OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
# Slow steps for longer than it takes until a node counts as not ready.
FLAGS = ("--model", "nets:slow", "--batch-size", "10", "--epochs", "2", "--max-steps", str(STEPS))
FLAGS += ("--checkpoint-every", "20")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenes", nargs="+", choices=SCENES, default=SCENES)
    parser.add_argument("--output", type=Path, help="write the result to this file")
    options = parser.parse_args()
    cluster, facts, found = Cluster.current(), machine_facts(), {}
    assert len(cluster.nodes()) == 2, "this needs a cluster of two nodes: --nodes 2"
    for scene in options.scenes:
        with place_to_train(cluster, Path(tempfile.mkdtemp())) as place:
            found[scene] = lose_a_node(place, scene)
        print(f"{scene}: {json.dumps(found[scene], indent=1)}", file=sys.stderr, flush=True)
        result = {"version": 1, "soak": "node_loss", "machine": facts, "scenes": found}
        if options.output:
            options.output.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


def lose_a_node(place: Place, scene: str) -> dict:
    """One training that loses a node, and the moments of it in seconds since then."""
    (place.shared / "slow").touch()
    words = place.launch("lost", "mpijob", "--working-dir", "/shared", "--placement", "spread")
    process = place.user.start(*words, *training("lost", *FLAGS))
    wait_for(lambda: newest_step(place) >= 40, "two checkpoints", LIMIT)
    node = node_to_lose(place)
    clear_of_operators(place.cluster, node)
    committed, began = newest_step(place), time.monotonic()
    moments: dict[str, float] = {}

    def now(what: str) -> None:
        moments[what] = round(time.monotonic() - began, 1)
        print(f"{scene}: {what} after {moments[what]} s", file=sys.stderr, flush=True)

    lose(place.cluster, node, everything=scene != "kubelet")
    wait_for(lambda: not is_ready(place.cluster, node), f"{node.name} is not ready", LIMIT)
    now("node not ready")
    if scene == "kubelet":
        went_on = newest_step(place)
    if scene == "power, gone":
        place.cluster.kubectl("taint", "nodes", node.name, f"{OUT_OF_SERVICE}=nodeshutdown:NoExecute")
        now("node out of service")
    else:
        come_back(place.cluster, node, everything=scene != "kubelet")
        wait_for(lambda: is_ready(place.cluster, node), f"{node.name} is ready", LIMIT)
        now("node ready again")
    if scene != "kubelet":
        wait_for(lambda: len(starts(place, "lost")) == 2, "a second start", LIMIT)
        now("training again")
    assert process.poll() is None, "the training ended before all of this had happened to it"
    (place.shared / "slow").unlink()
    out, err = process.communicate(timeout=LIMIT)
    now("job ended")
    if scene == "power, gone":
        come_back(place.cluster, node, everything=True)
        place.cluster.kubectl("taint", "nodes", node.name, f"{OUT_OF_SERVICE}-")
        wait_for(lambda: is_ready(place.cluster, node), f"{node.name} is ready", LIMIT)
    assert process.returncode == 0, out + err
    begun = starts(place, "lost")
    assert len(begun) == 1 if scene == "kubelet" else begun[1]["step"] >= committed, begun
    assert_every_step_once(place, "lost")
    assert place.history("lost")[-1]["steps"] == STEPS
    launchers = place.launchers("lost")
    return {
        "newest_checkpoint_when_lost": committed,
        **({"newest_checkpoint_when_not_ready": went_on} if scene == "kubelet" else {}),
        "went_on_from_step": [one["step"] for one in begun[1:]],
        "last_step": place.history("lost")[-1]["steps"],
        "launchers": [(pod["phase"], pod["restarts"]) for pod in launchers],
        "seconds_after_the_loss": moments,
        "said": [line for line in err.splitlines() if line.startswith("hvdkit: lost: ")],
    }


def newest_step(place: Place) -> int:
    files = (place.shared / "lost" / "checkpoints").glob("step-*.pt")
    return max((int(file.name.removeprefix("step-").partition(".")[0]) for file in files), default=0)


def node_to_lose(place: Place) -> Node:
    """The node of a worker on which the launcher is not."""
    pods = place.cluster.get("pods", f"--namespace={place.user.namespace}")["items"]
    by_name = {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in pods}
    launcher = next(node for name, node in by_name.items() if "-launcher" in name)
    workers = {name: node for name, node in by_name.items() if "-worker-" in name}
    assert len(workers) == len(set(workers.values())) == 2, by_name  # with both workers all of the job would be lost
    lost = set(workers.values()) - {launcher}
    assert len(lost) == 1, by_name
    return next(node for node in place.cluster.nodes() if node.name in lost)


def clear_of_operators(cluster: Cluster, node: Node) -> None:
    """Have mpi-operator on the other node: here a training loses its node, not the cluster its controllers."""
    cluster.kubectl("cordon", node.name)
    for pod in cluster.get("pods", "--all-namespaces", f"--field-selector=spec.nodeName={node.name}")["items"]:
        if "operator" in pod["metadata"]["name"]:
            cluster.kubectl("delete", "pod", pod["metadata"]["name"], f"--namespace={pod['metadata']['namespace']}")
    available = ("--for=condition=Available", "deployment", "--all", "--all-namespaces", "--timeout=120s")
    cluster.kubectl("wait", *available)
    cluster.kubectl("uncordon", node.name)


def lose(cluster: Cluster, node: Node, *, everything: bool) -> None:
    """Kill the node's kubelet; with everything also containerd and what runs in its pods, as when the power goes."""
    containerd, kubelet = node.programs
    cluster.stop(kubelet)
    if everything:
        pids = cgroups.processes(cluster.places.name, node.name)
        for interface in interfaces_of(pids):  # else the kernel would tell the other side of every connection at once
            subprocess.run(["ip", "link", "set", interface, "down"], check=True)
        cluster.stop(containerd)
        for pid in pids | shims(node):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def interfaces_of(pids: set[int]) -> set[str]:
    """Our ends of the network of the pods in which these processes are."""
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended, or is a pod's first process, which has no /sys
            found.add(int(Path(f"/proc/{pid}/root/sys/class/net/eth0/iflink").read_text()))
    assert found, "no pod of the node has a network"
    return {socket.if_indextoname(number) for number in found}


def shims(node: Node) -> set[int]:
    """containerd's helpers, one a pod, which live on without it."""
    found = set()
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            words = file.read_bytes().split(b"\0")
            if b"shim" in words[0] and str(node.socket).encode() in words:
                found.add(int(file.parent.name))
    return found


def come_back(cluster: Cluster, node: Node, *, everything: bool) -> None:
    containerd, kubelet = node.programs
    if everything:
        cluster.start(containerd)
        wait_for(lambda: ask_containerd(node.socket, "version"), "containerd answers")  # a kubelet asks it only once
    cluster.start(kubelet)


def is_ready(cluster: Cluster, node: Node) -> bool:
    conditions = cluster.get("node", node.name)["status"]["conditions"]
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


if __name__ == "__main__":
    main()
