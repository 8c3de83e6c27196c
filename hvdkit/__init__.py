"""hvdkit: from a laptop to many GPUs with Horovod and MPI."""

from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from hvdkit.train.world import World


def init(engine: str = "auto") -> "World":
    """Join the ranks that a launcher started, or be a world of one: `with hvdkit.init() as world: …`.

    `engine` is auto, horovod, ddp or single. See hvdkit.train.world.World for what it offers.
    """
    from hvdkit.train.world import World  # late: the command line must not import torch

    return World(engine)
