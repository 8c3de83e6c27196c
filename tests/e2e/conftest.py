import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session", autouse=True)
def loopback():
    """`make e2e` starts the tests in a new network namespace, where even this one is down."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
