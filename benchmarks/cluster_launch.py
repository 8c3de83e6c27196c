"""`hvdkit launch` on a real cluster against kubectl with the same manifest, and what following a job asks of the API.

    python -m tests.e2e.cluster run --image localhost/hvdkit-worker:0.1.0 -- \
        python benchmarks/cluster_launch.py --rounds 7 --output benchmarks/results/cluster-launch.json

A round is a launch of a trivial command on two workers by each side, in random order, from the command to the job's
end: `hvdkit launch` until it leaves with 0; `kubectl apply` of what `hvdkit launch --dry-run` prints, then `kubectl
wait` until the job says that it has succeeded. hvdkit sees the end in the pods, which is earlier; so the time until the
job's own condition is recorded for it, too, without what a `kubectl wait` takes that has nothing to wait for.

Requests are counted by the API server's audit log: those of a whole launch, and those of two turns of the watches
(300 s each) in which jobs with one, two and four workers are followed. The result is written after each part.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from local_launch import show, summary
from machine_facts import machine_facts

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/e2e"))

from cluster.cluster import Cluster
from kubernetes_jobs import User, wait_for
from kubernetes_training import IMAGE

LIMIT = 300
GOAL = 1.05
TRIVIAL = ["python", "-c", "print('here')"]
LONG = ["python", "-c", "import time; print('here', flush=True); time.sleep(3600)"]
# What kubectl waits for.
ENDS = {"mpijob": ("mpijob", "Succeeded"), "indexed-job": ("job", "Complete")}
# One line for each request, written when it comes: a watch or a log that is followed would end much later.
AUDIT = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["ResponseStarted", "ResponseComplete", "Panic"],
    "rules": [{"level": "Metadata"}],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--backends", nargs="+", choices=ENDS, default=list(ENDS))
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4], help="of the jobs that are followed")
    parser.add_argument("--seconds", type=float, default=600, help="to follow; a watch is renewed after 300; 0: do not")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    facts, cluster = machine_facts(), Cluster.current()
    result = {"version": 1, "benchmark": "cluster_launch", "machine": facts, "launches": {}, "requests": {}}

    def save() -> None:
        if options.output:
            options.output.write_text(json.dumps(result, indent=1) + "\n")

    for backend in options.backends:
        result["launches"][backend] = compared = compare(cluster, backend, options.rounds)
        show(f"{backend}, two workers", compared["ratios"])
        save()
    if options.seconds:
        result["requests"] = count_requests(cluster, options)
        print("\nrequests to the API server\n" + json.dumps(result["requests"], indent=1))
        save()


def compare(cluster: Cluster, backend: str, rounds: int) -> dict:
    """Both sides, interleaved; the first round is not counted: images and files come into memory in it."""
    user = new_user(cluster, f"launch-{backend}")
    sides = {"hvdkit": with_hvdkit, "kubectl": with_kubectl}
    samples: dict[str, list[dict]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        for name, launch in random.sample(list(sides.items()), k=len(sides)):
            taken = launch(user, backend)
            remove(user)
            if number:
                samples[name].append(taken)
            print(f"{backend}, round {number} of {rounds}: {name:<8} {taken}", file=sys.stderr, flush=True)

    def ratio(what: str) -> list[float]:
        pairs = zip(samples["hvdkit"], samples["kubectl"], strict=True)
        return [ours[what] / theirs["seconds"] for ours, theirs in pairs]

    ratios = {
        "hvdkit launch, x kubectl": summary(ratio("seconds"), GOAL),
        "until the job's own condition": summary(ratio("seconds_to_condition"), GOAL),
    }
    seconds = {name: summary([one["seconds"] for one in taken]) for name, taken in samples.items()}
    return {"rounds": rounds, "ratios": ratios, "seconds": seconds, "samples": samples}


def with_hvdkit(user: User, backend: str) -> dict:
    began = time.monotonic()
    done = user.hvdkit(*words(backend, 2), "--", *TRIVIAL, limit=LIMIT)
    seconds = time.monotonic() - began
    kubectl(user, *waiting(backend))
    until_condition = time.monotonic() - began
    kubectl(user, *waiting(backend))  # on the other side it begins while the job runs
    for_nothing = time.monotonic() - began - until_condition
    assert done.stdout.count("] here") == 2, done.stdout
    return {"seconds": round(seconds, 3), "seconds_to_condition": round(max(seconds, until_condition - for_nothing), 3)}


def with_kubectl(user: User, backend: str) -> dict:
    manifest = user.folder / "job.yaml"
    manifest.write_text(user.hvdkit(*words(backend, 2), "--dry-run", "--", *TRIVIAL).stdout)
    began = time.monotonic()
    kubectl(user, "apply", f"--filename={manifest}")
    kubectl(user, *waiting(backend))
    return {"seconds": round(time.monotonic() - began, 3)}


def words(backend: str, workers: int) -> list[str]:
    flags = ["--backend", backend, "--workers", str(workers), "--image", IMAGE, "--grace", "2"]
    return ["launch", "--name", "measured", *flags]


def waiting(backend: str) -> list[str]:
    kind, condition = ENDS[backend]
    return ["wait", f"--for=condition={condition}", f"{kind}/measured", f"--timeout={LIMIT}s"]


def kubectl(user: User, *rest: str) -> None:
    """As the same user, with the same rights."""
    subprocess.run(["kubectl", *rest], env=user.environment, check=True, capture_output=True, timeout=LIMIT + 10)


def remove(user: User) -> None:
    user.hvdkit("delete", "measured")
    # `hvdkit launch` gives these to the job, with which they go; after `kubectl apply` they are nobody's.
    nobodys = ("services,networkpolicies", f"--namespace={user.namespace}", "--selector=hvdkit.io/job=measured")
    user.cluster.kubectl("delete", *nobodys)
    wait_for(lambda: user.objects("measured") == [], "the job is gone")


def count_requests(cluster: Cluster, options: argparse.Namespace) -> dict:
    """For each backend and number of workers; each has a namespace of its own, which tells requests apart."""
    log = audited(cluster)
    users = {
        (backend, workers): new_user(cluster, f"follow-{backend}-{workers}")
        for backend in options.backends
        for workers in options.workers
    }
    found: dict[str, dict] = {backend: {} for backend in options.backends}
    for (backend, workers), user in users.items():
        began = time.time()
        user.hvdkit(*words(backend, workers), "--", *TRIVIAL, limit=LIMIT)
        found[backend][str(workers)] = {"whole_launch": len(asked(log, user, began))}
        remove(user)
    # All at once: their pods sleep, and what each of them asks is seen in its namespace.
    followers = {key: follow(user, *key) for key, user in users.items()}
    for (backend, workers), file in followers.items():
        wait_for(lambda: file.read_text().count("] here") == workers, f"{backend} of {workers} speaks", LIMIT)  # noqa: B023
    time.sleep(10)
    began = time.time()
    print(f"following {len(users)} jobs for {options.seconds:g} s", file=sys.stderr, flush=True)
    time.sleep(options.seconds)
    for (backend, workers), user in users.items():
        seen = asked(log, user, began)
        found[backend][str(workers)]["following"] = {
            "seconds": options.seconds,
            "requests": len(seen),
            "requests_a_minute": round(60 * len(seen) / options.seconds, 2),
            "what": sorted(described(one) for one in seen),
        }
        cluster.kubectl("delete", "namespace", user.namespace, "--wait=false")
    return found


def follow(user: User, backend: str, workers: int) -> Path:
    """Start a job that goes on, and hvdkit that follows it; the file that its output goes to."""
    file = user.folder / "output"
    with file.open("w") as output:
        line = [sys.executable, "-m", "hvdkit", *words(backend, workers), "--", *LONG]
        subprocess.Popen(line, env=user.environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    return file


def audited(cluster: Cluster) -> Path:
    """Start the API server again with an audit log: that log."""
    policy, log = (cluster.places.folder / name for name in ("audit.json", "audit.log"))
    policy.write_text(json.dumps(AUDIT))
    cluster.stop("kube-apiserver")
    cluster.start("kube-apiserver", f"--audit-policy-file={policy}", f"--audit-log-path={log}")
    until_ready = ["sh", "-c", "until kubectl get --raw=/readyz; do sleep 0.5; done"]
    subprocess.run(until_ready, check=True, capture_output=True, timeout=120)
    wait_for(lambda: log.exists() and log.stat().st_size > 0, "requests are logged")
    time.sleep(15)  # until everybody else has found it again
    return log


def described(event: dict) -> str:
    thing = event["objectRef"]
    return f"{event['verb']} {'/'.join(filter(None, (thing['resource'], thing.get('subresource'))))}"


def asked(log: Path, user: User, began: float) -> list[dict]:
    """The requests of hvdkit in the user's namespace since then."""
    since = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(began))
    whole = log.read_text().rpartition("\n")[0]  # the last line may be half written
    events = [json.loads(line) for line in whole.splitlines()]
    return [
        event
        for event in events
        if event.get("userAgent") == "hvdkit"
        and f":{user.namespace}:" in event["user"]["username"]
        and event["requestReceivedTimestamp"] >= since
    ]


def new_user(cluster: Cluster, namespace: str) -> User:
    return User(cluster, cluster.namespace(namespace, "restricted"), Path(tempfile.mkdtemp()))


if __name__ == "__main__":
    main()
