"""The public API: the script of the README, with real ranks, killed and resumed."""

import re
import signal
from pathlib import Path

import pytest
from running import LAUNCHERS, SECONDS, run, started

README = Path(__file__).parents[2] / "README.md"


@pytest.fixture
def script(tmp_path) -> str:
    """The script as the README has it, on data that are there."""
    whole = r"^    (import torch\n    import hvdkit\n.*?)\n\n[^ ]"
    (block,) = re.findall(whole, README.read_text(), re.DOTALL | re.MULTILINE)
    text = re.sub(r"^    ", "", block, flags=re.MULTILINE)
    assert len(text.splitlines()) <= 32
    path = tmp_path / "mine.py"
    path.write_text(text)
    return str(path)


def test_the_readmes_script_trains_and_goes_on_under_any_launcher(script, tmp_path):
    """Horovod begins, DDP goes on from its checkpoint, and one process alone from DDP's."""
    losses = []
    for launcher, last, expected in (
        ("hvdkit-mpi", 2, ["1", "2"]),
        ("torchrun", 4, ["3", "4"]),
        ("alone", 5, ["5"]),
    ):
        python = () if launcher == "torchrun" else ("python",)
        done = run(*LAUNCHERS.get(launcher, ()), *python, script, str(last), cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        said = re.findall(r"epoch (\d): loss ([\d.]+)", done.stdout)
        assert [epoch for epoch, _ in said] == expected, launcher
        losses += [float(loss) for _, loss in said]
    assert losses == sorted(losses, reverse=True)


def test_asked_to_stop_it_leaves_with_75(script, tmp_path):
    """With workers of a DataLoader, which raises when a signal ends one of them."""
    path = Path(script)
    path.write_text(path.read_text().replace("batch_size=50,", "batch_size=50, num_workers=1,"))
    assert "num_workers=1" in path.read_text()
    with started(*LAUNCHERS["hvdkit-mpi"], "python", script, "1000", cwd=tmp_path) as job:
        for line in job.stdout:
            if "epoch 1" in line:
                break
        job.send_signal(signal.SIGTERM)
        stdout, stderr = job.communicate(timeout=SECONDS)
    assert job.returncode == 75
    last = (re.findall(r"epoch (\d+): loss", stdout) or ["1"])[-1]
    newest = max(path.name for path in (tmp_path / "runs/mine").glob("step-*.pt"))
    assert newest.startswith(f"step-{int(last):08d}."), "the last epoch that was spoken of is on the disk"
    assert stderr.count("stopped in good order") >= 1


THREADS = """
import contextlib, pathlib, time, torch, hvdkit

def reducing():
    names = []
    for task in pathlib.Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended meanwhile
            names.append((task / "comm").read_text())
    return sum("gloo_runloop" in name for name in names)

with hvdkit.init(engine="ddp") as world:
    model = torch.nn.Linear(2, 2)
    model, optimizer = world.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
    model(torch.ones(1, 2)).sum().backward()
    before = reducing()
end = time.monotonic() + 60
while reducing() > before // 2 and time.monotonic() < end:
    time.sleep(0.01)  # the kernel may show a thread for a moment after its end
print(before, reducing())
"""


def test_a_ddp_rank_leaves_no_thread_that_holds_tensors_of_python(tmp_path):
    """Such a thread, when it came late, ended the interpreter with SIGABRT. DDP keeps those of its gradients."""
    done = run("torchrun", "--standalone", "--no-python", "python", "-c", THREADS, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    before, after = map(int, done.stdout.split())
    assert after <= before // 2 and before > 0
