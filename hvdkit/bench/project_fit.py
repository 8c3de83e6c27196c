"""Fits the latency-bandwidth model to allreduces that were measured, and predicts others.

An allreduce of s bytes over n ranks takes start + 2 (n - 1) x step + 2 (n - 1) / n x s / bandwidth: what any call costs
(Horovod's cycle), and a ring's steps and bytes. Where ranks are more than cores, each stays on one core, and the last
two grow by the number of ranks on the fullest one. Errors count relative to the time, so that microseconds matter as
much as seconds.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from hvdkit.bench.allreduce import Row
from hvdkit.bench.networks import Link, Network
from hvdkit.errors import InputError

Terms = tuple[float, float, float]


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Constants of one library on one machine."""

    library: str
    start_seconds: float
    step_seconds: float
    bytes_per_second: float
    cores: int
    ranks: tuple[int, ...]
    """Numbers of ranks that it was fitted to."""

    def predict(self, size: float, ranks: int) -> float:
        """Seconds of an allreduce."""
        start, steps, transfer = _terms(size, ranks, self.cores)
        return start * self.start_seconds + steps * self.step_seconds + transfer / self.bytes_per_second

    def network(self) -> Network:
        """For a projection: every GPU in a server of its own on such links."""
        link = Link(step_seconds=self.step_seconds, bytes_per_second=self.bytes_per_second)
        return Network(
            name="measured",
            description=f"as measured with {self.library} on {', '.join(map(str, self.ranks))} ranks",
            gpus_per_server=1,
            inside=link,
            between=link,
            start_seconds=self.start_seconds,
        )


def fit(rows: Sequence[Row], library: str, cores: int) -> Fit:
    """The constants, none negative, by which the model comes nearest; InputError when rows do not determine them."""
    chosen = [row for row in rows if row.library == library]
    if len({row.bytes for row in chosen}) < 3:
        known = ", ".join(sorted({row.library for row in rows})) or "none"
        raise InputError(f"a fit needs allreduces of at least 3 sizes by {library}; the files have {known}.")
    # Relative errors: each term over the measured time, and 1 for the sum of them.
    points = [tuple(term / row.seconds for term in _terms(row.bytes, row.ranks, cores)) for row in chosen]
    start, step, slope = _nearest(points)
    if slope <= 0:
        raise InputError(
            f"the times of {library} do not grow with the size as a network's do; measure larger messages."
        )
    ranks = tuple(sorted({row.ranks for row in chosen}))
    return Fit(
        library=library, start_seconds=start, step_seconds=step, bytes_per_second=1 / slope, cores=cores, ranks=ranks
    )


def _terms(size: float, ranks: int, cores: int) -> Terms:
    crowding = math.ceil(ranks / cores)
    return 1.0, crowding * 2 * (ranks - 1), crowding * 2 * (ranks - 1) / ranks * size


def _nearest(points: Sequence[Terms]) -> Terms:
    """Least squares of 1 = a x + b y + c z with no negative constant: the best of all choices of which are not zero."""
    best, least = (0.0, 0.0, 0.0), float("inf")
    for count in (1, 2, 3):
        for used in itertools.combinations(range(3), count):
            solved = _solve(
                [[sum(point[i] * point[j] for point in points) for j in used] for i in used],
                [sum(point[i] for point in points) for i in used],
            )
            if solved is None or min(solved) < 0:
                continue
            constants = tuple(dict(zip(used, solved, strict=True)).get(place, 0.0) for place in range(3))
            squares = sum((1 - sum(a * b for a, b in zip(constants, point, strict=True))) ** 2 for point in points)
            if squares < least * (1 - 1e-9):
                best, least = constants, squares
    return best


def _solve(matrix: list[list[float]], right: list[float]) -> list[float] | None:
    """Gauss and Jordan; None when the rows depend on each other, as steps and starts do at one number of ranks."""
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    largest = [max(abs(value) for value in row) for row in matrix]
    for place in range(len(rows)):
        pivot = rows[place][place]
        if abs(pivot) <= 1e-9 * largest[place]:
            return None
        rows[place] = [value / pivot for value in rows[place]]
        for other in range(len(rows)):
            if other != place:
                factor = rows[other][place]
                rows[other] = [value - factor * own for value, own in zip(rows[other], rows[place], strict=True)]
    return [row[-1] for row in rows]
