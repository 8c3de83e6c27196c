"""Checkpoint files: written whole or not at all, checked before they are used.

A checkpoint is one file that `torch.load(path, weights_only=True)` opens, named after its step and its content:
`step-00000120.<the file's XXH3 hash, 128 bits in hex>.pt`. One rename makes data and checksum appear together,
so a kill at any moment leaves either the whole checkpoint or none.
"""

from __future__ import annotations

import errno
import io
import os
import re
import secrets
import socket
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
import xxhash  # finds cut and flipped bytes as sha256 does, and took half of a save's processor time away

from hvdkit.errors import InputError

VERSION = 1
SUPERSEDED = "superseded"  # folder inside the folder, see CheckpointFolder.save
ABANDONED_SECONDS = 900  # a temporary file that nobody wrote to for so long belongs to a dead writer
SLICE = 1 << 20  # bytes hashed and then written while they are still in the processor's cache

_DIGITS = 32
_NAME = re.compile(rf"step-(\d{{8,}})\.([0-9a-f]{{{_DIGITS}}})\.pt")
_TEMPORARY = re.compile(r"\.writing-(.+)-(\d+)-[0-9a-f]{8}\.tmp")
_PLAIN = (int, float, str, bool, type(None))
_LARGEST_INT_BITS = 2040  # torch's weights_only reader knows no longer ones


@dataclass(frozen=True)
class Loaded:
    """A checkpoint that was whole."""

    path: Path
    step: int
    state: dict[str, Any]


class CheckpointFolder:
    """The checkpoints of one run, of which the newest `keep` stay. One process writes, any may read."""

    def __init__(self, folder: Path, keep: int = 3, warn: Callable[[str], None] = warnings.warn) -> None:
        self.folder = folder
        self.keep = keep
        self._warn = warn
        self._not_whole: set[Path] = set()

    def prepare(self) -> None:
        """Create the folder and show that a checkpoint can be written to it, before any training."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            probe = self._temporary_path()
            with probe.open("wb") as file:
                file.write(b"hvdkit")
                _flush_to_disk(file)
            self._remove_left_overs(probe)
            probe.unlink()
        except OSError as error:
            raise InputError(
                f"--output: checkpoints cannot be written to {self.folder}: {error.strerror}; name another folder."
            ) from None

    def save(self, step: int, state: dict[str, Any]) -> Path:
        """Write a checkpoint; when this returns it is on the disk, and older ones beyond `keep` are gone.

        Checkpoints of later steps come from a training that this one does not continue: it began anew or from an
        older checkpoint. They would win the next resume, so they move to the folder `superseded`.
        """
        content = {"version": VERSION, "step": step, "state": plain(state)}
        temporary = self._temporary_path()
        try:
            with temporary.open("wb") as file:
                hashing = _HashingFile(file)
                with _without_crc32():
                    torch.save(content, hashing)
                hashing.raise_failure()
                _flush_to_disk(file)
            path = self.folder / f"step-{step:08d}.{hashing.digest()}.pt"
            temporary.replace(path)
        except BaseException:
            with suppress(OSError):  # the first failure is the one to report
                temporary.unlink()
            raise
        _flush_names(self.folder)
        self._tidy(step, path)
        return path

    def steps(self) -> list[int]:
        """The steps that the folder has checkpoints of, whole or not, newest first."""
        return [checkpoint.step for checkpoint in self._checkpoints()]

    def newest_whole(self, say: Callable[[str], None]) -> Loaded | None:
        """The newest checkpoint that is whole, or None when there is none at all; `say` hears of each one skipped."""
        try:
            checkpoints = self._checkpoints()
            strangers = [path for path in self.folder.glob("step-*.pt") if not _NAME.fullmatch(path.name)]
        except OSError as error:
            raise InputError(f"--resume: the folder {self.folder} cannot be read: {error.strerror}.") from None
        for path in strangers:
            say(f"skipped a checkpoint: {_nameless(path)}")
        for checkpoint in checkpoints:
            try:
                return load(checkpoint.path)
            except InputError as problem:
                say(f"skipped a checkpoint: {problem}")
                self._not_whole.add(checkpoint.path)
        if not checkpoints and not strangers:
            return None
        # Starting anew without a word would lose what the user believes to be saved.
        raise InputError(
            f"--resume: none of the {len(checkpoints) + len(strangers)} checkpoints in {self.folder} is whole; "
            "delete them to start anew, or choose another --output."
        )

    def _checkpoints(self) -> list[_Checkpoint]:
        """Those in the folder, newest first."""
        found = []
        for path in _names(self.folder):
            if name := _NAME.fullmatch(path.name):
                try:
                    written_at = path.stat().st_mtime_ns
                except FileNotFoundError:  # removed since the folder was listed
                    continue
                except OSError:  # it exists, so it counts; reading it will tell what is wrong
                    written_at = 0
                found.append(_Checkpoint(int(name[1]), written_at, path))
        return sorted(found, reverse=True)

    def _tidy(self, step: int, written: Path) -> None:
        """Keep `written` and the `keep - 1` before it. A failure here costs space, not the checkpoint."""
        try:
            others = [checkpoint for checkpoint in self._checkpoints() if checkpoint.path != written]
            aside = [one for one in others if one.step > step or one.path in self._not_whole]
            same = [one for one in others if one.step == step and one not in aside]
            earlier = [one for one in others if one.step < step and one not in aside]
            self._set_aside(aside)
            self._remove(one.path for one in (*same, *earlier[max(self.keep - 1, 0) :]))
            self._remove_left_overs(written)
        except OSError as error:
            self._warn(f"the old checkpoints in {self.folder} could not be tidied up: {error.strerror}.")

    def _set_aside(self, checkpoints: list[_Checkpoint]) -> None:
        folder = self.folder / SUPERSEDED
        for checkpoint in checkpoints:
            folder.mkdir(exist_ok=True)
            checkpoint.path.replace(folder / checkpoint.path.name)
        if checkpoints:
            # Bounded: a job that begins anew over and over must not fill the disk.
            self._remove(one.path for one in CheckpointFolder(folder)._checkpoints()[self.keep :])

    def _remove(self, paths: Iterable[Path]) -> None:
        for path in paths:
            try:
                path.unlink(missing_ok=True)
            except OSError as error:  # NFS: a stale handle, an answer that did not come
                self._warn(f"{path} is no longer needed and could not be removed: {error.strerror}.")

    def _temporary_path(self) -> Path:
        return self.folder / f".writing-{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}.tmp"

    def _remove_left_overs(self, fresh: Path) -> None:
        """Remove the temporary files of dead writers. `fresh` was just written: its time is the file server's now."""
        now = fresh.stat().st_mtime
        for path in _names(self.folder):
            if path == fresh or (name := _TEMPORARY.fullmatch(path.name)) is None:
                continue
            with suppress(FileNotFoundError):
                ended_here = name[1] == socket.gethostname() and not _runs(int(name[2]))
                if ended_here or now - path.stat().st_mtime > ABANDONED_SECONDS:
                    self._remove([path])


class _Checkpoint(NamedTuple):
    step: int
    written_at: int  # tells two of one step apart: a kill can come before the older one is removed
    path: Path


def load(path: Path) -> Loaded:
    """One checkpoint; an InputError says what is wrong with it."""
    name = _NAME.fullmatch(path.name)
    if name is None:
        raise InputError(_nameless(path))
    try:
        # Read once: what was checked is what is used.
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from None
    digest = xxhash.xxh3_128_hexdigest(data)
    if digest != name[2]:
        raise InputError(
            f"{path} is cut short or altered: its {len(data):,} bytes have the checksum {digest}, not that in its name."
        )
    try:
        content = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:
        # Whole, but not ours; torch raises many types here.
        first_line = str(error).partition("\n")[0]
        raise InputError(f"{path} is not a checkpoint that torch can open: {first_line}") from None
    if not isinstance(content, dict) or content.get("version") != VERSION:
        raise InputError(f"{path} is not a checkpoint of this version of hvdkit.")
    if content["step"] != int(name[1]):
        raise InputError(f"{path} was renamed: it holds step {content['step']}.")
    return Loaded(path, content["step"], content["state"])


def plain(
    value: Any, tensor: Callable[[torch.Tensor], torch.Tensor] = torch.Tensor.detach, where: str = "state"
) -> Any:
    """A copy of nested dicts, lists and tuples with `tensor` applied to each tensor; TypeError for anything else.

    Exact types only: a subclass, such as numpy's float64, is pickled as itself and then refused at loading.
    """
    kind = type(value)
    if kind in (torch.Tensor, torch.nn.Parameter):
        if value.layout is not torch.strided or value.is_quantized or value.device.type == "meta":
            raise TypeError(f"{where} is a tensor that is sparse, quantized or without data; a checkpoint holds none.")
        return tensor(value.detach().resolve_conj().resolve_neg())
    if kind in (dict, OrderedDict):
        return {_key(key, where): plain(item, tensor, f"{where}[{key!r}]") for key, item in value.items()}
    if kind in (list, tuple):
        return kind(plain(item, tensor, f"{where}[{index}]") for index, item in enumerate(value))
    if kind not in _PLAIN:
        raise TypeError(
            f"{where} is a {kind.__module__}.{kind.__qualname__}; a checkpoint holds dicts, lists and tuples of "
            "tensors, int, float, str, bool and None."
        )
    if kind is int and value.bit_length() >= _LARGEST_INT_BITS:
        raise TypeError(f"{where} is an int of {value.bit_length()} bits; a checkpoint holds at most 2039.")
    return value


def _key(key: Any, where: str) -> Any:
    if type(key) not in _PLAIN:
        raise TypeError(f"{where} has the key {key!r}; keys in a checkpoint are int, float, str, bool or None.")
    return key


class _HashingFile:
    """What torch.save writes to: hashes on the way, and keeps the first failure.

    torch answers an exception from write() with one of its own about positions in the file. So after a failure
    everything is accepted and dropped, and raise_failure() tells the truth.
    """

    def __init__(self, file: io.BufferedWriter) -> None:
        self._file = file
        self._hash = xxhash.xxh3_128()
        self._failure: OSError | None = None

    def write(self, data: bytes | memoryview) -> int:
        view = memoryview(data).cast("B")
        if self._failure is None:
            try:
                for begin in range(0, len(view), SLICE):
                    part = view[begin : begin + SLICE]
                    self._hash.update(part)
                    self._file.write(part)
            except OSError as failure:
                self._failure = failure
        return len(view)

    def flush(self) -> None:
        """torch calls this at the end; the caller flushes and syncs."""

    def raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def digest(self) -> str:
        return self._hash.hexdigest()


@contextmanager
def _without_crc32() -> Iterator[None]:
    """torch's own checksums would take a sixth of a save, and torch.load does not look at them; ours covers all."""
    options = torch.serialization
    if not hasattr(options, "set_crc32_options"):  # an older torch
        yield
        return
    before = options.get_crc32_options()
    options.set_crc32_options(False)
    try:
        yield
    finally:
        options.set_crc32_options(before)


def _flush_to_disk(file: io.BufferedWriter) -> None:
    file.flush()
    os.fsync(file.fileno())


def _flush_names(folder: Path) -> None:
    """Make a rename durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems cannot, and keep their names durable by themselves.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            raise
    finally:
        os.close(descriptor)


def _names(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except FileNotFoundError:
        return []


def _nameless(path: Path) -> str:
    return f"{path} has no checksum in its name, which must be as it was saved: step-00000120.<32 hex digits>.pt."


def _runs(pid: int) -> bool:
    """Whether another process of this machine has this id. Our own is a dead namesake's: a container that starts
    again has the same host name and often the same ids."""
    if pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True
