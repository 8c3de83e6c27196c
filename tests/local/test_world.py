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


@pytest.mark.parametrize("launcher", ["hvdkit-mpi", "torchrun"])
def test_the_readmes_script_trains_and_goes_on(launcher, script, tmp_path):
    python = () if launcher == "torchrun" else ("python",)
    first = run(*LAUNCHERS[launcher], *python, script, "2", cwd=tmp_path)
    assert first.returncode == 0, first.stdout + first.stderr
    losses = [float(loss) for loss in re.findall(r"epoch \d: loss ([\d.]+)", first.stdout)]
    assert len(losses) == 2
    assert losses[1] < losses[0]
    again = run(*LAUNCHERS[launcher], *python, script, "3", cwd=tmp_path)
    assert again.returncode == 0, again.stdout + again.stderr
    assert re.findall(r"epoch (\d): loss", again.stdout) == ["3"], "it goes on after epoch 2"


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


def test_alone_it_is_a_world_of_one(script, tmp_path):
    done = run("python", script, "1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "epoch 1: loss" in done.stdout


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
