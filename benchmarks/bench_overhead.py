"""What measuring costs: result lines on against off, live metrics on against off; and how long a report takes.

    python benchmarks/bench_overhead.py --output benchmarks/results/bench-overhead.json

ResNet-18, 64 x 64, batch 16 a rank, 2 ranks with one thread each. Both sides of a comparison train in the same
processes and take turns of a few steps; a round is two new worlds, which set the sides up in either order
(train_overhead_ranks.py says why). The figure is CPU-seconds an image; ratios are taken within a round, and rounds in
which others kept the cores busy are recorded, but not counted: it goes on until enough are, or --minutes are over. The
part "same" compares off with off and so shows what the method is off by. Each round is on the disk at once, and rounds
are added to those that the output file already has. Nobody scrapes meanwhile, since a scrape would fall into anybody's
turn; what one takes is measured apart, asker included. The report is made of 125 to 1,000 runs that are made up here;
its time should grow with them and no faster.
"""

import argparse
import contextlib
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import asdict
from pathlib import Path
from typing import Any

from machine_facts import machine_facts
from train_overhead import (
    KEEP_MEMORY,
    LAUNCH,
    MOST_DISTURBED,
    RANKS,
    Sample,
    add_up,
    cpu_per_image,
    disturbance,
    interval,
    spread,
)
from train_overhead_ranks import PLANS, SYNTHETIC, compare, steps_needed
from train_overhead_sides import hvdkit_train

PLAN = "loop"  # of train_overhead_ranks: turns of two steps
VERSION = 2  # 1 took all rounds in the same two worlds
SIDES = {"result lines": ("off", "on"), "live metrics": ("off", "on"), "same": ("off", "off again")}
GOAL = 0.99
ROUNDS, CONTROLS = 15, 5  # undisturbed ones that a part needs, and the part that only shows the method's error
REPORT_RUNS = (125, 125, 250, 500, 1000)  # the first one, which imports matplotlib, is not counted
SCRAPES = 200


def measure(part: str) -> Sample:
    """A round: two new worlds, in which the sides are set up in either order, added up."""
    orders = list(SIDES[part])
    random.shuffle(orders)
    return add_up(*(measure_world(part, first) for first in orders))


def measure_world(part: str, first: str) -> Sample:
    with tempfile.TemporaryDirectory(prefix="hvdkit-benchmark-") as folder:
        result = Path(folder) / "round.json"
        words = ["--ranks", part, "--seed", str(random.randrange(2**31)), "--first", first]
        words += ["--result", str(result), "--port", str(free_port())]
        done = subprocess.run([*KEEP_MEMORY, *LAUNCH, sys.executable, __file__, *words], capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"the ranks failed:\n{done.stdout}{done.stderr}")
        ranks = json.loads(result.read_text())
    return {side: [own[side] for (own,) in ranks] for side in SIDES[part]}


def run_rank(part: str, seed: int, first: str, port: int, result: Path) -> None:
    """On each rank: both trainings, by turns."""
    from hvdkit.runtime.session import session

    steps = steps_needed(PLAN, 1)
    on: dict[str, dict[str, Any]] = {"result lines": {"result_lines": True}, "live metrics": {"metrics_port": port}}
    one, other = SIDES[part]
    with session("horovod") as engine:
        sides = {
            one: hvdkit_train(engine, steps, **SYNTHETIC),
            other: hvdkit_train(engine, steps, **SYNTHETIC, **on.get(part, {})),
        }
        trainings = [sides[first], *(side for name, side in sides.items() if name != first)]
        ranks = engine.gather(compare(PLAN, engine, 1, random.Random(seed), trainings, sides))
        if engine.rank == 0:
            result.write_text(json.dumps(ranks))


def free_port() -> int:
    """The first of RANKS ports in a row that nobody uses now, below those that the kernel gives to anybody."""
    while True:
        first = random.randrange(20_000, 30_000)
        with contextlib.suppress(OSError), contextlib.ExitStack() as probes:
            for port in range(first, first + RANKS):
                probes.enter_context(socket.create_server(("", port)))
            return first


def undisturbed(rounds: list[Sample]) -> list[Sample]:
    return [sample for sample in rounds if disturbance(sample) <= MOST_DISTURBED]


def summarise(part: str, rounds: list[Sample]) -> dict[str, Any]:
    """Off over on, within rounds: 1 means that measuring is free."""
    counted = undisturbed(rounds)
    one, other = SIDES[part]
    cost = {side: [cpu_per_image(sample[side]) for sample in counted] for side in (one, other)}
    ratios = [off / on for off, on in zip(cost[one], cost[other], strict=True)]
    summary: dict[str, Any] = {"rounds": len(rounds), "counted": len(counted)}
    summary |= {"goal": None if part == "same" else GOAL}
    if ratios:
        summary |= {"cpu_seconds_an_image": {side: spread(values) for side, values in cost.items()}}
        summary |= {f"{one}_over_{other}".replace(" ", "_"): spread(ratios) | {"interval": interval(ratios)}}
    return summary


def time_reports() -> list[dict[str, float]]:
    """Seconds to load a results.json of so many runs and to make its page and plots."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "unit"))
    from bench_samples import World, make_results

    from hvdkit.bench import result_file
    from hvdkit.bench.report import write_report

    taken = []
    for runs in REPORT_RUNS:
        with tempfile.TemporaryDirectory(prefix="hvdkit-benchmark-") as folder:
            worlds = {("horovod", workers): World() for workers in (1, 2, 4, 8)}
            results = make_results(worlds, repeats=-(-runs // 4), steps=100)
            results.runs = results.runs[:runs]
            result_file.save(results, Path(folder) / "results.json")
            size = (Path(folder) / "results.json").stat().st_size
            begin = time.perf_counter()
            write_report([result_file.load(Path(folder) / "results.json")], Path(folder))
            taken.append({"runs": runs, "bytes": size, "seconds": time.perf_counter() - begin})
    return taken[1:]


def time_scrapes() -> dict[str, float]:
    """Processor seconds of one GET of a rank's metrics, by the one who serves and the one who asks together."""
    from hvdkit.metrics.live import LiveMetrics

    labels = dict.fromkeys(("job", "host", "model", "data", "engine", "library"), "x")
    live = LiveMetrics(port=0, rank=0, local_rank=0, world_size=2, **labels)
    live.observe_step(0.3, 0.001, 0.01, 16)
    began = time.process_time()
    for _ in range(SCRAPES):
        with urllib.request.urlopen(f"http://127.0.0.1:{live.port}/metrics") as answer:
            answer.read()
    seconds = (time.process_time() - began) / SCRAPES
    live.close()
    return {"scrapes": SCRAPES, "cpu_seconds": seconds, "share_of_a_core_every_15_s": seconds / 15}


APART = {"scrape": time_scrapes, "report": time_reports}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="that count, of each part; earlier ones do, too")
    parser.add_argument("--minutes", type=float, default=25, help="after which no new round begins")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--parts", nargs="+", choices=[*SIDES, *APART], default=[*SIDES, *APART])
    for flag in ("--ranks", "--seed", "--first", "--port", "--result"):  # how this program calls itself on each rank
        parser.add_argument(flag, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.ranks:
        run_rank(arguments.ranks, int(arguments.seed), arguments.first, int(arguments.port), Path(arguments.result))
        return
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    record: dict[str, Any] = {"version": VERSION, "benchmark": "bench_overhead", "machine": machine_facts()}
    record |= {"plan": asdict(PLANS[PLAN]), "parts": {}}
    if arguments.output and arguments.output.exists():
        before = json.loads(arguments.output.read_text())
        if before["version"] != VERSION:
            parser.error(f"--output: {arguments.output} was measured in another way; name another file.")
        record = before | {name: record[name] for name in ("machine", "plan")}

    def save() -> None:
        if arguments.output:  # at once, so that a sitting can be cut short
            arguments.output.write_text(json.dumps(record, indent=1) + "\n")

    wanted = {part: min(arguments.rounds, CONTROLS) if part == "same" else arguments.rounds for part in SIDES}
    chosen = {part: wanted[part] for part in SIDES if part in arguments.parts}
    for part in chosen:
        record["parts"].setdefault(part, {"summary": summarise(part, []), "samples": []})

    def short() -> list[str]:
        return [part for part, rounds in chosen.items() if record["parts"][part]["summary"]["counted"] < rounds]

    over = time.monotonic() + 60 * arguments.minutes
    while time.monotonic() < over and (left := short()):
        for part in left:  # by turns, so that a noisy minute hits all of them
            found = record["parts"][part]
            found["samples"].append(measure(part))
            found["summary"] = summarise(part, found["samples"])
            print(f"{part}: {found['summary']['counted']} of {found['summary']['rounds']} rounds count", flush=True)
            save()
    for part in arguments.parts:
        if part in APART:
            record[part] = APART[part]()
            save()
        print(f"{part}: {json.dumps(record[part] if part in APART else record['parts'][part]['summary'])}", flush=True)
    if short():
        sys.exit(f"too few undisturbed rounds of {', '.join(short())}: run it again on a quiet machine.")


if __name__ == "__main__":
    main()
