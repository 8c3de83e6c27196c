import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

NETNS = Path("/run/netns")


@pytest.fixture(scope="session", autouse=True)
def loopback() -> None:
    """`make e2e` starts the tests in a new network namespace, where even this one is down."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)


@pytest.fixture(scope="session", autouse=True)
def network_names(loopback: None) -> Iterator[None]:
    """`ip netns add` leaves a file in the machine's own /run/netns, where the next run stumbles over those of a killed
    one. In a network of our own they go into memory that goes with us; on the machine's network nothing is hidden."""
    from machines import interfaces

    if interfaces() != {"lo"}:
        yield
        return
    NETNS.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "netns", str(NETNS)], check=True)
    yield
    subprocess.run(["umount", "--lazy", str(NETNS)], check=True)
