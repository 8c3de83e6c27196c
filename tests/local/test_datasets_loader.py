"""The loader with real workers: the same batches, errors as sentences, and nobody left behind."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest
import torch
from PIL import Image
from running import environment

from hvdkit.errors import InputError
from hvdkit.runtime.single_engine import SingleEngine
from hvdkit.train import datasets
from hvdkit.train.datasets.loader import Loader, default_workers
from hvdkit.train.settings import TrainSettings

SECONDS = 120


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two classes of 60 and 20 images, larger than they are asked for."""
    top = tmp_path_factory.mktemp("images")
    noise = np.random.default_rng(1)
    for half, count in (("train", 60), ("val", 20)):
        for kind in ("cat", "dog"):
            (top / half / kind).mkdir(parents=True)
            for number in range(count):
                pixels = noise.integers(0, 256, (12, 10, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(top / half / kind / f"{number}.png")
    return top


OWN = """
import random, numpy, torch

class Samples:
    classes = 2

    def __len__(self):
        return 50

    def __getitem__(self, index):
        noise = [random.random(), numpy.random.random(), torch.rand(()).item(), index]
        return torch.tensor(noise, dtype=torch.float64).view(1, 2, 2), index % 2

def make(folder):
    return Samples(), Samples()
"""


@pytest.fixture(scope="module")
def sources(folder, tmp_path_factory):
    """One of each kind: in memory, files, a user's."""
    modules = tmp_path_factory.mktemp("modules")
    (modules / "own_samples.py").write_text(OWN)
    sys.path.insert(0, str(modules))
    kinds = {
        "memory": TrainSettings(data="synthetic", synthetic_images=120),
        "files": TrainSettings(data="imagefolder", data_dir=folder, image_size=8),
        "user": TrainSettings(data="own_samples:make"),
    }
    yield {kind: datasets.load(settings, SingleEngine(), print).train for kind, settings in kinds.items()}
    sys.path.remove(str(modules))


def loader(source, workers, rank=0, size=1, augment=True, pin_memory=False, world_batch=16):
    return Loader(
        source,
        seed=1,
        augment=augment,
        rank=rank,
        size=size,
        workers=workers,
        world_batch=world_batch,
        pin_memory=pin_memory,
    )


def same(first, second):
    return (
        torch.equal(first.images, second.images)
        and torch.equal(first.labels, second.labels)
        and (first.world_count, first.position) == (second.world_count, second.position)
    )


def children():
    return [child for child in psutil.Process().children(recursive=True) if child.status() != psutil.STATUS_ZOMBIE]


@pytest.fixture(autouse=True)
def others():
    """What earlier tests left running in this process, such as multiprocessing's own helpers, is none of ours."""
    global _others
    _others = set(children())


def workers_alive():
    return [child for child in children() if child not in _others]


@pytest.mark.parametrize("kind", ["memory", "files", "user"])
def test_workers_change_nothing_also_from_mid_epoch(sources, kind):
    source = sources[kind]
    states = random.getstate(), str(np.random.get_state()), torch.get_rng_state()
    alone = list(loader(source, workers=0).epoch(3))
    assert [batch.position for batch in alone] == [*range(16, len(source), 16), len(source)]
    for first in (0, 32):
        shared = list(loader(source, workers=2).epoch(3, first))
        rest = [batch for batch in alone if batch.position > first]
        assert len(shared) == len(rest)
        assert all(map(same, shared, rest))
    assert not torch.equal(alone[0].images, next(loader(source, workers=0).epoch(4)).images)
    after = random.getstate(), str(np.random.get_state()), torch.get_rng_state()
    assert after[:2] == states[:2]
    assert torch.equal(after[2], states[2]), "dropout goes on as if nothing had been loaded"
    assert workers_alive() == []


@pytest.mark.parametrize("kind", ["memory", "files", "user"])
def test_an_image_is_the_same_on_every_world(sources, kind):
    (whole,) = loader(sources[kind], workers=0, world_batch=1000).epoch(0)
    ranks = [list(loader(sources[kind], workers=0, rank=rank, size=3).epoch(0)) for rank in range(3)]
    begin = 0
    for step in zip(*ranks, strict=True):
        assert len({(batch.world_count, batch.position) for batch in step}) == 1
        assert min(len(batch.labels) for batch in step) >= 2
        for rank, batch in enumerate(step):
            mine = slice(begin + rank, batch.position, 3)
            assert torch.equal(batch.images, whole.images[mine])
            assert torch.equal(batch.labels, whole.labels[mine])
        begin = step[0].position
    assert begin == len(sources[kind])


@pytest.mark.parametrize("workers", [0, 2])
def test_evaluation_gives_every_image_once_as_it_is(sources, workers):
    source = sources["files"]
    images, labels = source.batch(torch.arange(len(source)), None)
    for size in (1, 3):
        for rank in range(size):
            parts = list(loader(source, workers, rank, size).evaluation(batch_size=7))
            assert torch.equal(torch.cat([some for some, _ in parts]), images[rank::size])
            assert torch.equal(torch.cat([some for _, some in parts]), labels[rank::size])
            assert max(len(some) for some, _ in parts) == 7
    assert list(loader(source, workers, rank=len(source), size=len(source) + 1).evaluation(7)) == []


def test_a_rank_may_have_nothing_left_to_do_in_the_last_step_after_a_resume(sources):
    for kind, shape in (("memory", (0, 1, 28, 28)), ("files", (0, 3, 8, 8)), ("user", (0, 1, 2, 2))):
        source = sources[kind]
        (batch,) = loader(source, workers=1, rank=3, size=4).epoch(0, len(source) - 2)
        assert batch.images.shape == shape
        assert (len(batch.labels), batch.world_count, batch.position) == (0, 2, len(source))
        assert list(loader(source, workers=1).epoch(0, len(source))) == []


def test_workers_end_when_the_epoch_is_left_early(sources):
    epoch = loader(sources["files"], workers=2).epoch(0)
    next(epoch)
    assert len(workers_alive()) == 2
    epoch.close()
    assert workers_alive() == []


class Hanging:
    """Gives one batch, then nothing more, as a mount of a server that has gone."""

    in_memory = False

    def __len__(self):
        return 64

    def batch(self, indices, draws):
        if torch.utils.data.get_worker_info().id == 1:
            time.sleep(600)
        return indices, indices


def test_a_worker_that_hangs_ends_with_the_epoch_too():
    epoch = loader(Hanging(), workers=2).epoch(0)
    next(epoch)
    assert len(workers_alive()) == 2
    epoch.close()
    assert workers_alive() == []


@pytest.mark.parametrize("workers", [0, 2])
def test_a_corrupt_file_reaches_the_rank_as_a_sentence(folder, tmp_path, workers, capfd):
    settings = TrainSettings(data="imagefolder", data_dir=folder, image_size=8, cache_dir=tmp_path)
    source = datasets.load(settings, SingleEngine(), print).train
    source.batch(torch.tensor([77]), None)
    (copy,) = tmp_path.rglob("*.png")
    original = folder / copy.relative_to(next(tmp_path.iterdir()))
    copy.write_bytes(copy.read_bytes()[:60])
    with pytest.raises(InputError) as failure:
        list(loader(source, workers).epoch(0))
    assert str(failure.value).startswith(f"{original} is damaged: ")
    assert not copy.exists(), "the original is read next time"
    assert "\n" not in str(failure.value)
    assert capfd.readouterr() == ("", "")
    assert workers_alive() == []


@pytest.mark.filterwarnings("ignore:.*pin_memory", "ignore:.*pickle error")  # there is no GPU; the error says it better
def test_a_data_set_that_cannot_travel_is_an_input_error(sources):
    """A GPU's workers are no copies of the rank, so that the data set is sent to them."""

    class Local:
        in_memory = False

        def __len__(self):
            return 10

    with pytest.raises(InputError, match=r"cannot be sent to another process .* --loader-workers 0"):
        next(loader(Local(), workers=1, pin_memory=True).epoch(0))


def test_as_many_workers_as_help(sources):
    assert default_workers(sources["memory"], "cuda", 16) == 0
    assert default_workers(sources["files"], "cuda", 16) == 8
    assert default_workers(sources["files"], "cuda", 4) == 3
    assert default_workers(sources["files"], "cuda", 1) == 1
    assert default_workers(sources["files"], "cpu", 16) == 1


RANK = """
import signal, sys, time
from pathlib import Path
from hvdkit.runtime.single_engine import SingleEngine
from hvdkit.runtime.stop import StopRequest
from hvdkit.train import datasets
from hvdkit.train.datasets.loader import Loader
from hvdkit.train.settings import TrainSettings

if __name__ == "__main__":
    stop = StopRequest().listen()
    interrupts = []
    signal.signal(signal.SIGINT, lambda *_: interrupts.append(1))
    settings = TrainSettings(data="imagefolder", data_dir=Path(sys.argv[1]), image_size=8)
    source = datasets.load(settings, SingleEngine(), print).train
    loader = Loader(source, seed=1, augment=True, rank=0, size=1, workers=2, world_batch=2,
                    pin_memory=sys.argv[2] == "forkserver")
    epoch = loader.epoch(0)
    next(epoch)
    print("ready", flush=True)
    while not (stop and interrupts):
        time.sleep(0.01)
    print("left", sum(len(batch.labels) for batch in epoch), flush=True)
    epoch = loader.epoch(1)
    next(epoch)
    print("ready", flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("start", ["fork", "forkserver"])
def test_workers_ignore_stop_signals_and_die_with_a_killed_rank(folder, tmp_path, start):
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    rank = subprocess.Popen(
        [sys.executable, "-W", "ignore", str(script), str(folder), start],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=(tmp_path / "stderr").open("w"),
        text=True,
        start_new_session=True,
    )
    below = []
    try:
        assert rank.stdout.readline() == "ready\n"
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            os.killpg(rank.pid, signum)  # as a terminal, mpirun or Kubernetes does: everybody gets it
        assert rank.stdout.readline() == "left 118\n"
        assert rank.stdout.readline() == "ready\n"
        below = psutil.Process(rank.pid).children(recursive=True)
        assert len(below) >= 2
        rank.kill()
        rank.wait()
        deadline = time.monotonic() + SECONDS
        while any(map(lives, below)):
            assert time.monotonic() < deadline, [child for child in below if lives(child)]
            time.sleep(0.05)
        assert (tmp_path / "stderr").read_text() == ""
    finally:
        rank.kill()
        rank.wait()
        rank.stdout.close()
        for child in below:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()


def lives(process):
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
