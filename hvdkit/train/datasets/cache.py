"""Copies of data files on a local disk (`--cache-dir`), and the lock that lets one process of a node make them.

A copy appears under its name only when it is whole, so whatever is there can be used.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from io import FileIO
from pathlib import Path

from hvdkit.errors import EnvironmentProblem, InputError


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file while others of this node wait; the kernel frees it when its holder dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path)) from None
        yield


def make_once(target: Path, whole: Callable[[], bool], make: Callable[[Path], Path]) -> None:
    """Let one process of the node make the folder `target`, unless it is `whole` by then.

    `make` works in an empty folder and returns what is to be renamed to `target`.
    """
    with locked(target.parent / f".{target.name}.lock"):
        if whole():
            return
        partial = target.parent / f".{target.name}.partial"
        shutil.rmtree(partial, ignore_errors=True)  # what a killed process has left: nobody else has the lock
        partial.mkdir()
        try:
            made = make(partial)
            shutil.rmtree(target, ignore_errors=True)
            made.rename(target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def place(origin: Path, cache_dir: Path) -> Path:
    """Where under `cache_dir` the copy of this file or folder belongs: never that of another one's."""
    path = origin.resolve()
    return cache_dir / f"{path.name}-{hashlib.sha256(os.fsencode(path)).hexdigest()[:12]}"


def copy_files(files: list[Path], folder: Path, target: Path) -> None:
    """Copy these files of `folder` to the same places below `target`, once per node.

    A copy is taken again when its original has another size or time of change.
    """
    with locked(target.parent / f".{target.name}.lock"):
        for original in files:
            copy = target / original.relative_to(folder)
            found = original.stat()
            if copy.exists() and (copy.stat().st_size, copy.stat().st_mtime_ns) == (found.st_size, found.st_mtime_ns):
                continue
            copy.parent.mkdir(parents=True, exist_ok=True)
            partial = copy.with_name(f".{copy.name}.partial")
            shutil.copy2(original, partial)
            if partial.stat().st_size != found.st_size:
                raise InputError(f"{original} changed while it was copied to {target}; start again when it is whole.")
            partial.rename(copy)


def prepare(target: Path) -> None:
    """Find out before training whether copies can be made there."""
    try:
        target.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=target):
            pass
    except OSError as error:
        raise unwritable(target, error) from None


def read_through(original: str, copy: str) -> bytes:
    """The content of a file from its copy, which is made on the first read.

    Without a lock, since there may be millions of files and hardly ever two readers of one. A later change of the
    original goes unnoticed: looking for it would be the very access that the copy is to save.
    """
    try:
        return read(copy)
    except FileNotFoundError:
        content = read(original)
        keep(content, copy)
        return content


def keep(content: bytes, copy: str) -> None:
    """Write a copy, which appears when it is whole."""
    try:
        folder = Path(copy).parent
        folder.mkdir(parents=True, exist_ok=True)
        descriptor, partial = tempfile.mkstemp(prefix=".partial-", dir=folder)
        with FileIO(descriptor, "w") as file:
            written = file.write(content)
        if written != len(content):
            raise OSError(0, "the disk took only a part")
        Path(partial).rename(copy)
    except OSError as error:
        raise unwritable(Path(copy).parent, error) from None


def read(path: str) -> bytes:
    """All of a file, with as little around it as Python allows: small images are read by the ten thousand."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(descriptor).st_size
        content = os.read(descriptor, size)
        while len(content) < size and (more := os.read(descriptor, size - len(content))):
            content += more  # a network file system may give less at once
        return content
    finally:
        os.close(descriptor)


def unwritable(folder: Path, error: OSError) -> EnvironmentProblem:
    """The error for a local disk that takes no copies."""
    return EnvironmentProblem(
        f"{folder} cannot be written ({error.strerror}); free some space there or name another --cache-dir."
    )
