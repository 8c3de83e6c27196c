"""Every step of a rank, kept for the HVDKIT_RESULT lines, so that nobody has to trust a mean of rank 0."""

import os
import resource
import time
from typing import Any

import torch

from hvdkit.runtime import cores
from hvdkit.train.pace import StepTime

SECONDS = ("total", "data_wait", "allreduce_wait", "own")


class StepRecord:
    """What one rank measured, step by step."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._times: list[StepTime] = []
        self._images: list[int] = []
        self._ended: list[float] = []
        self._cpu: list[float] = []

    def add(self, times: StepTime, images: int) -> None:
        """A step of so many images of this rank has just ended."""
        self._times.append(times)
        self._images.append(images)
        self._ended.append(time.perf_counter())
        self._cpu.append(time.process_time())

    def payload(self) -> dict[str, Any]:
        """For the result lines.

        `began` is Unix time, `ended` counts from it: processes of one machine that do not know of each other can be
        laid side by side. `cpu` is the processor time of this process until the end of each step.
        """
        first = self._ended[0] - self._times[0].total if self._times else 0.0
        return {
            "rank": self._rank,
            "seconds": {name: [round(getattr(times, name), 6) for times in self._times] for name in SECONDS},
            "images": self._images,
            "began": round(time.time() - (time.perf_counter() - first), 6) if self._times else None,
            "ended": [round(moment - first, 6) for moment in self._ended],
            "cpu": [round(moment - self._cpu[0], 6) for moment in self._cpu],
            "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "threads": torch.get_num_threads(),
            "cores": int(os.environ.get(cores.BEFORE) or len(os.sched_getaffinity(0))),  # that it shares with others
            "node": os.environ.get("HVDKIT_NODE"),  # told by Kubernetes: pods that share a node share its cores
        }
