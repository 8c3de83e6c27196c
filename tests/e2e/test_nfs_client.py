"""The NFS client of the tests against the server of nfs/: if test_k8s_nfs.py is to mean anything, it must be right."""

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_nfs_server import ADDRESS, LIMIT, Server, mount_command, server

__all__ = ["server"]  # the fixture

WRITES = 4_000
# As training does it: a line at a time, and now and then a file that appears whole.
WRITER = f"""
import os, time
with open("log", "ab", buffering=0) as log:
    for number in range({WRITES}):
        log.write(b"%d\\n" % number)
        if number % 500 == 0:
            with open("writing", "wb") as file:
                file.write(number.to_bytes(4, "big") * 500_000)
                os.fsync(file.fileno())
            os.replace("writing", f"checkpoint-{{number}}")
"""


@pytest.fixture
def mounted(server: Server, tmp_path: Path) -> Iterator[Path]:
    """Where the server's folder is mounted with the options of our volume."""
    folder = tmp_path / "mounted"
    folder.mkdir()
    words = [sys.executable, "-m", "nfs_client", f"{ADDRESS}:/data", str(folder), "-o", mount_command().split()[4]]
    subprocess.run(words, check=True, timeout=LIMIT, cwd=Path(__file__).parent)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_what_programs_do_with_files(server: Server, mounted: Path, tmp_path: Path) -> None:
    disk = tmp_path / "volume" / "data"
    content = os.urandom(3_500_000)
    (mounted / "a" / "b").mkdir(parents=True)
    (mounted / "a" / "file").write_bytes(content)
    assert (disk / "a" / "file").read_bytes() == content
    (mounted / "a" / "file").replace(mounted / "a" / "b" / "moved")
    assert (mounted / "a" / "b" / "moved").read_bytes() == content
    with (mounted / "a" / "b" / "moved").open("r+b") as file:
        file.seek(2_000_000)
        assert file.read(10) == content[2_000_000:2_000_010]
        file.truncate(1_000_000)
        file.seek(0, os.SEEK_END)
        file.write(b"end")
        os.fsync(file.fileno())
    assert (disk / "a" / "b" / "moved").read_bytes() == content[:1_000_000] + b"end"
    with (mounted / "log").open("a") as log:
        log.write("one\n")
    with (mounted / "log").open("a") as log:
        log.write("two\n")
    assert (disk / "log").read_text() == "one\ntwo\n"
    (mounted / "log").write_text("short")  # O_TRUNC
    assert (disk / "log").read_text() == "short"

    names = {f"file {number}" for number in range(700)}
    for name in names:
        (mounted / "a" / name).touch()
    assert {file.name for file in (mounted / "a").iterdir()} == names | {"b"}
    (mounted / "link").symlink_to("a/b/moved")
    assert (mounted / "link").stat().st_size == 1_000_003
    (mounted / "second").hardlink_to(mounted / "log")
    assert (mounted / "log").stat().st_nlink == 2
    os.utime(mounted / "log", ns=(1_000_000_001, 2_000_000_002))
    (mounted / "log").chmod(0o600)
    found = (disk / "log").stat()
    assert (found.st_mtime_ns, found.st_mode & 0o777, found.st_uid) == (2_000_000_002, 0o600, 1000)
    assert (mounted / "log").stat().st_mtime_ns == 2_000_000_002
    assert os.statvfs(mounted).f_blocks * os.statvfs(mounted).f_frsize > 100 << 20

    with pytest.raises(FileExistsError):
        (mounted / "log").open("x")
    with pytest.raises(FileNotFoundError):
        (mounted / "nothing").read_text()
    with pytest.raises(OSError) as failure:
        (mounted / "a").rmdir()
    assert failure.value.errno == errno.ENOTEMPTY
    (mounted / "log").unlink()
    assert not (disk / "log").exists() and (mounted / "second").read_text() == "short"


def test_it_waits_for_a_killed_server(server: Server, mounted: Path, tmp_path: Path) -> None:
    disk = tmp_path / "volume" / "data"
    writer = subprocess.Popen([sys.executable, "-c", WRITER], cwd=mounted)
    try:
        deadline = time.monotonic() + LIMIT
        while not (disk / "checkpoint-500").exists():
            assert writer.poll() is None and time.monotonic() < deadline
            time.sleep(0.01)
        server.stop(signal.SIGKILL)
        before = (disk / "log").stat().st_size
        time.sleep(2)
        assert writer.poll() is None and (disk / "log").stat().st_size == before
        server.start()
        assert writer.wait(timeout=LIMIT) == 0
    finally:
        writer.kill()
    assert (disk / "log").read_text() == "".join(f"{number}\n" for number in range(WRITES))
    for number in range(0, WRITES, 500):
        assert (disk / f"checkpoint-{number}").read_bytes() == number.to_bytes(4, "big") * 500_000


def test_a_folder_that_is_not_there_is_an_error(server: Server, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "nfs_client", f"{ADDRESS}:/nothing", str(tmp_path), "-o", "hard,nfsvers=4.1"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT, cwd=Path(__file__).parent)
    assert done.returncode == 32
    assert "error 2" in done.stderr
