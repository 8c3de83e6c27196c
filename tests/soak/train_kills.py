"""Kills training ranks with -9 at random moments, again and again, and compares the end bit for bit.

    python tests/soak/train_kills.py --kills 200 --output benchmarks/results/train-kills.json

Every training is killed several times on its way, each time resumed by the same command, and must end with the weights
and momentum of one that nobody disturbed. A third of the kills wait for a checkpoint that is being written.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import psutil

sys.path[:0] = [str(Path(__file__).parents[1] / "local"), str(Path(__file__).parents[2] / "benchmarks")]
from machine_facts import machine_facts  # noqa: E402
from running import environment  # noqa: E402
from test_train_kill import NET, STEPS, TRAIN, assert_same, last, newest_step  # noqa: E402

LAUNCH = ("hvdkit", "launch", "--backend", "local", "--workers", "2", "--")
LIMIT = 300  # seconds; a training that takes longer hangs


def start(folder: Path, output: Path) -> subprocess.Popen:
    return subprocess.Popen(
        [*LAUNCH, *TRAIN, f"--output={output}"],
        cwd=folder,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def kill_one(job: subprocess.Popen, output: Path, chance: random.Random) -> str:
    """Wait for a random moment, kill a random process of the run, and say which; '' if the run was over by then."""
    before, deadline = newest_step(output), time.monotonic() + LIMIT
    moment = chance.choice(["any", "any", "during a save"])
    # From the first import on; beyond the first new checkpoint most of the time, or the training would never end.
    wanted = before + chance.choice([0, 2, 2, 4, 8])
    while job.poll() is None and newest_step(output) < wanted:
        if time.monotonic() > deadline:
            raise SystemExit(f"no checkpoint of step {wanted} within {LIMIT} s")
        time.sleep(0.01)
    if moment == "during a save":
        while job.poll() is None and not list(output.glob("checkpoints/.writing-*")):
            time.sleep(0.0005)
    else:
        time.sleep(chance.uniform(0, 1 if wanted > before else 4))
    try:
        below = psutil.Process(job.pid).children(recursive=True)
        ranks = [one for one in below if "train" in one.cmdline() and "hvdkit.runtime.rank" not in one.cmdline()]
        victim = chance.choice(["rank", "rank", "rank", "launcher"])
        if victim == "rank" and ranks:
            chance.choice(ranks).kill()
        else:
            victim = "launcher"
            os.kill(job.pid, signal.SIGKILL)
    except (psutil.NoSuchProcess, ProcessLookupError):
        return ""
    return f"{victim}, {moment}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    chance, kinds, compared, began = random.Random(arguments.seed), Counter(), 0, time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="train-kills-"))
    (folder / "killed_net.py").write_text(NET)
    if start(folder, folder / "whole").wait(LIMIT):
        raise SystemExit("the undisturbed training failed")
    expected = last(folder / "whole")
    while kinds.total() < arguments.kills:
        output = folder / f"run-{compared}"
        while True:
            job = start(folder, output)
            kind = kill_one(job, output, chance) if kinds.total() < arguments.kills else ""
            code = job.wait(LIMIT)
            if code == 0:
                break
            if not kind:
                raise SystemExit(f"a training that nobody killed ended with code {code} (seed {arguments.seed})")
            kinds[kind] += 1
            print(f"kill {kinds.total()} of {arguments.kills}: {kind}, newest step {newest_step(output)}", flush=True)
        assert newest_step(output) == STEPS
        assert_same(last(output), expected)
        shutil.rmtree(output)
        compared += 1
    shutil.rmtree(folder)
    result = {
        "version": 1,
        "soak": "train_kills",
        "machine": machine_facts(),
        "seed": arguments.seed,
        "kills": dict(kinds),
        "trainings_compared": compared,
        "differences": 0,
        "minutes": round((time.monotonic() - began) / 60, 1),
    }
    print(json.dumps(result, indent=1))
    if arguments.output:
        arguments.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
