"""Does a model fitted to allreduces of 2 and 3 ranks predict those of 4? And does Horovod agree with mpi4py?

    python benchmarks/allreduce_fit.py --rounds 5 --output benchmarks/results/allreduce-fit.json

Each round measures all sizes at 2, 3 and 4 ranks in one run of `hvdkit bench allreduce`, fits to 2 and 3, and takes the
geometric mean over sizes of predicted / measured at 4. Horovod over MPI and plain mpi4py run in the same processes; for
8 MiB their times should be alike, since both call MPI_Allreduce.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from machine_facts import machine_facts

from hvdkit.bench import allreduce
from hvdkit.bench.project_fit import fit

LIBRARIES = ("mpi4py", "horovod-mpi")
LARGE = 8 << 20


def one_round(file: Path) -> dict[str, float]:
    """The ratios of one measurement."""
    words = ["bench", "allreduce", "--workers", "2,3,4", "--controllers", "mpi", "--sizes", "1K,64K,1M,8M", "--json"]
    words += ["--output", str(file)]
    done = subprocess.run([sys.executable, "-m", "hvdkit", *words], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"hvdkit {' '.join(words)} failed:\n{done.stderr}")
    measured = allreduce.load(file)
    found = {}
    for library in LIBRARIES:
        made = fit([row for row in measured.rows if row.ranks < 4], library, measured.cores)
        fours = [row for row in measured.rows if (row.library, row.ranks) == (library, 4)]
        found[f"{library}: predicted / measured at 4 ranks"] = statistics.geometric_mean(
            made.predict(row.bytes, 4) / row.seconds for row in fours
        )
    seconds = {(row.library, row.ranks): row.seconds for row in measured.rows if row.bytes == LARGE}
    found["horovod-mpi / mpi4py, 8 MiB, 2 ranks"] = seconds["horovod-mpi", 2] / seconds["mpi4py", 2]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    facts = machine_facts()
    with tempfile.TemporaryDirectory(prefix="hvdkit-benchmark-") as folder:
        rounds = [one_round(Path(folder) / f"{number}.json") for number in range(arguments.rounds)]
    for name in rounds[0]:
        values = [each[name] for each in rounds]
        print(f"{name}: {statistics.median(values):.2f} ({min(values):.2f} … {max(values):.2f})")
    if arguments.output:
        result = {"version": 1, "benchmark": "allreduce_fit", "machine": facts, "rounds": rounds}
        arguments.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
