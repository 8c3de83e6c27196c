"""Reads from Horovod's timeline which library did the work."""

import re
from collections import Counter
from pathlib import Path

# Activities of an allreduce by library. Hierarchical and torus allreduce on GPUs begin with a reduce-scatter.
_ALLREDUCE = re.compile(r'"name"\s*:\s*"(NCCL|MPI|GLOO|CCL)_(?:ALLREDUCE|REDUCESCATTER)"')
_NAMES = {"NCCL": "NCCL", "MPI": "MPI", "GLOO": "Gloo", "CCL": "oneCCL"}


def allreduce_counts(timeline: Path) -> dict[str, int]:
    """How many allreduces each library did; empty when the timeline is missing or shows none.

    Horovod writes one event a line and does not always close the list, so the file is not read as JSON.
    """
    if not timeline.is_file():
        return {}
    counts: Counter[str] = Counter()
    with timeline.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            counts.update(_NAMES[library] for library in _ALLREDUCE.findall(line))
    return dict(counts)
