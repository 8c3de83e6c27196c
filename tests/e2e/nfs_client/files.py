"""Files of an NFS 4.1 server, each named by its handle.

No file stays open on the server: whoever reads and writes does so under the stateid that means "nobody in particular".
So there is nothing that a restarted server would have to give back.
"""

from typing import Any, NamedTuple

from .session import LARGEST, Operation, Reader, Session, bitmap, longs, numbers, opaque

_CLOSE, _CREATE, _GETATTR, _GETFH, _LINK, _LOOKUP, _OPEN = 4, 6, 9, 10, 11, 15, 18
_PUTFH, _PUTROOTFH, _READ, _READDIR, _READLINK, _REMOVE, _RENAME = 22, 24, 25, 26, 27, 28, 29
_SAVEFH, _SETATTR, _WRITE = 32, 34, 38

_NOBODY = bytes(16)
_JUST_OPENED = numbers(1) + bytes(12)  # the stateid of the operation before
_READ_AND_WRITE, _NO_DELEGATION = 3, 0x400
_FILE_SYNC = 2
_TYPE, _SIZE, _FILE_ID, _MODE, _LINKS, _OWNER, _GROUP, _USED = 1, 4, 20, 33, 35, 36, 37, 45
_READ_AT, _SET_READ_AT, _CHANGED_AT, _WRITTEN_AT, _SET_WRITTEN_AT = 47, 48, 52, 53, 54
_SPACE = (21, 22, 23, 42, 43, 44)  # files available, free and in all, then bytes
_ALL = {_TYPE, _SIZE, _FILE_ID, _MODE, _LINKS, _OWNER, _GROUP, _USED, _READ_AT, _CHANGED_AT, _WRITTEN_AT}
_FOLDER, _SYMBOLIC_LINK = 2, 5

User = tuple[int, int]
Time = tuple[int, int]  # seconds, nanoseconds


class Attributes(NamedTuple):
    """What the server knows of a file; kind: 1 a file, 2 a folder, 5 a symbolic link."""

    kind: int
    size: int
    number: int
    mode: int
    links: int
    owner: int
    group: int
    used: int
    read_at: Time
    changed_at: Time
    written_at: Time


Found = tuple[bytes, Attributes]


class Files:
    """What can be done with files."""

    def __init__(self, session: Session, path: str) -> None:
        """NfsError when the server exports no such folder."""
        self._session = session
        steps = [Operation(_LOOKUP, opaque(part.encode())) for part in path.split("/") if part]
        self.root = session.call((0, 0), Operation(_PUTROOTFH), *steps, *_found())[-2]

    def lookup(self, user: User, folder: bytes, name: bytes) -> Found:
        return self._ask(user, folder, Operation(_LOOKUP, opaque(name)), *_found())[-2:]

    def attributes(self, user: User, handle: bytes) -> Attributes:
        return self._ask(user, handle, _attributes())[-1]

    def change(
        self,
        user: User,
        handle: bytes,
        *,
        size: int | None = None,
        mode: int | None = None,
        read_at: Time | None = None,
        written_at: Time | None = None,
    ) -> Attributes:
        """Set what is not None."""
        values: dict[int, bytes] = {}
        if size is not None:
            values[_SIZE] = longs(size)
        if mode is not None:
            values[_MODE] = numbers(mode)
        if read_at is not None:
            values[_SET_READ_AT] = numbers(1) + longs(read_at[0]) + numbers(read_at[1])
        if written_at is not None:
            values[_SET_WRITTEN_AT] = numbers(1) + longs(written_at[0]) + numbers(written_at[1])
        step = Operation(_SETATTR, _NOBODY + _values(values), Reader.bits)
        return self._ask(user, handle, step, _attributes(), kept=True)[-1]

    def read(self, user: User, handle: bytes, offset: int, size: int) -> memoryview:
        """Less than asked for at the end of the file only."""
        parts = []
        while size:
            wanted = _NOBODY + longs(offset) + numbers(min(size, LARGEST))
            end, data = self._ask(user, handle, Operation(_READ, wanted, _read_data))[-1]
            parts.append(data)
            offset, size = offset + len(data), size - len(data)
            if end or not data:
                break
        return parts[0] if len(parts) == 1 else memoryview(b"".join(parts))

    def write(self, user: User, handle: bytes, offset: int, data: memoryview) -> int:
        """Returns once it is on the server's disk: nothing is lost with the server's memory."""
        done = 0
        while done < len(data):
            part = data[done : done + LARGEST]
            words = _NOBODY + longs(offset + done) + numbers(_FILE_SYNC) + opaque(part)
            done += self._ask(user, handle, Operation(_WRITE, words, _read_written), kept=True)[-1]
        return done

    def create(self, user: User, folder: bytes, name: bytes, mode: int, *, new: bool) -> Found:
        """A file, which must not be there before if it is to be new."""
        share = numbers(0, _READ_AND_WRITE | _NO_DELEGATION, 0) + longs(0) + opaque(b"creates")
        how = numbers(1, int(new)) + _values({_MODE: numbers(mode)}) + numbers(0) + opaque(name)
        close = Operation(_CLOSE, numbers(0) + _JUST_OPENED, lambda answer: answer.fixed(16))
        steps = (Operation(_OPEN, share + how, _read_opened), *_found(), close)
        return self._ask(user, folder, *steps, kept=True)[-3:-1]

    def create_folder(self, user: User, folder: bytes, name: bytes, mode: int) -> Found:
        return self._create(user, folder, name, numbers(_FOLDER), mode)

    def create_symbolic_link(self, user: User, folder: bytes, name: bytes, target: bytes) -> Found:
        return self._create(user, folder, name, numbers(_SYMBOLIC_LINK) + opaque(target), 0o777)

    def link(self, user: User, handle: bytes, folder: bytes, name: bytes) -> Attributes:
        steps = (Operation(_SAVEFH), _at(folder), Operation(_LINK, opaque(name), _read_change))
        self._ask(user, handle, *steps, kept=True)
        return self.attributes(user, handle)

    def remove(self, user: User, folder: bytes, name: bytes) -> None:
        self._ask(user, folder, Operation(_REMOVE, opaque(name), _read_change), kept=True)

    def rename(self, user: User, folder: bytes, name: bytes, new_folder: bytes, new_name: bytes) -> None:
        step = Operation(_RENAME, opaque(name) + opaque(new_name), lambda answer: answer.take("IQQIQQ"))
        self._ask(user, folder, Operation(_SAVEFH), _at(new_folder), step, kept=True)

    def target(self, user: User, handle: bytes) -> bytes:
        """Of a symbolic link."""
        return self._ask(user, handle, Operation(_READLINK, b"", lambda answer: bytes(answer.opaque())))[-1]

    def names(self, user: User, folder: bytes) -> list[tuple[bytes, int, int]]:
        """Name, number and kind of what is in a folder."""
        found: list[tuple[bytes, int, int]] = []
        cookie, verifier, end = 0, bytes(8), False
        while not end:
            words = longs(cookie) + verifier + numbers(8192, 65536) + bitmap({_TYPE, _FILE_ID})
            verifier, more, cookie, end = self._ask(user, folder, Operation(_READDIR, words, _read_names))[-1]
            found += more
        return found

    def space(self, user: User, handle: bytes) -> dict[str, int]:
        """How many files and bytes the server has and could have."""
        names = ("files_available", "files_free", "files", "available", "free", "total")
        step = Operation(_GETATTR, bitmap(set(_SPACE)), lambda answer: (answer.bits(), answer.opaque()))
        present, values = self._ask(user, handle, step)[-1]
        values = Reader(values)
        return {name: values.take("Q")[0] for name, bit in zip(names, _SPACE, strict=True) if bit in present}

    def _create(self, user: User, folder: bytes, name: bytes, kind: bytes, mode: int) -> Found:
        words = kind + opaque(name) + _values({_MODE: numbers(mode)})
        step = Operation(_CREATE, words, lambda answer: (_read_change(answer), answer.bits()))
        return self._ask(user, folder, step, *_found(), kept=True)[-2:]

    def _ask(self, user: User, handle: bytes, *steps: Operation, kept: bool = False) -> list[Any]:
        return self._session.call(user, _at(handle), *steps, kept=kept)


def _at(handle: bytes) -> Operation:
    return Operation(_PUTFH, opaque(handle))


def _found() -> tuple[Operation, Operation]:
    return Operation(_GETFH, b"", lambda answer: bytes(answer.opaque())), _attributes()


def _attributes() -> Operation:
    return Operation(_GETATTR, bitmap(_ALL), _read_attributes)


def _values(values: dict[int, bytes]) -> bytes:
    return bitmap(set(values)) + opaque(b"".join(values[bit] for bit in sorted(values)))


def _read_attributes(answer: Reader) -> Attributes:
    missing = _ALL - answer.bits()
    assert not missing, f"the server does not tell the attributes {missing}"
    values = Reader(answer.opaque())
    kind, size, number, mode, links = values.take("IQQII")
    owner, group = (_user_number(values.opaque()) for _ in range(2))
    (used,) = values.take("Q")
    times = [values.take("qI") for _ in range(3)]
    return Attributes(kind, size, number, mode, links, owner, group, used, *times)


def _user_number(name: memoryview) -> int:
    return int(bytes(name)) if bytes(name).isdigit() else 65534


def _read_change(answer: Reader) -> None:
    answer.take("IQQ")


def _read_data(answer: Reader) -> tuple[int, memoryview]:
    return answer.number(), answer.opaque()


def _read_written(answer: Reader) -> int:
    count, how = answer.take("2I")
    answer.fixed(8)
    assert how == _FILE_SYNC
    return count


def _read_opened(answer: Reader) -> None:
    answer.fixed(16)
    _read_change(answer)
    answer.number()
    answer.bits()
    delegation = answer.number()
    assert delegation in (0, 3), "a delegation that nobody asked for"
    if delegation == 3 and answer.number() in (1, 2):  # why there is none; two reasons come with a promise
        answer.number()


def _read_names(answer: Reader) -> tuple[bytes, list[tuple[bytes, int, int]], int, int]:
    verifier, found, cookie = bytes(answer.fixed(8)), [], 0
    while answer.number():
        (cookie,) = answer.take("Q")
        name = bytes(answer.opaque())
        answer.bits()
        kind, number = Reader(answer.opaque()).take("IQ")
        found.append((name, number, kind))
    return verifier, found, cookie, answer.number()
