"""What `hvdkit validate` costs: one file from a cold start, and whether 250, 500 and 1,000 grow linearly."""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

from machine_facts import machine_facts

COUNTS = (250, 500, 1000)
MANIFESTS = Path(__file__).parents[1] / "tests" / "unit" / "correct_manifests"
# What a user validates: an MPIJob, another one with GPUs and volumes, a PyTorchJob, a Service with its Indexed Job.
KINDS = ("mpijob", "mpijob_gpu", "pytorchjob", "indexed_job")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    facts = machine_facts()
    with tempfile.TemporaryDirectory() as folder:
        sides = {f"{count} manifests": fill(Path(folder) / str(count), count) for count in COUNTS}
        sides |= {"one MPIJob": [str(MANIFESTS / "mpijob.yaml")], "one Job": [str(MANIFESTS / "indexed_job.yaml")]}
        rounds = [measure(sides) for _ in range(options.rounds)]
    result = {"version": 1, "machine": facts, "rounds": rounds, "summary": summary(rounds)}
    print(json.dumps(result["summary"], indent=2))
    if options.output:
        options.output.write_text(json.dumps(result, indent=2) + "\n")


def fill(folder: Path, count: int) -> list[str]:
    """A folder of different manifests, one object or two a file."""
    folder.mkdir()
    for number in range(count):
        kind = KINDS[number % len(KINDS)]
        text = (MANIFESTS / f"{kind}.yaml").read_text().replace("train", f"train-{number}")
        (folder / f"{number:04}.yaml").write_text(text.replace(f"example.org/train-{number}", "example.org/train"))
    return [str(folder)]


def measure(sides: dict[str, list[str]]) -> dict[str, float]:
    """Processor seconds of each side, one after the other, so that a busy moment of the machine hits them alike."""
    seconds = {"python -c pass": run([sys.executable, "-c", "pass"])}
    for name, paths in sides.items():
        seconds[name] = run([sys.executable, "-m", "hvdkit", "validate", *paths])
    return seconds


def run(command: list[str]) -> float:
    """The processor's seconds: on a shared machine the clock on the wall says more about the neighbours."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def summary(rounds: list[dict[str, float]]) -> dict:
    """Medians and spreads; a ratio is taken within a round."""
    # Start-up and the reading of the schemas cost the same however many there are: the growth is what counts.
    growth = {
        f"from {few} to {many}": [
            1000 * (each[f"{many} manifests"] - each[f"{few} manifests"]) / (many - few) for each in rounds
        ]
        for few, many in pairwise(COUNTS)
    }
    start_up = {
        f"{name}, x python -c pass": [each[name] / each["python -c pass"] for each in rounds]
        for name in ("one MPIJob", "one Job")
    }
    seconds = {name: [each[name] for each in rounds] for name in rounds[0]}
    return {
        "processor_seconds": {name: spread(values) for name, values in seconds.items()},
        "milliseconds_a_manifest": {name: spread(values) for name, values in growth.items()},
        "ratios": {name: spread(values) for name, values in start_up.items()},
    }


def spread(values: list[float]) -> dict[str, float]:
    return {"median": round(statistics.median(values), 3), "min": round(min(values), 3), "max": round(max(values), 3)}


if __name__ == "__main__":
    main()
