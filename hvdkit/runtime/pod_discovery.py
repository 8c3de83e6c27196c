"""The hosts of an elastic MPIJob, for horovodrun: `python -m hvdkit.runtime.pod_discovery SLOTS STATE_FILE`.

The operator's script lists pods that run, without their slots; a running pod need not answer yet, and horovodrun
would blacklist it for good. Who has answered once stays listed as long as the operator lists it: a slow moment
must not cost a restart of the world.
"""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hvdkit.runtime import mpijob_ssh
from hvdkit.runtime.pod_names import addresses_of

SCRIPT = "/etc/mpi/discover_hosts.sh"


def hosts_that_answer(known: set[str]) -> list[str]:
    """The operator's list, without hosts that have not answered yet; `known` ones are not asked again."""
    script = os.environ.get("HVDKIT_DISCOVER_HOSTS", SCRIPT)
    listed = subprocess.run(["/bin/sh", script], capture_output=True, text=True).stdout.split()
    unknown = [name for name in listed if name not in known]
    with ThreadPoolExecutor(max_workers=64) as pool:
        answered = {name for name, answers in zip(unknown, pool.map(_answers, unknown), strict=True) if answers}
    return [name for name in listed if name in known or name in answered]


def _answers(name: str) -> bool:
    addresses = addresses_of(name)
    return bool(addresses) and not mpijob_ssh.problem_with(addresses[0])


def main(slots: str, state: Path) -> None:
    """Print `host:slots` lines."""
    known = set(state.read_text().split()) if state.exists() else set()
    hosts = hosts_that_answer(known)
    state.write_text("\n".join(hosts))
    for name in hosts:
        print(f"{name}:{slots}")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
