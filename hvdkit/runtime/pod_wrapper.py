"""The rank's wrapper in a pod that did not plan the job: `python -m hvdkit.runtime.pod_wrapper -- command …`.

Sets what only this pod can know, then is the usual wrapper. With `--size-in VARIABLE` the rank has torch's variables
(RANK …), and that one says of how many ranks its supervisor knows: those of this pod, or all.
"""

import os
import signal
import socket
import sys
from collections.abc import MutableMapping
from pathlib import Path

from hvdkit.jobs.tuning import horovod_settings, is_autotuned, memory_settings, threads_per_rank
from hvdkit.local.machine import usable_cores
from hvdkit.local.ssh import reachable_addresses
from hvdkit.runtime import cores, rank
from hvdkit.runtime.interfaces import interface_of
from hvdkit.runtime.memory import limit_in_words, oom_kills

KILLED = 128 + signal.SIGKILL
OUT_OF_MEMORY = "hvdkit: killed for lack of memory: rank "  # the launcher looks for this line


def main(arguments: list[str]) -> int:
    """Run one rank's command and return its exit code."""
    if arguments[:1] == ["--size-in"]:
        arguments = ["--", *with_torch_variables(arguments[3:], arguments[1], os.environ)]
    add_what_the_pod_knows(os.environ)
    number, _ = rank.place_in_world(os.environ)
    kills = oom_kills()
    code = rank.main(arguments)
    if code == KILLED and oom_kills() > kills:
        # With an SSH server as its main process the pod itself would show nothing of it.
        print(f"{OUT_OF_MEMORY}{number} ({limit_in_words()})", file=sys.stderr, flush=True)
    return code


def add_what_the_pod_knows(environ: MutableMapping[str, str]) -> None:
    """Threads, on CPUs the allocator's and Horovod's settings, Gloo's interface.

    The launcher has other cores, no GPU, another network. What works here and was set is not overruled.
    """
    site = str(Path(__file__).parent / "site")  # by which Python processes print their stacks when asked to
    paths = [path for path in environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if site not in paths:
        environ["PYTHONPATH"] = os.pathsep.join([site, *paths])
    names = ("OMPI_COMM_WORLD_LOCAL_SIZE", "HOROVOD_LOCAL_SIZE", "LOCAL_WORLD_SIZE")
    local_size = next((int(environ[name]) for name in names if name in environ), 1)
    environ.setdefault("OMP_NUM_THREADS", str(threads_per_rank(usable_cores(), local_size)))
    gpus = any(path.name.removeprefix("nvidia").isdecimal() for path in Path("/dev").glob("nvidia*"))
    for setting in memory_settings(gpus=gpus):
        environ.setdefault(setting.name, setting.value)
    controller = environ.get("HOROVOD_CONTROLLER")
    if controller is None:
        return  # no Horovod
    autotune = is_autotuned(environ)
    for setting in horovod_settings(controller=controller, gpus=gpus, one_machine=False, autotune=autotune):
        environ.setdefault(setting.name, setting.value)
    if controller == "mpi" and not gpus:
        environ.setdefault(cores.BIND, "1")
    meeting = environ.get("HOROVOD_GLOO_RENDEZVOUS_ADDR")
    if meeting and environ.get("HOROVOD_GLOO_IFACE") not in {name for _, name in socket.if_nameindex()}:
        # horovodrun gives every rank the name that its own interface has.
        interface = interface_of(reachable_addresses((meeting,))[0])
        for name in ("HOROVOD_GLOO_IFACE", "NCCL_SOCKET_IFNAME") if interface else ():
            environ[name] = interface


def with_torch_variables(command: list[str], size_in: str, environ: MutableMapping[str, str]) -> list[str]:
    """Tell the wrapper its place as it expects it, and hide that from the command, which would think of Horovod."""
    environ["HOROVOD_RANK"], environ["HOROVOD_SIZE"] = environ["RANK"], environ[size_in]
    return ["env", "-u", "HOROVOD_RANK", "-u", "HOROVOD_SIZE", *command]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
