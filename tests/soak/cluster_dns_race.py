"""The race that is in every plain MPIJob, on a real cluster: does the launcher start before its workers have names?

    python -m tests.e2e.cluster run --image hvdkit-worker:0.1.0 -- python tests/soak/cluster_dns_race.py

In turn, `hvdkit launch` of a trivial command on two workers, and the same MPIJob without the wait of hvdkit's launcher:
mpirun at once, as manifests of others have it. Of these there are two kinds: those that do nothing about the race, and
those that win it as one does by hand: the workers have a readiness probe, and the operator makes the launcher when they
are ready. Seconds count from the command until the MPIJob says that it has succeeded. Fails unless no launcher of
hvdkit's was ever restarted or made again.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import yaml

REPOSITORY = Path(__file__).parents[2]
sys.path[:0] = [str(REPOSITORY / "benchmarks"), str(REPOSITORY / "tests/e2e")]

from cluster.cluster import Cluster  # noqa: E402
from kubernetes_jobs import User, wait_for  # noqa: E402
from kubernetes_training import IMAGE  # noqa: E402
from machine_facts import machine_facts  # noqa: E402

COMMAND = ["python", "-c", "print('here')"]
# What mpirun needs to know to reach the workers under `restricted`, and no more.
AT_ONCE = """
from hvdkit.runtime import mpijob_ssh
import os
config = mpijob_ssh.client_config(mpijob_ssh.new_folder())
os.execvp("mpirun", ["mpirun", "--mca", "plm_rsh_args", f"-F {config}", "-np", "2", "python", "-c", "print('here')"])
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--launches", type=int, default=20)
    parser.add_argument("--plain", type=int, default=8, help="launches of the plain MPIJob, among the others")
    parser.add_argument("--held-back", type=int, default=5, help="and of the one whose launcher is held back")
    parser.add_argument("--minutes", type=float, default=60, help="begin no launch after so long")
    parser.add_argument("--output", type=Path, help="write the result to this file")
    options = parser.parse_args()
    end = time.monotonic() + 60 * options.minutes
    cluster = Cluster.current()
    user = User(cluster, cluster.namespace("race", "restricted"), Path(tempfile.mkdtemp()))
    facts = machine_facts()
    ours, plain, held_back = [], [], []
    for number in range(options.launches):
        if time.monotonic() > end:
            break
        ours.append(launch(user, f"ours-{number}"))
        said = f"{number + 1} of {options.launches}: {ours[-1]}"
        if len(plain) < options.plain:
            plain.append(apply_plain(user, f"plain-{number}"))
            said += f", plain {plain[-1]}"
        if len(held_back) < options.held_back:
            held_back.append(apply_plain(user, f"held-{number}", held_back=True))
            said += f", held back {held_back[-1]}"
        print(said, file=sys.stderr, flush=True)
        winners = won(plain) + won(held_back)
        result = {
            "version": 1,
            "machine": facts,
            "hvdkit": summary(ours),
            "plain": summary(plain) | {"won_the_race": len(won(plain))},
            "plain_held_back": summary(held_back) | {"won_the_race": len(won(held_back))},
            "ratio_to_plain_that_won": round(median(ours) / median(winners), 3) if winners else None,
        }
        if options.output:
            options.output.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))
    return int(result["hvdkit"]["launcher_failures"] > 0)


def launch(user: User, name: str) -> dict:
    began = time.monotonic()
    flags = ["--backend", "mpijob", "--workers", "2", "--image", IMAGE, "--grace", "2"]
    done = user.hvdkit("launch", "--name", name, *flags, "--", *COMMAND, limit=600)
    succeeded(user, name)
    seconds = time.monotonic() - began
    assert done.stdout.count("] here") == 2, done.stdout
    return ended(user, name, seconds)


def apply_plain(user: User, name: str, *, held_back: bool = False) -> dict:
    """The MPIJob that `hvdkit launch` would submit, with mpirun in place of hvdkit's launcher."""
    words = ["render", "--backend", "mpijob", "--workers", "2", "--image", IMAGE, "--grace", "2", "--name", name]
    job = yaml.safe_load(user.hvdkit(*words, "--", *COMMAND).stdout)
    launcher = job["spec"]["mpiReplicaSpecs"]["Launcher"]
    launcher["template"]["spec"]["containers"][0]["command"] = ["python", "-c", AT_ONCE]
    job["spec"]["runPolicy"]["backoffLimit"] = 6
    if held_back:
        job["spec"]["launcherCreationPolicy"] = "WaitForWorkersReady"
        worker = job["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
        del worker["startupProbe"]
        # As often as a probe can look: with the default, every 10 s, the launcher would come later still.
        worker["readinessProbe"] = {"tcpSocket": {"port": 2222}, "periodSeconds": 1}
    job["metadata"]["namespace"] = user.namespace
    began = time.monotonic()
    user.cluster.apply(job)
    succeeded(user, name)
    return ended(user, name, time.monotonic() - began)


def succeeded(user: User, name: str) -> None:
    where = (f"--namespace={user.namespace}", "--timeout=600s")
    user.cluster.kubectl("wait", "--for=condition=Succeeded", f"mpijob/{name}", *where)


def ended(user: User, name: str, seconds: float) -> dict:
    """How often its launcher began, and how long it took; then it makes room."""
    pods = [pod for pod in user.json("status", name)["pods"] if pod["launcher"]]
    user.hvdkit("delete", name)
    wait_for(lambda: user.objects(name) == [], f"{name} is gone")
    return {
        "seconds": round(seconds, 2),
        "launchers": len(pods),
        "restarts": sum(pod["restarts"] for pod in pods),
    }


def won(runs: list[dict]) -> list[dict]:
    """Those whose first launcher was the only one."""
    return [one for one in runs if one["launchers"] == 1 and one["restarts"] == 0]


def median(runs: list[dict]) -> float | None:
    return round(statistics.median(one["seconds"] for one in runs), 2) if runs else None


def summary(runs: list[dict]) -> dict:
    failures = sum(one["launchers"] - 1 + one["restarts"] for one in runs)
    return {
        "launches": len(runs),
        "launcher_failures": failures,
        "median_seconds": median(runs),
        "seconds": [one["seconds"] for one in runs],
    }


if __name__ == "__main__":
    sys.exit(main())
