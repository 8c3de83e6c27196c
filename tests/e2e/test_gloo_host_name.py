"""Gloo on a host whose own name resolves nowhere, as in a container that is being built."""

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import horovod.torch as hvd, socket, torch
hvd.init()
total = hvd.allreduce(torch.tensor([hvd.rank() + 1.0]), op=hvd.Sum, name="sum")
print(socket.gethostname(), "has", total.item())
"""


def test_ranks_meet_on_a_host_without_a_known_name(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    launch = [sys.executable, "-m", "hvdkit", "launch", "--backend=local", "--controller=gloo", "--workers=2"]
    named = ["unshare", "--uts", "sh", "-c", 'hostname nobody-knows-this-name && exec "$@"', "sh"]
    words = [*named, *launch, "--", "python", "train.py"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("nobody-knows-this-name has 3.0") == 2
