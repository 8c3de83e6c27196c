"""What the smoke test runs: `rank` is one of two ranks, `gloo` starts both of them without MPI.

It runs beside a Horovod that is not installed yet, so it imports nothing of hvdkit.
"""

import ctypes
import os
import signal
import subprocess
import sys

PR_SET_PDEATHSIG = 1


def rank() -> None:
    """An allreduce and an optimizer step whose results no single rank could have."""
    import horovod.torch as hvd
    import torch

    hvd.init()
    assert hvd.size() == 2, f"2 ranks were started, but Horovod sees {hvd.size()}"
    controller = os.environ["HOROVOD_CONTROLLER"]
    assert hvd.mpi_enabled() == (controller == "mpi") and hvd.gloo_enabled() == (controller == "gloo")

    values = torch.arange(1000, dtype=torch.float32) * (hvd.rank() + 1)
    total = hvd.allreduce(values, op=hvd.Sum, name="smoke")
    assert torch.equal(total, torch.arange(1000, dtype=torch.float32) * 3)

    weight = torch.nn.Parameter(torch.zeros(3))
    plain = torch.optim.SGD([weight], lr=1.0)
    optimizer = hvd.DistributedOptimizer(plain, named_parameters=[("weight", weight)])
    optimizer.zero_grad(set_to_none=True)
    (weight * torch.tensor([1.0, 2.0, 3.0]) * (hvd.rank() * 2 + 1)).sum().backward()
    optimizer.step()
    # The gradients are 1 and 3 times (1, 2, 3); their mean moved the weight from zero.
    assert torch.equal(weight.detach(), torch.tensor([-2.0, -4.0, -6.0])), weight

    number = hvd.rank()
    hvd.shutdown()
    os.write(1, f"hvdkit smoke test passed on rank {number}\n".encode())  # in one piece: two ranks share the pipe


def gloo() -> int:
    """Two ranks over a rendezvous server in this process; its exit code is theirs."""
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.http.http_server import RendezvousServer

    server = RendezvousServer(verbose=0)
    port = server.start()
    slots = get_host_assignments(parse_hosts("localhost:2"), 2)
    server.init(slots)
    ranks = []
    for slot in slots:
        env = os.environ | {
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
            "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
            "HOROVOD_GLOO_IFACE": "lo",
            "HOROVOD_HOSTNAME": "localhost",
            "HOROVOD_RANK": str(slot.rank),
            "HOROVOD_SIZE": str(slot.size),
            "HOROVOD_LOCAL_RANK": str(slot.local_rank),
            "HOROVOD_LOCAL_SIZE": str(slot.local_size),
            "HOROVOD_CROSS_RANK": str(slot.cross_rank),
            "HOROVOD_CROSS_SIZE": str(slot.cross_size),
        }
        ranks.append(subprocess.Popen([sys.executable, __file__, "rank"], env=env))
    codes = [process.wait() for process in ranks]
    server.stop()
    return max(map(abs, codes))


if __name__ == "__main__":
    # A rank whose launcher is killed while it still imports torch would live on.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    sys.exit(rank() if sys.argv[1] == "rank" else gloo())
