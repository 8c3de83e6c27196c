"""The wheel cache: a wheel is there whole, with a record of what it is for, or it is not there."""

import errno
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hvdkit.errors import EnvironmentProblem

RECORD = "build.json"
RECORD_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A wheel in the cache."""

    wheel: Path
    record: dict


def root() -> Path:
    """The folder of all wheels: under $HVDKIT_CACHE_DIR, $XDG_CACHE_HOME/hvdkit or ~/.cache/hvdkit."""
    if own := os.environ.get("HVDKIT_CACHE_DIR"):
        return Path(own).expanduser().absolute() / "horovod"
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser().absolute() / "hvdkit/horovod"


def look_up(key: str, say: Callable[[str], None]) -> Entry | None:
    """The wheel of this key, checked against its hash; a damaged one is said and does not count."""
    folder = root() / key
    with explained_errors():  # below a folder that we may not enter, the question itself is refused
        if not folder.is_dir():
            return None
    try:
        record = json.loads((folder / RECORD).read_text())
        wheel = folder / record["wheel"]
        if record["version"] == RECORD_VERSION and _sha256(wheel) == record["sha256"]:
            return Entry(wheel=wheel, record=record)
        reason = "its hash is not the recorded one"
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = str(error) or type(error).__name__
    say(f"the cached wheel in {folder} is damaged ({reason}): building it again")
    return None


def store(key: str, wheel: Path, log: Path, facts: dict) -> Entry:
    """Make a finished wheel visible under its key, in one step, in place of an older one."""
    folder = root() / key
    fresh = root() / f"{key}.fresh"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    shutil.copyfile(wheel, fresh / wheel.name)
    shutil.copyfile(log, fresh / "build.log")
    record = {"version": RECORD_VERSION, "wheel": wheel.name, "sha256": _sha256(wheel), **facts}
    (fresh / RECORD).write_text(json.dumps(record, indent=2) + "\n")
    old = root() / f"{key}.old"
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)  # a folder cannot replace one that is not empty
    fresh.rename(folder)
    shutil.rmtree(old, ignore_errors=True)
    return Entry(wheel=folder / wheel.name, record=record)


@contextmanager
def locked(key: str, say: Callable[[str], None]) -> Iterator[Path]:
    """One build of a key at a time; the others wait here. Gives an empty folder to build in, gone afterwards."""
    with explained_errors():
        root().mkdir(parents=True, exist_ok=True)
        lock = (root() / f"{key}.lock").open("a+")
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            owner = lock.read().strip() or "unknown"
            say(f"another build of this wheel is running (process {owner}): waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        building = root() / f"{key}.building"
        with explained_errors():
            lock.truncate(0)
            lock.write(str(os.getpid()))
            lock.flush()
            shutil.rmtree(building, ignore_errors=True)  # what a killed build left: we hold the lock now
            building.mkdir()
        try:
            yield building
        finally:
            shutil.rmtree(building, ignore_errors=True)


@contextmanager
def explained_errors() -> Iterator[None]:
    """A cache that cannot be used, as one sentence."""
    try:
        yield
    except OSError as error:
        where = f"the cache folder {root()}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            problem = f"{where} is full ({error.strerror})"
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST):
            problem = f"{where} cannot be used ({error.strerror})"
        else:
            raise
        raise EnvironmentProblem(f"{problem}: set HVDKIT_CACHE_DIR to a folder of yours with room") from error


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
