"""What `hvdkit render` costs: the whole command against a bare Python start.

    python benchmarks/render_speed.py --rounds 21 --output benchmarks/results/render-speed.json

Each round runs both sides once, in a new random order; ratios are taken within a round.
"""

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
from pathlib import Path

from machine_facts import machine_facts
from validate_speed import run, spread

GOAL = 5.0  # at most
RENDER = ("render", "--backend", "mpijob", "--workers", "4", "--nfs", "10.0.0.5:/exports/data:/data")
SIDES = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "hvdkit render": [str(Path(sys.executable).with_name("hvdkit")), *RENDER],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    facts = machine_facts()
    with tempfile.TemporaryDirectory() as folder:
        # Modules are compiled once and kept, as a user has them from the second command on, whatever is set here.
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = folder
        measure()
        rounds = [measure() for _ in range(options.rounds)]
    result = {
        "version": 1,
        "command": " ".join(["hvdkit", *RENDER]),
        "machine": facts,
        "rounds": rounds,
        "summary": summary(rounds),
    }
    print(json.dumps(result["summary"], indent=2))
    if options.output:
        options.output.write_text(json.dumps(result, indent=2) + "\n")


def measure() -> dict[str, float]:
    """Processor seconds of both sides, one right after the other."""
    return {name: run(SIDES[name]) for name in random.sample(list(SIDES), len(SIDES))}


def summary(rounds: list[dict[str, float]]) -> dict:
    ratios = [each["hvdkit render"] / each["python -c pass"] for each in rounds]
    return {
        "processor_seconds": {name: spread([each[name] for each in rounds]) for name in SIDES},
        "ratio": {**spread(ratios), "goal_at_most": GOAL, "reached": statistics.median(ratios) <= GOAL},
    }


if __name__ == "__main__":
    main()
