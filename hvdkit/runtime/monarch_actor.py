"""What runs in each process of a Monarch mesh: it starts one rank's wrapper and waits for its end."""

import math
import os
import socket
import subprocess
import sys

from monarch.actor import Actor, current_rank, endpoint


class RankStarter(Actor):
    """One rank of the mesh."""

    @endpoint
    def meeting_place(self, towards: str) -> tuple[str, int]:
        """This process' address as another pod sees it, and a port that is free on it."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((towards, 9))  # sends nothing; the kernel only chooses the way
            address = probe.getsockname()[0]
        with socket.create_server((address, 0)) as listener:
            return address, listener.getsockname()[1]

    @endpoint
    def run(self, command: list[str], env: dict[str, str], local_size: int, master: tuple[str, int]) -> str:
        """Run the command as a DDP rank; returns what its wrapper had to say besides the channel."""
        point = current_rank()
        place = {
            "RANK": point.rank,
            "WORLD_SIZE": math.prod(point.extent.sizes),
            "LOCAL_RANK": point.rank % local_size,
            "LOCAL_WORLD_SIZE": local_size,
            "GROUP_RANK": point.rank // local_size,
            "MASTER_ADDR": master[0],
            "MASTER_PORT": master[1],
            # torch's mark of a world that a launcher has made; by it `hvdkit train` knows that it is not Horovod's.
            "TORCHELASTIC_RUN_ID": os.environ.get("HVDKIT_JOB", "monarch"),
        }
        wrapper = [sys.executable, "-m", "hvdkit.runtime.pod_wrapper", "--size-in", "WORLD_SIZE", "--"]
        finished = subprocess.run(
            [*wrapper, *command],
            env=os.environ | env | {name: str(value) for name, value in place.items()},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        return finished.stdout
