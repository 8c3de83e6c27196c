"""The wheel cache and the programs of a build: whole or not at all, one at a time, nothing left behind."""

import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from test_horovod_wheel import make_target, write_torch

from hvdkit.errors import EnvironmentProblem
from hvdkit.horovod_wheel import builder, cache, changes, commands, target, tools
from hvdkit.horovod_wheel.progress import Progress

# A builder that takes as long as we like, for the lock and the signals; the real one runs in `make demo`.
SLOW_BUILD = """
import os, sys
from pathlib import Path
from hvdkit.horovod_wheel import builder, cache, commands

class Target:
    key, cuda = "key", None

def slow(target, folder, progress, verbose):
    with open(os.environ["BUILDS"], "a") as file:
        file.write("built\\n")
    (folder / "half").write_text("half a wheel")
    log = commands.Log(cache.root() / "key.log")
    show = lambda line: print(line, end="", flush=True)
    if "GATE" in os.environ:
        commands.run(["sh", "-c", "echo started; cat $GATE"], log=log, on_line=show)
    else:
        commands.run([sys.executable, "-c", os.environ["LIKE_NINJA"]], log=log, on_line=show)
    wheel = folder / "horovod.whl"
    wheel.write_text("wheel")
    return cache.store("key", wheel, log.path, {})

builder._build = slow
entry, cached = builder.build(Target())
print("cached" if cached else "fresh", entry.wheel.read_text(), flush=True)
"""

# Ninja and mpirun run their programs in process groups of their own.
LIKE_NINJA = """
import os, signal, subprocess
child = subprocess.Popen(["sleep", "600"], preexec_fn=os.setpgrp)
print(child.pid, flush=True)
child.wait()
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("HVDKIT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("BUILDS", str(tmp_path / "builds"))
    return tmp_path / "cache/horovod"


def store(tmp_path: Path, content: bytes = b"wheel") -> cache.Entry:
    cache.root().mkdir(parents=True, exist_ok=True)
    (tmp_path / "horovod-1.whl").write_bytes(content)
    (tmp_path / "log").write_text("log")
    return cache.store("key", tmp_path / "horovod-1.whl", tmp_path / "log", {"seconds": 1})


@pytest.fixture
def start_slow_build():
    """Starts slow builds, and sees to it that a failing test leaves none behind."""
    started = []

    def start(**env: str) -> subprocess.Popen:
        command = [sys.executable, "-c", SLOW_BUILD]
        env = os.environ | {"LIKE_NINJA": LIKE_NINJA} | env
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=env))
        return started[-1]

    yield start
    for build in started:
        build.terminate()
        build.communicate()


def test_a_stored_wheel_is_found(tmp_path):
    said = []
    assert cache.look_up("key", said.append) is None
    entry = store(tmp_path)
    assert cache.look_up("key", said.append) == entry
    assert said == []


def test_a_second_store_replaces_the_first(tmp_path, own_cache):
    store(tmp_path)
    store(tmp_path, b"better")
    assert cache.look_up("key", print).wheel.read_bytes() == b"better"
    assert [path.name for path in own_cache.iterdir()] == ["key"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "horovod-1.whl").write_bytes(b"whee"),
        lambda folder: (folder / "horovod-1.whl").unlink(),
        lambda folder: (folder / "build.json").unlink(),
        lambda folder: (folder / "build.json").write_text("{"),
        lambda folder: (folder / "build.json").write_text("[]"),
        lambda folder: (folder / "build.json").write_text(json.dumps({"version": 99})),
    ],
)
def test_a_damaged_wheel_is_said_and_does_not_count(tmp_path, own_cache, damage):
    store(tmp_path)
    damage(own_cache / "key")
    said = []
    assert cache.look_up("key", said.append) is None
    assert len(said) == 1 and "damaged" in said[0] and str(own_cache / "key") in said[0]


def test_cache_folder_comes_from_the_environment(monkeypatch, tmp_path):
    monkeypatch.delenv("HVDKIT_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.root() == tmp_path / "hvdkit/horovod"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.root() == tmp_path / ".cache/hvdkit/horovod"


def test_an_unwritable_cache_is_one_sentence(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    for place in ("/sys/hvdkit", str(tmp_path / "file")):  # a filesystem that takes no folders, also from root
        monkeypatch.setenv("HVDKIT_CACHE_DIR", place)
        with (
            pytest.raises(EnvironmentProblem, match=r"cannot be used.*HVDKIT_CACHE_DIR"),
            cache.locked("key", print),
        ):
            raise AssertionError("the lock was taken")


def test_a_cache_below_a_folder_that_is_closed_to_us_is_one_sentence(tmp_path):
    """Root enters every folder, so another user looks."""
    closed = tmp_path / "closed"
    (closed / "horovod/key").mkdir(parents=True)
    closed.chmod(0)
    script = (
        "import os\nfrom hvdkit.horovod_wheel import cache\n"
        "if os.getuid() == 0:\n    os.setgroups([])\n    os.setgid(65534)\n    os.setuid(65534)\n"
        "print(cache.look_up('key', print))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"HVDKIT_CACHE_DIR": str(closed)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    closed.chmod(0o700)
    if sys.version_info >= (3, 14):  # where such a folder is not there; taking the lock says why
        assert done.stdout == "None\n"
        return
    last = done.stderr.splitlines()[-1]
    assert "EnvironmentProblem" in last and str(closed) in last and "cannot be used (Permission denied)" in last


def test_a_disk_that_fills_up_leaves_no_wheel(tmp_path, own_cache):
    """A real write error: files may not grow beyond 100 bytes."""
    script = (
        "import resource, sys\nfrom pathlib import Path\nfrom hvdkit.horovod_wheel import cache\n"
        "with cache.locked('key', print) as folder, cache.explained_errors():\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n"
        "    cache.store('key', Path(sys.argv[1]), Path(sys.argv[1]), {})\n"
    )
    (tmp_path / "big.whl").write_bytes(bytes(1000))
    done = subprocess.run(
        [sys.executable, "-c", script, tmp_path / "big.whl"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "EnvironmentProblem" in done.stderr.splitlines()[-1] and "is full" in done.stderr.splitlines()[-1]
    assert cache.look_up("key", print) is None
    assert not (own_cache / "key").exists() and not (own_cache / "key.building").exists()


def test_too_little_space_is_said_before_the_build(monkeypatch, tmp_path):
    usage = builder.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(builder.shutil, "disk_usage", lambda _: usage._replace(free=1 << 20))
    with pytest.raises(EnvironmentProblem, match=r"needs 1.0 GiB.*0.0 GiB free.*HVDKIT_CACHE_DIR"):
        builder._require_space(tmp_path, 1 << 30)


def test_temporary_files_fill_the_disk_that_the_way_out_names(monkeypatch, tmp_path, own_cache):
    """What pip and the compiler put aside lies below the cache, so that another cache helps."""
    full = "import errno, os, tempfile\nprint('wrote to', tempfile.gettempdir())\n"
    full += "raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))\n"
    pip = []

    def source(folder: Path, env: dict[str, str], log: commands.Log) -> Path:
        folder.mkdir()
        (folder / "setup.py").write_text(full)
        return folder

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(builder, "_require_space", lambda folder, needed: None)
    monkeypatch.setattr(tools, "run", lambda command, *, log, env: pip.append(env["TMPDIR"]) or 0)
    monkeypatch.setattr(tools, "fetch_source", source)
    monkeypatch.setattr(changes, "apply", lambda folder: None)
    torch = write_torch(tmp_path / "site", "") / "torch"
    (torch / "utils").mkdir()
    (torch / "utils/cpp_extension.py").write_text("")
    wanted = make_target(torch=target.Torch(version="9", build="b", cuda=None, folder=torch))
    with pytest.raises(EnvironmentProblem, match=r"filled up while compiling: set HVDKIT_CACHE_DIR to a folder"):
        builder.build(wanted)
    place = own_cache / f"{wanted.key}.building/tmp"
    assert pip == [str(place)] and f"wrote to {place}\n" in (own_cache / f"{wanted.key}.log").read_text()
    assert not place.exists()


def test_a_disk_that_pip_filled_is_named(own_cache):
    own_cache.mkdir(parents=True)
    log = commands.Log(own_cache / "log")
    log.write("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device\n")
    with pytest.raises(EnvironmentProblem, match=r"filled up while pip fetched the build tools: set HVDKIT_CACHE_DIR"):
        raise tools._fetch_failed("the build tools", log)


def test_two_builds_at_once_are_one_build(tmp_path, start_slow_build):
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    first = start_slow_build(GATE=str(gate))
    assert first.stdout.readline() == "started\n"
    second = start_slow_build(GATE=str(gate))
    assert f"process {first.pid}): waiting" in second.stderr.readline()
    gate.write_text("go\n")
    assert first.communicate()[0].endswith("fresh wheel\n")
    assert second.communicate()[0] == "cached wheel\n"
    assert (tmp_path / "builds").read_text() == "built\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_stopped_build_leaves_nothing(own_cache, number, start_slow_build):
    build = start_slow_build()
    sleeper = int(build.stdout.readline())
    build.send_signal(number)
    build.communicate()
    assert build.returncode != 0
    assert not is_running(sleeper)
    assert not (own_cache / "key.building").exists() and not (own_cache / "key").exists()


def test_a_killed_build_does_not_block_the_next(own_cache, start_slow_build):
    build = start_slow_build()
    sleeper = int(build.stdout.readline())
    build.kill()
    build.communicate()
    os.kill(sleeper, signal.SIGKILL)  # kill -9 gives nobody the time to end it
    assert (own_cache / "key.building/half").exists()
    with cache.locked("key", pytest.fail) as folder:
        assert list(folder.iterdir()) == []


def test_the_lock_is_free_after_an_error(own_cache):
    with pytest.raises(ValueError, match="broken"), cache.locked("key", print):
        raise ValueError("broken")
    with (own_cache / "key.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_running(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def test_a_command_that_takes_too_long_is_ended_with_its_children(tmp_path, monkeypatch):
    monkeypatch.setattr(commands, "GRACE_SECONDS", 0.5)  # it ignores SIGTERM
    log = commands.Log(tmp_path / "log")
    pids = []
    with pytest.raises(TimeoutError):
        command = [sys.executable, "-c", "import signal; signal.signal(15, signal.SIG_IGN)" + LIKE_NINJA]
        commands.run(command, log=log, timeout=2, on_line=lambda line: pids.append(int(line)))
    assert len(pids) == 1 and not is_running(pids[0])


def test_a_child_left_behind_does_not_hold_the_build_up(tmp_path):
    log = commands.Log(tmp_path / "log")
    lines = []
    assert commands.run(["bash", "-c", "sleep 600 & echo $!; printf end; exit 7"], log=log, on_line=lines.append) == 7
    assert lines[1] == "end\n" and not is_running(int(lines[0]))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "a.h:1:2: warning: x [-Wsign-compare]\nb.cc:10:3: error: no member 'y'\nb.cc:11:1: error: later\n",
            "b.cc:10:3: error: no member 'y'",
        ),
        ("In file\nx.h:5:10: fatal error: mpi.h: No such file\n", "x.h:5:10: fatal error: mpi.h: No such file"),
        ("kernels.cu(12): error: identifier undefined\n", "kernels.cu(12): error: identifier undefined"),
        (
            "-- ok\nCMake Error at CMakeLists.txt:5 (find_package):\n  Could NOT find MPI\n\nCall Stack\n",
            "CMake Error at CMakeLists.txt:5 (find_package): Could NOT find MPI Call Stack",
        ),
        ("/usr/bin/ld: cannot find -lmpi\n", "/usr/bin/ld: cannot find -lmpi"),
        ("all well\n", None),
    ],
)
def test_the_first_error_of_a_log_is_found(tmp_path, text, expected):
    log = commands.Log(tmp_path / "log")
    log.write(text)
    assert log.first_error() == expected


def test_progress_is_plain_lines_without_a_terminal(tmp_path):
    with (tmp_path / "out").open("w+") as stream:
        with Progress(stream=stream) as progress:
            progress.step("compiling")
            progress.count(31, 64)
            assert progress.line() == "compiling 31 of 64 files"
            progress._step_started -= 130
            assert progress.line() == "compiling 31 of 64 files, 2:10"
        stream.seek(0)
        assert stream.read() == "compiling\n"  # the count would follow ten seconds later
