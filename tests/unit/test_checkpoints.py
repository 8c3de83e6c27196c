"""Checkpoint files: what comes back, what a kill or a full disk leaves, and that damage is never loaded."""

import errno
import io
import multiprocessing
import os
import random
import resource
import subprocess
import sys
import threading
import time
from collections import OrderedDict, namedtuple
from contextlib import contextmanager

import numpy as np
import pytest
import torch
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from hvdkit.errors import InputError
from hvdkit.train import checkpoints
from hvdkit.train.background import BackgroundSaver, Snapshot
from hvdkit.train.checkpoints import CheckpointFolder, load

DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex128, torch.bool),
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
]
ROUNDS = [random.Random(seed) for seed in range(8)]  # kills


def state_of(step, numbers=64):
    """A state in which every value follows from the step."""
    return {"step": step, "weights": torch.full((numbers,), float(step)), "more": [torch.arange(numbers) * step, "é"]}


def assert_is_state_of(step, state):
    expected = state_of(step, len(state["weights"]))
    assert state["step"] == step
    assert torch.equal(state["weights"], expected["weights"])
    assert torch.equal(state["more"][0], expected["more"][0])


def no_problem(sentence):
    pytest.fail(f"nothing was to be reported, but: {sentence}")


def steps(folder):
    return sorted(int(path.name[5:13]) for path in folder.glob("step-*.pt"))


def temporaries(folder):
    return [path for path in folder.iterdir() if path.name.endswith(".tmp")]


@pytest.fixture
def folder(tmp_path):
    made = CheckpointFolder(tmp_path / "checkpoints", warn=no_problem)
    made.prepare()
    return made


# What comes back


def tensors():
    random_numbers = torch.Generator().manual_seed(1)
    for dtype in DTYPES:
        yield torch.randint(0, 100, (3, 5), generator=random_numbers).to(dtype)
    image = torch.randn(2, 3, 4, 5, generator=random_numbers)
    yield image.to(memory_format=torch.channels_last)
    yield image.permute(3, 1, 0, 2)
    yield image[:, 1:, ::2]
    yield image[0, 0, 0, :1].expand(7)
    yield torch.tensor(float("-inf"))
    yield torch.tensor(3)
    yield torch.empty(0, 4)
    yield torch.nn.Parameter(image)


def assert_same(got, expected):
    assert got.dtype == expected.dtype
    assert got.stride() == expected.stride()
    assert torch.equal(got, expected)
    assert type(got) is torch.Tensor
    assert not got.requires_grad


@pytest.mark.parametrize("background", [False, True])
def test_every_kind_of_value_comes_back(folder, background):
    values = [0, -1, 2**200, -(2**200), 1.5, float("inf"), "", "日本\n", True, False, None, (0.9, (0.999,)), [], {}]
    state = {"tensors": list(tensors()), "values": values, "keys": {1: "a", None: "b", 0.5: "c"}, "": OrderedDict(a=1)}
    if background:
        saver = BackgroundSaver(folder, no_problem)
        saver.save(7, state)
        saver.close()
        path = saver.saved_path
    else:
        path = folder.save(7, state)
    assert torch.load(path, weights_only=True)["step"] == 7
    loaded = load(path)
    assert (loaded.path, loaded.step) == (path, 7)
    for got, expected in zip(loaded.state["tensors"], state["tensors"], strict=True):
        assert_same(got, expected.detach())
    assert loaded.state["values"] == values
    assert [type(value) for value in loaded.state["values"]] == [type(value) for value in values]
    assert loaded.state["keys"] == state["keys"]
    assert loaded.state[""] == {"a": 1}


_leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
_states = st.recursive(
    _leaves,
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner) | st.tuples(inner, inner),
)


@settings(deadline=None, max_examples=60)
@given(value=_states)
def test_any_nesting_comes_back(tmp_path_factory, value):
    saved = CheckpointFolder(tmp_path_factory.getbasetemp(), keep=1).save(1, {"value": value})
    assert load(saved).state == {"value": value}


def test_model_and_optimizer_go_on_from_a_checkpoint(folder):
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4)).to(memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(model.parameters())

    def step():
        optimizer.zero_grad()
        model(torch.ones(2, 3, 8, 8)).square().sum().backward()
        optimizer.step()

    step()
    folder.save(1, {"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    step()
    expected = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    saved = folder.newest_whole(no_problem).state
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    step()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("background", [False, True])
def test_tensors_that_share_memory_still_do(folder, background):
    large = torch.arange(1_000_000)
    state = {"middle": large[15:25], "left": large[10:30], "right": large[20:40], "tied": large[20:40]}
    if background:
        state["bits"] = large[10:30].view(torch.float64)  # torch.save itself refuses two types in one storage
        saver = BackgroundSaver(folder, no_problem)
        saver.save(1, state)
        saver.close()
    else:
        folder.save(1, state)
    loaded = folder.newest_whole(no_problem)
    for name, tensor in state.items():
        assert_same(loaded.state[name], tensor)
    loaded.state["left"][13] = -1
    assert loaded.state["middle"][8] == loaded.state["right"][3] == loaded.state["tied"][3] == -1
    if background:
        assert loaded.path.stat().st_size < 20_000, "a view of a large tensor costs only what is seen of it"


def test_views_that_negate_what_they_share_come_back():
    numbers = torch.tensor([1 + 2j, 3 - 4j])
    views = {"conjugate": numbers.conj(), "imaginary": numbers.conj().imag, "plain": numbers}  # one memory, lazy signs
    copies = Snapshot().take(views)
    assert all(torch.equal(copies[name], view) for name, view in views.items())


Pair = namedtuple("Pair", "first second")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (np.ones(2), "state['a'][1]['b'] is a numpy.ndarray"),
        (np.float64(1), "state['a'][1]['b'] is a numpy.float64"),
        (b"bytes", "builtins.bytes"),
        ({1, 2}, "builtins.set"),
        (torch.Size([2]), "torch.Size"),
        (torch.float32, "torch.dtype"),
        (Pair(1, 2), "Pair"),
        (torch.eye(2).to_sparse(), "state['a'][1]['b'] is a tensor that is sparse"),
        (torch.empty(2, device="meta"), "without data"),
        ({(1, 2): 3}, "state['a'][1]['b'] has the key (1, 2)"),
        (2**2039, "2040 bits"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_could_not_be_loaded_is_refused_at_saving(folder, value, said):
    state = {"a": [1, {"b": value}]}
    for save in (folder.save, BackgroundSaver(folder, no_problem).save):
        with pytest.raises(TypeError) as refusal:
            save(1, state)
        assert said in str(refusal.value)
    assert list(folder.folder.iterdir()) == []


def test_the_largest_int_comes_back(folder):
    state = {"largest": 2**2039 - 1, "smallest": 1 - 2**2039}
    assert load(folder.save(1, state)).state == state


# Damage


def damaged(content, chance):
    """The bytes cut short, or with one of them changed."""
    if chance.random() < 0.5:
        return content[: chance.randrange(len(content))]
    position = chance.randrange(len(content))
    return content[:position] + bytes([content[position] ^ chance.randrange(1, 256)]) + content[position + 1 :]


def test_damage_is_reported_and_the_checkpoint_before_is_taken(folder):
    chance = random.Random(20)
    for step in (1, 2):
        newest = folder.save(step, state_of(step, 1000))
    content = newest.read_bytes()
    opened_by_torch = 0
    for _ in range(60):
        newest.write_bytes(damaged(content, chance))
        said = []
        loaded = folder.newest_whole(said.append)
        assert_is_state_of(1, loaded.state)
        assert len(said) == 1
        assert str(newest) in said[0]
        assert "cut short or altered" in said[0]
        with pytest.raises(InputError, match="cut short or altered"):
            load(newest)
        try:
            torch.load(newest, weights_only=True)
            opened_by_torch += 1
        except Exception:
            pass
    assert opened_by_torch > 0, "torch alone would have noticed them all: the cases are too easy"
    newest.write_bytes(content)
    assert_is_state_of(2, folder.newest_whole(no_problem).state)


def test_nothing_whole_is_an_error_and_nothing_at_all_is_not(folder, tmp_path):
    assert folder.newest_whole(no_problem) is None
    assert CheckpointFolder(tmp_path / "never made").newest_whole(no_problem) is None
    for step in (1, 2):
        folder.save(step, state_of(step)).write_bytes(b"")
    said = []
    with pytest.raises(InputError) as failure:
        folder.newest_whole(said.append)
    assert "none of the 2 checkpoints" in str(failure.value)
    assert "delete them" in str(failure.value)
    assert len(said) == 2


def digest_named(path, content):
    named = path / f"step-00000009.{xxhash.xxh3_128_hexdigest(content)}.pt"
    named.write_bytes(content)
    return named


def saved_by_torch(value):
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def test_a_file_that_is_whole_but_no_checkpoint_is_refused(folder):
    for content, said in [
        (b"text", "torch can open"),
        (b"", "torch can open"),
        (saved_by_torch([1]), "not a checkpoint of this version"),
        (saved_by_torch({"version": 99, "step": 9, "state": {}}), "not a checkpoint of this version"),
        (saved_by_torch({"model": Pair(1, 2)}), "torch can open"),
    ]:
        with pytest.raises(InputError) as failure:
            load(digest_named(folder.folder, content))
        assert said in str(failure.value)
        assert "\n" not in str(failure.value)


def test_a_renamed_checkpoint_is_refused(folder):
    path = folder.save(5, state_of(5))
    nameless = path.rename(folder.folder / "step-00000005.pt")
    with pytest.raises(InputError, match="step-00000120"):
        load(nameless)
    said = []
    with pytest.raises(InputError, match="none of the 1"):
        folder.newest_whole(said.append)
    assert str(nameless) in said[0]
    other_step = nameless.rename(path.with_name(path.name.replace("00000005", "00000006")))
    with pytest.raises(InputError, match="it holds step 5"):
        load(other_step)
    with pytest.raises(InputError, match="No such file"):
        load(path)


# Which ones stay


def test_the_newest_stay(folder):
    for step in (1, 30, 99_999_999, 100_000_000, 100_000_001):  # the last ones have more digits
        folder.save(step, state_of(step))
    assert folder.steps() == [100_000_001, 100_000_000, 99_999_999]
    assert_is_state_of(100_000_001, folder.newest_whole(no_problem).state)
    assert not (folder.folder / checkpoints.SUPERSEDED).exists()


def test_the_same_step_again_replaces(folder):
    first = folder.save(1, {"a": 1})
    second = folder.save(1, {"a": 2})
    assert not first.exists()
    assert folder.save(1, {"a": 2}) == second, "the same content has the same name"
    assert load(second).state == {"a": 2}


def test_of_two_files_of_one_step_the_later_one_is_taken(folder, tmp_path):
    first = folder.save(1, {"a": 1})
    aside = first.rename(tmp_path / first.name)
    folder.save(1, {"a": 2})
    aside.rename(first)
    os.utime(first, (time.time() - 60, time.time() - 60))
    assert folder.newest_whole(no_problem).state == {"a": 2}


def test_a_training_that_begins_anew_does_not_mix_with_the_one_before(folder):
    for step in (10, 20, 30):
        folder.save(step, {"line": "first", "step": step})
    folder.save(10, {"line": "second", "step": 10})
    assert folder.newest_whole(no_problem).state == {"line": "second", "step": 10}
    aside = CheckpointFolder(folder.folder / checkpoints.SUPERSEDED)
    assert steps(aside.folder) == [20, 30]
    assert aside.newest_whole(no_problem).state == {"line": "first", "step": 30}
    for line in range(3):
        folder.save(15, {"line": line})
        folder.save(5, {"line": line})
    assert steps(aside.folder) == [15, 20, 30], "the longest trained stay, and no more than keep"


def test_a_damaged_one_does_not_take_the_place_of_a_whole_one(tmp_path):
    folder = CheckpointFolder(tmp_path, keep=2, warn=no_problem)
    folder.save(10, state_of(10))
    broken = folder.save(20, state_of(20))
    broken.write_bytes(b"")
    assert folder.newest_whole(lambda sentence: None).step == 10
    folder.save(25, state_of(25))
    assert steps(tmp_path) == [10, 25]


def test_what_cannot_be_removed_is_a_warning(tmp_path):
    said = []
    folder = CheckpointFolder(tmp_path, keep=1, warn=said.append)
    name = "step-00000001." + "0" * 32 + ".pt"
    (tmp_path / name).mkdir()  # unlink() of a folder fails, for root too
    path = folder.save(2, state_of(2))
    assert len(said) == 1
    assert name in said[0]
    assert_is_state_of(2, load(path).state)


# The folder


@contextmanager
def not_root():
    """File permissions do not hold for root."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o555)
    for folder in (tmp_path / "file", tmp_path / "file" / "below", closed):
        with not_root(), pytest.raises(InputError) as failure:
            CheckpointFolder(folder).prepare()
        assert "--output" in str(failure.value)
        assert str(folder) in str(failure.value)
    with pytest.raises(InputError, match="--resume"):
        CheckpointFolder(tmp_path / "file").newest_whole(no_problem)


def test_left_over_temporary_files_go_and_those_of_live_writers_stay(folder):
    ended = subprocess.Popen(["true"])
    ended.wait()
    host = checkpoints.socket.gethostname()
    writers = [(host, ended.pid), (host, os.getpid()), (host, os.getppid()), ("other-host", 1), ("another", 1)]
    left = [folder.folder / f".writing-{name}-{pid}-0123abcd.tmp" for name, pid in writers]
    for path in left:
        path.touch()
    dead, namesake, parent, other_dead, other_alive = left
    long_ago = time.time() - 2 * checkpoints.ABANDONED_SECONDS
    os.utime(other_dead, (long_ago, long_ago))
    user_file = folder.folder / "notes.tmp"
    user_file.touch()
    folder.prepare()
    assert sorted(folder.folder.iterdir()) == sorted([parent, other_alive, user_file])
    for path in (dead, namesake):
        path.touch()
    folder.save(1, {})
    assert sorted(temporaries(folder.folder)) == sorted([parent, other_alive, user_file])


# Kills and a full disk


def save_forever(path, first_step, done):
    """The body of a process that is killed."""
    torch.set_num_threads(1)
    folder = CheckpointFolder(path)
    for step in range(first_step, first_step + 100_000):
        folder.save(step, state_of(step, 500_000))
        done.send(step)


def test_a_kill_at_any_moment_leaves_a_whole_checkpoint(folder):
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "hvdkit.train.checkpoints"])
    step = left_overs = 0
    for number, chance in enumerate(ROUNDS):
        heard, tell = context.Pipe(duplex=False)
        process = context.Process(target=save_forever, args=(folder.folder, step + 1, tell))
        process.start()
        tell.close()
        acknowledged = heard.recv()
        if number % 2:
            time.sleep(chance.random() * 0.3)
        else:
            deadline = time.monotonic() + 60
            while not temporaries(folder.folder) and time.monotonic() < deadline:
                pass  # until it is in the middle of writing
        process.kill()
        process.join()
        with pytest.raises(EOFError):
            while True:
                acknowledged = heard.recv()
        left_overs += len(temporaries(folder.folder))
        folder.prepare()
        assert temporaries(folder.folder) == []
        loaded = folder.newest_whole(no_problem)
        assert loaded.step >= acknowledged, "a save that had returned is lost"
        assert_is_state_of(loaded.step, loaded.state)
        step = loaded.step
    assert left_overs > 0, "no kill hit a save: the test shows nothing"


@contextmanager
def file_size_limit(limit):
    """The kernel refuses larger files, as it does on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("limit", [0, 1000, 3_000_000])
def test_a_save_that_fails_is_one_warning_and_the_older_checkpoint_stays(folder, limit):
    said = []
    saver = BackgroundSaver(folder, said.append)
    saver.save(1, state_of(1, 500_000))
    saver.wait()
    saved_at = saver.saved_at
    with file_size_limit(limit):
        saver.save(2, state_of(2, 500_000))
        saver.wait()
        with pytest.raises(OSError) as failure:
            folder.save(2, state_of(2, 500_000))
    assert failure.value.errno == errno.EFBIG
    assert said == [f"the checkpoint of step 2 was not saved in {folder.folder}: File too large."]
    assert (saver.failures, saver.saved_step, saver.saved_at) == (1, 1, saved_at)
    assert temporaries(folder.folder) == []
    assert_is_state_of(1, folder.newest_whole(no_problem).state)
    saver.save(3, state_of(3, 500_000))
    saver.close()
    assert (saver.failures, saver.saved_step, len(said)) == (1, 3, 1)
    assert saver.saved_at > saved_at
    assert_is_state_of(3, folder.newest_whole(no_problem).state)


def test_a_folder_that_has_gone_is_a_warning(folder):
    said = []
    saver = BackgroundSaver(folder, said.append)
    folder.folder.rmdir()
    for step in (1, 2):
        saver.save(step, state_of(step))
        saver.wait()
    assert len(said) == saver.failures == 2
    assert "No such file or directory" in said[0]
    assert saver.saved_step is None
    assert not folder.folder.exists(), "made anew, it could lie under a mount point whose server is away"


# The background


class GatedFolder(CheckpointFolder):
    """Writes only when told, and keeps what it saw."""

    def __init__(self, path):
        super().__init__(path, warn=no_problem)
        self.prepare()
        self.gate = threading.Event()
        self.begun: list[int] = []

    def save(self, step, state):
        self.begun.append(step)
        assert self.gate.wait(60)
        return super().save(step, state)


def test_what_is_saved_is_the_state_at_the_call(tmp_path):
    folder = GatedFolder(tmp_path)
    saver = BackgroundSaver(folder, no_problem)
    model = torch.nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = model.weight.detach().clone()
    saver.save(1, {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "list": (numbers := [1])})
    with torch.no_grad():
        model.weight.zero_()
    optimizer.param_groups[0]["lr"] = 0.5
    numbers.append(2)
    assert saver.saved_step is None
    folder.gate.set()
    saver.close()
    state = folder.newest_whole(no_problem).state
    assert torch.equal(state["model"]["weight"], before)
    assert state["optimizer"]["param_groups"][0]["lr"] == 0.1
    assert state["list"] == [1]


def test_a_second_save_waits_for_the_first(tmp_path):
    folder = GatedFolder(tmp_path)
    saver = BackgroundSaver(folder, no_problem)
    saver.save(1, state_of(1))
    second = threading.Thread(target=saver.save, args=(2, state_of(2)))
    second.start()
    second.join(0.2)
    assert second.is_alive()
    assert folder.begun == [1]
    folder.gate.set()
    second.join(60)
    saver.close()
    assert steps(tmp_path) == [1, 2]
    assert_is_state_of(1, load(folder._checkpoints()[1].path).state)


def test_the_memory_of_the_copy_is_used_again():
    snapshot = Snapshot()
    live = list(tensors())

    def addresses():
        return [tensor.data_ptr() for tensor in snapshot.take({"all": live})["all"]]

    first = addresses()
    assert addresses() == first
    assert not set(first) & {tensor.data_ptr() for tensor in live if tensor.numel()}
    live[3] = torch.ones(100)  # a state may grow: momentum appears with the first step
    live.append(torch.ones(3))
    copies = snapshot.take({"all": live})["all"]
    for copy, tensor in zip(copies, live, strict=True):
        assert_same(copy, tensor.detach())
    assert copies[0].data_ptr() == first[0]


EXIT_WITHOUT_CLOSE = """
import sys, torch
from pathlib import Path
from hvdkit.train.background import BackgroundSaver
from hvdkit.train.checkpoints import CheckpointFolder
folder = CheckpointFolder(Path(sys.argv[1]))
BackgroundSaver(folder, print).save(1, {"a": torch.ones(10_000_000)})
assert not list(folder.folder.glob("step-*")), "already written: the test shows nothing"
"""


def test_a_save_is_not_lost_when_the_interpreter_ends(folder):
    subprocess.run([sys.executable, "-c", EXIT_WITHOUT_CLOSE, folder.folder], check=True)
    assert folder.newest_whole(no_problem).state["a"].sum() == 10_000_000


def test_torch_is_left_as_it_was(folder):
    if not hasattr(torch.serialization, "get_crc32_options"):
        pytest.skip("this torch has no such option")
    assert torch.serialization.get_crc32_options()
    folder.save(1, state_of(1))
    assert torch.serialization.get_crc32_options()
