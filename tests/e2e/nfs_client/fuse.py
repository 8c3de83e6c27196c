"""Files of an NFS server for this machine's kernel, over the protocol of /dev/fuse."""

import errno
import os
import stat
import struct
import time
from collections.abc import Callable
from typing import NamedTuple

from .files import Attributes, Files, User
from .session import LARGEST, NfsError

_ROOT = 1  # the kernel's number of the folder that is mounted
_SECONDS_KNOWN = 1  # how long the kernel believes names and attributes without asking
_VERSION = (7, 31)
_ASYNC_READ, _BIG_WRITES, _AUTO_INVAL_DATA, _MAX_PAGES = 1 << 0, 1 << 5, 1 << 12, 1 << 22
_FORGET, _INIT, _INTERRUPT, _BATCH_FORGET = 2, 26, 36, 42
_KINDS = {1: stat.S_IFREG, 2: stat.S_IFDIR, 3: stat.S_IFBLK, 4: stat.S_IFCHR, 5: stat.S_IFLNK, 6: stat.S_IFSOCK}
_HEADER = struct.Struct("<IIQQIIII")
# Bits of what is to be set on a file.
_MODE, _SIZE, _READ_AT, _WRITTEN_AT, _READ_NOW, _WRITTEN_NOW = 1 << 0, 1 << 3, 1 << 4, 1 << 5, 1 << 7, 1 << 8
# Numbers below 100 mean what they mean on UNIX, but for these.
_ERRORS = {63: errno.ENAMETOOLONG, 66: errno.ENOTEMPTY, 69: errno.EDQUOT, 70: errno.ESTALE}
_ERRORS |= {10001: errno.ESTALE, 10004: errno.EOPNOTSUPP, 10029: errno.EINVAL, 10040: errno.EINVAL}


class Request(NamedTuple):
    """What the kernel asks, of which of its numbers, on behalf of whom."""

    node: int
    user: User
    body: memoryview

    def take(self, form: str) -> tuple[int, ...]:
        return struct.unpack_from(f"<{form}", self.body)

    def names(self, after: int = 0) -> list[bytes]:
        """Names at the end, each followed by a zero."""
        return bytes(self.body[after:]).split(b"\0")[:-1]


class FileSystem:
    """Answers the kernel, one request after the other."""

    def __init__(self, files: Files) -> None:
        self.files = files
        self._handles = {_ROOT: files.root}
        self._nodes = {files.root: _ROOT}
        self._lookups: dict[int, int] = {}
        self._next = _ROOT + 1
        self._listings: dict[int, list[tuple[bytes, int, int]]] = {}
        self._opened = 0
        self._answers: dict[int, Callable[[Request], bytes]] = {
            1: self.lookup,
            3: lambda request: _attributes_out(files.attributes(request.user, self._handle(request))),
            4: self.change,
            5: lambda request: files.target(request.user, self._handle(request)),
            6: self.create_symbolic_link,
            9: self.create_folder,
            10: self.remove,
            11: self.remove,
            12: self.rename,
            13: self.link,
            14: self.open,
            15: self.read,
            16: self.write,
            17: self.space,
            18: lambda _request: b"",  # the last close
            20: lambda _request: b"",  # fsync: every write is on the server's disk when it returns
            _INIT: self.begin,
            27: self.open_folder,
            28: self.list,
            29: self.close_folder,
            30: lambda _request: b"",  # fsync of a folder: a server changes names at once and for good
            35: self.create,
        }

    def serve(self, device: int) -> None:
        """Until it is unmounted."""
        buffer = bytearray(LARGEST + (1 << 16))
        while True:
            try:
                size = os.readv(device, [buffer])
            except OSError as error:
                if error.errno == errno.ENODEV:
                    return
                if error.errno in (errno.EINTR, errno.EAGAIN, errno.ENOENT):
                    continue
                raise
            _, number, unique, node, uid, gid, _, _ = _HEADER.unpack_from(buffer)
            request = Request(node, (uid, gid), memoryview(buffer)[_HEADER.size : size])
            if number in (_FORGET, _BATCH_FORGET, _INTERRUPT):  # these want no answer
                self.forget(number, request)
                continue
            code, answer = self.answer(number, request)
            try:
                os.writev(device, [struct.pack("<IiQ", 16 + len(answer), -code, unique), answer])
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ENODEV):  # whoever asked is gone
                    raise

    def answer(self, number: int, request: Request) -> tuple[int, bytes]:
        if number not in self._answers:
            return errno.ENOSYS, b""  # the kernel does without, and never asks again
        try:
            return 0, self._answers[number](request)
        except NfsError as error:
            return _ERRORS.get(error.status, error.status if error.status < 100 else errno.EIO), b""

    def begin(self, request: Request) -> bytes:
        major, _, read_ahead, offered = request.take("4I")
        assert major == _VERSION[0]
        wanted = offered & (_ASYNC_READ | _BIG_WRITES | _AUTO_INVAL_DATA | _MAX_PAGES)
        pages = LARGEST // 4096
        return struct.pack("<4I2H2I2H2I24x", *_VERSION, read_ahead, wanted, 16, 12, LARGEST, 1, pages, 0, 0, 0)

    def forget(self, number: int, request: Request) -> None:
        if number == _FORGET:
            self._forget(request.node, *request.take("Q"))
        elif number == _BATCH_FORGET:
            (count,) = request.take("I")
            for index in range(count):
                self._forget(*struct.unpack_from("<QQ", request.body, 8 + 16 * index))

    def lookup(self, request: Request) -> bytes:
        (name,) = request.names()
        return self._entry(*self.files.lookup(request.user, self._handle(request), name))

    def change(self, request: Request) -> bytes:
        wanted, _, _, size, _, read_at, written_at, _, read_ns, written_ns, _, mode = request.take("IIQQQQQQIIII")
        now = divmod(time.time_ns(), 10**9)
        values: dict[str, object] = {}
        if wanted & _SIZE:
            values["size"] = size
        if wanted & _MODE:
            values["mode"] = mode & 0o7777
        if wanted & _READ_AT:
            values["read_at"] = now if wanted & _READ_NOW else (read_at, read_ns)
        if wanted & _WRITTEN_AT:
            values["written_at"] = now if wanted & _WRITTEN_NOW else (written_at, written_ns)
        # An owner is not passed on: our server gives every file to one user.
        handle = self._handle(request)
        if not values:
            return _attributes_out(self.files.attributes(request.user, handle))
        return _attributes_out(self.files.change(request.user, handle, **values))

    def create(self, request: Request) -> bytes:
        flags, mode = request.take("2I")
        (name,) = request.names(after=16)
        new = bool(flags & os.O_EXCL)
        found = self.files.create(request.user, self._handle(request), name, mode & 0o7777, new=new)
        return self._entry(*found) + self.open(request)

    def create_folder(self, request: Request) -> bytes:
        (mode,) = request.take("I")
        (name,) = request.names(after=8)
        return self._entry(*self.files.create_folder(request.user, self._handle(request), name, mode & 0o7777))

    def create_symbolic_link(self, request: Request) -> bytes:
        name, target = request.names()
        return self._entry(*self.files.create_symbolic_link(request.user, self._handle(request), name, target))

    def link(self, request: Request) -> bytes:
        handle = self._handles[request.take("Q")[0]]
        (name,) = request.names(after=8)
        return self._entry(handle, self.files.link(request.user, handle, self._handle(request), name))

    def remove(self, request: Request) -> bytes:
        (name,) = request.names()
        self.files.remove(request.user, self._handle(request), name)
        return b""

    def rename(self, request: Request) -> bytes:
        old, new = request.names(after=8)
        folder = self._handles[request.take("Q")[0]]
        self.files.rename(request.user, self._handle(request), old, folder, new)
        return b""

    def open(self, _request: Request) -> bytes:
        """Without a promise that what the kernel has in its memory is still right."""
        return struct.pack("<QII", 0, 0, 0)

    def read(self, request: Request) -> bytes:
        _, offset, size = request.take("QQI")
        return self.files.read(request.user, self._handle(request), offset, size)

    def write(self, request: Request) -> bytes:
        _, offset, size = request.take("QQI")
        count = self.files.write(request.user, self._handle(request), offset, request.body[40 : 40 + size])
        return struct.pack("<II", count, 0)

    def open_folder(self, _request: Request) -> bytes:
        self._opened += 1
        return struct.pack("<QII", self._opened, 0, 0)

    def list(self, request: Request) -> bytes:
        """As much of a folder as fits, beginning at an offset, which here is a place in the list."""
        opened, offset, size = request.take("QQI")
        if offset == 0:
            own = [(b".", request.node, 2), (b"..", request.node, 2)]
            self._listings[opened] = own + self.files.names(request.user, self._handle(request))
        entries: list[bytes] = []
        for place, (name, number, kind) in enumerate(self._listings[opened][offset:], offset + 1):
            entry = struct.pack("<QQII", number, place, len(name), _KINDS.get(kind, 0) >> 12) + name
            entry += bytes(-len(entry) % 8)
            size -= len(entry)
            if size < 0:
                break
            entries.append(entry)
        return b"".join(entries)

    def close_folder(self, request: Request) -> bytes:
        self._listings.pop(request.take("Q")[0], None)
        return b""

    def space(self, request: Request) -> bytes:
        found = self.files.space(request.user, self._handle(request))
        blocks = (found["total"] >> 12, found["free"] >> 12, found["available"] >> 12)
        return struct.pack("<5Q4I24x", *blocks, found["files"], found["files_free"], 4096, 255, 4096, 0)

    def _handle(self, request: Request) -> bytes:
        return self._handles[request.node]

    def _entry(self, handle: bytes, attributes: Attributes) -> bytes:
        """A name's file, which the kernel may ask for by its number until it forgets it."""
        if handle not in self._nodes:
            self._nodes[handle], self._handles[self._next] = self._next, handle
            self._next += 1
        node = self._nodes[handle]
        self._lookups[node] = self._lookups.get(node, 0) + 1
        return struct.pack("<QQQQII", node, 0, _SECONDS_KNOWN, _SECONDS_KNOWN, 0, 0) + _attributes(attributes)

    def _forget(self, node: int, count: int) -> None:
        if node == _ROOT:
            return
        self._lookups[node] = self._lookups.get(node, 0) - count
        if self._lookups[node] <= 0:
            del self._lookups[node]
            self._nodes.pop(self._handles.pop(node, b""), None)


def _attributes_out(found: Attributes) -> bytes:
    return struct.pack("<QII", _SECONDS_KNOWN, 0, 0) + _attributes(found)


def _attributes(found: Attributes) -> bytes:
    times = (found.read_at, found.written_at, found.changed_at)
    return struct.pack(
        "<6Q10I",
        *(found.number, found.size, -(-found.used // 512), *(seconds for seconds, _ in times)),
        *(nanoseconds for _, nanoseconds in times),
        *(_KINDS.get(found.kind, 0) | found.mode, found.links, found.owner, found.group, 0, LARGEST, 0),
    )
