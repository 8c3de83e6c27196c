"""Two ranks in two pods against the same two ranks on the host, interleaved in one run.

    python -m tests.e2e.cluster run --image localhost/hvdkit-worker:0.1.0 -- \
        python benchmarks/cluster_pods.py --rounds 5 --output benchmarks/results/cluster-pods.json

ResNet-50, 64 x 64, batch 16 a rank, synthetic images, one thread a rank; images/s as `hvdkit train` reports them. The
host's ranks run inside the cluster's namespaces, beside the same API server and kubelet. Each round runs every side
once, in a new random order, and ratios are taken within a round. `--sides` also knows settings that were tried.
"""

import argparse
import json
import random
import sys
import tempfile
from pathlib import Path

from local_launch import show, summary
from machine_facts import machine_facts

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/e2e"))

from cluster.cluster import Cluster
from kubernetes_jobs import User, wait_for
from kubernetes_training import IMAGE

from hvdkit.runtime.results import collect

LIMIT = 600
HOST = ["--backend", "local", "--workers", "2"]
MPI = ["--backend", "mpijob", "--workers", "2", "--image", IMAGE]
GLOO = ["--backend", "indexed-job", "--workers", "2", "--image", IMAGE]
ASKED = ["--cpus", "700m"]  # with the launcher's half a processor this fits on two
TRAIN = ["hvdkit", "train", "--model", "resnet50", "--data", "synthetic", "--image-size", "64", "--batch-size", "16"]
TRAIN += ["--lr", "0.0001", "--lr-scaling", "none", "--warmup", "0", "--schedule", "constant", "--epochs", "1000"]
TRAIN += ["--skip-evaluation", "--result-lines"]
# A rank to the core of its number, as the ranks of two pods on one node cannot arrange it by themselves.
PINNED = ["sh", "-c", 'exec taskset -c ${OMPI_COMM_WORLD_RANK:-$HOROVOD_RANK} "$@"', "sh"]


def cycle(milliseconds: int) -> list[str]:
    return ["--env", f"HOROVOD_CYCLE_TIME={milliseconds}"]


def fusion(mebibytes: int) -> list[str]:
    return ["--env", f"HOROVOD_FUSION_THRESHOLD={mebibytes << 20}"]


# Name → flags of `hvdkit launch`, and words before the training.
SIDES: dict[str, tuple[list[str], list[str]]] = {
    "host": (HOST, []),
    "host-gloo": ([*HOST, "--controller", "gloo"], []),
    "mpijob": (MPI, []),
    "indexed-job": (GLOO, []),
    "mpijob-one-pod": ([*MPI, "--workers", "1", "--slots", "2"], []),
    "mpijob-asked": ([*MPI, *ASKED], []),
    "indexed-job-asked": ([*GLOO, *ASKED], []),
    "mpijob-pinned": (MPI, PINNED),
    "indexed-job-pinned": (GLOO, PINNED),
    **{f"mpijob-fusion-{size}": ([*MPI, *fusion(size)], []) for size in (0, 4, 16, 64, 128)},
    **{f"mpijob-cycle-{time}": ([*MPI, *cycle(time)], []) for time in (1, 25, 50, 100)},
    **{f"indexed-job-cycle-{time}": ([*GLOO, *cycle(time)], []) for time in (5, 50, 100)},
    **{f"indexed-job-fusion-{size}": ([*GLOO, *fusion(size)], []) for size in (1, 4, 16)},
}
MEASURED = ["host", "host-gloo", "mpijob", "indexed-job", "mpijob-one-pod"]
GOALS = {("mpijob", "host"): 0.9, ("indexed-job", "host-gloo"): 0.9}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=MEASURED)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    facts, cluster = machine_facts(), Cluster.current()
    user = User(cluster, cluster.namespace("pods", "restricted"), Path(tempfile.mkdtemp()))
    samples: dict[str, list[dict]] = {name: [] for name in options.sides}
    for number in range(options.rounds):
        for name in random.sample(options.sides, k=len(options.sides)):
            samples[name].append(run_side(user, name, options.steps))
            speed = samples[name][-1]["images_per_second"]
            print(f"round {number + 1} of {options.rounds}: {name:<24} {speed:6.1f} images/s", flush=True)
        speeds = {name: summary([one["images_per_second"] for one in taken]) for name, taken in samples.items()}
        ratios = all_ratios(samples)
        result = {"version": 1, "benchmark": "cluster_pods", "machine": facts, "rounds": number + 1}
        result |= {"steps": options.steps, "images_per_second": speeds, "ratios": ratios, "samples": samples}
        if options.output:
            options.output.write_text(json.dumps(result, indent=1) + "\n")
    show("images/s", speeds)
    show("ratios", ratios)


def all_ratios(samples: dict[str, list[dict]]) -> dict[str, dict]:
    """Every side in pods against every side on the host."""
    found = {}
    for ours, taken in samples.items():
        for other in (name for name in samples if name.startswith("host") and name != ours):
            pairs = zip(taken, samples[other], strict=True)
            values = [one["images_per_second"] / two["images_per_second"] for one, two in pairs]
            found[f"{ours}, of {other}"] = summary(values, GOALS.get((ours, other)))
    return found


def run_side(user: User, name: str, steps: int) -> dict:
    """One training; what it says of itself."""
    flags, before = SIDES[name]
    count = ["--max-steps", str(steps), "--synthetic-images", str(32 * steps)]
    words = ["launch", "--name", f"side-{name}", "--threads", "1", *flags, "--", *before, *TRAIN, *count]
    done = user.hvdkit(*words, limit=LIMIT)
    if "local" not in flags:
        user.hvdkit("delete", f"side-{name}")
        # The next side must have the cores to itself.
        wait_for(lambda: user.objects(f"side-{name}") == [], "the job is gone")
    [result] = [one for one in collect(done.stdout) if one.kind == "train"]
    assert result.payload is not None, result.problem
    said = result.payload["summary"]
    assert said["ranks"] == 2 and said["steps"] == steps, said
    kept = ("images_per_second", "hosts", "library", "data_wait_percent", "allreduce_wait_percent")
    return {key: said.get(key) for key in kept}


if __name__ == "__main__":
    main()
