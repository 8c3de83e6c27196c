"""The main program of a MonarchMesh's worker pod: `python -m hvdkit.runtime.monarch_worker`.

Monarch's worker loop takes no notice of a SIGTERM, so that a process of ours stands before it.
"""

import os
import subprocess
import sys

from hvdkit.errors import EnvironmentProblem
from hvdkit.local.monarch import check_installed
from hvdkit.runtime.pod_names import addresses_of
from hvdkit.runtime.pod_termination import explained
from hvdkit.runtime.pod_worker import serve, start_child

PORT = 26600  # what Monarch's KubernetesJob expects
_LOOP = "from monarch.actor import run_worker_loop_forever as run; run(address={!r}, ca='trust_all_connections')"


def main() -> int:
    """Serve until asked to stop; then let the ranks save and leave."""
    check_installed()
    return serve(start_server, what="Monarch's worker loop")


def start_server() -> subprocess.Popen:
    """Start Monarch's worker loop at this pod's address. It trusts whoever connects: see the NetworkPolicy."""
    own = os.environ.get("POD_IP") or (addresses_of(os.uname().nodename) or [""])[0]
    if not own:
        raise EnvironmentProblem(f"this pod's own name, {os.uname().nodename}, has no address.")
    port = int(os.environ.get("MONARCH_PORT", PORT))
    return start_child([sys.executable, "-u", "-c", _LOOP.format(f"tcp://{own}:{port}@tcp://0.0.0.0:{port}")])


if __name__ == "__main__":
    sys.exit(explained(main))
