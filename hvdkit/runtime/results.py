"""Results through the log: what a rank found out comes back from any pod without a shared volume.

A line is `HVDKIT_RESULT v1 <kind> <number>/<lines> <checksum of all> <checksum of the line> <part>.`, and the parts
together are the base64 of compressed JSON.
"""

import base64
import hashlib
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

MARK = "HVDKIT_RESULT v"
VERSION = 1
PART = 3_400  # characters: with its head and a launcher's prefix a line stays below 4,096 bytes, which a pipe
# takes in one piece, and far below the 16 KiB at which containerd cuts lines

_KIND = re.compile(r"[a-z][a-z0-9-]{0,31}")
# The full stop tells where the part ends, whatever another rank appended to the line.
_LINE = re.compile(r"(\d+) (([a-z][a-z0-9-]*) (\d{1,6})/(\d{1,6}) ([0-9a-f]{16})) ([0-9a-f]{8}) ([A-Za-z0-9+/=]+)\.")
# mpirun -tag-output and horovodrun put this before each piece of output that they happen to read.
_TAG = re.compile(
    r"(?:[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4})?((?:\[\d+(?:,\d+)?\])?<std(?:out|err)>:)"
)


@dataclass(frozen=True, kw_only=True)
class Result:
    """What arrived: a payload, or a problem."""

    kind: str
    """As it was emitted; 'unknown' when nothing of it can be read."""

    payload: dict[str, Any] | None = None
    problem: str | None = None
    """Why there is no payload: lines that were lost or altered."""


def emit(kind: str, payload: Mapping[str, Any], write: Callable[[str], None]) -> None:
    """Write the payload as lines, each of which goes to `write` without its newline.

    Let one rank write at a time where you can: a stock mpirun without -tag-output mixes ranks within a line.
    """
    if not _KIND.fullmatch(kind):
        raise ValueError(f"the kind of a result is a short word of a-z, 0-9 and -, not {kind!r}")
    data = zlib.compress(json.dumps(payload, default=str, separators=(",", ":")).encode(), 9)
    text = base64.b64encode(data).decode()
    parts = [text[start : start + PART] for start in range(0, len(text), PART)]
    for number, part in enumerate(parts, 1):
        head = f"{kind} {number}/{len(parts)} {_checksum_of_all(kind, data)}"
        write(f"{MARK}{VERSION} {head} {_checksum_of_line(head, part)} {part}.")


def collect(lines: str | Iterable[str]) -> list[Result]:
    """Every result in a log, in the order of their first lines, whatever else is in it.

    A result that was logged twice is one result; one that is not whole is there with its problem. Only a result
    of which no line arrived cannot be seen here: whoever knows how many there should be counts them.
    """
    found: dict[tuple[str, int, str], dict[int, str]] = {}
    unreadable: list[str] = []
    for line in _untangle(lines.splitlines() if isinstance(lines, str) else lines):
        for piece in line.split(MARK)[1:]:
            match = _LINE.match(piece)
            if match is None:
                unreadable.append("a line of it is damaged")
                continue
            version, head, kind, number, total, checksum, line_checksum, part = match.groups()
            if int(version) != VERSION:
                unreadable.append(f"its format has version {version}, and this hvdkit reads {VERSION}")
                continue
            parts = found.setdefault((kind, int(total), checksum), {})
            if _checksum_of_line(head, part) == line_checksum:
                parts[int(number)] = part
    results = [_assemble(kind, total, checksum, parts) for (kind, total, checksum), parts in found.items()]
    return results + [Result(kind="unknown", problem=problem) for problem in unreadable]


def _untangle(lines: Iterable[str]) -> Iterator[str]:
    """The lines as the ranks wrote them.

    A tagged piece need not begin or end with a line, and pieces of other ranks come between: each tag is a
    stream of its own, and a newline belongs to the last piece before it.
    """
    unfinished: dict[str, str] = {}
    for line in lines:
        before, *tagged = _TAG.split(line.rstrip("\r\n"))
        yield before
        for tag, piece in zip(tagged[::2], tagged[1::2], strict=True):
            unfinished[tag] = unfinished.get(tag, "") + piece
        if tagged:
            yield unfinished.pop(tagged[-2])
    yield from unfinished.values()


def _assemble(kind: str, total: int, checksum: str, parts: Mapping[int, str]) -> Result:
    if not parts:
        return Result(kind=kind, problem="all of its lines that arrived are damaged")
    missing = [str(number) for number in range(1, total + 1) if number not in parts]
    if missing:
        which = ", ".join(missing[:10]) + (", ..." if len(missing) > 10 else "")
        return Result(kind=kind, problem=f"{len(missing)} of its {total} lines are lost or damaged: {which}")
    try:
        data = base64.b64decode("".join(parts[number] for number in range(1, total + 1)), validate=True)
        if _checksum_of_all(kind, data) != checksum:
            return Result(kind=kind, problem="its checksum is wrong")
        return Result(kind=kind, payload=json.loads(zlib.decompress(data)))
    except (ValueError, zlib.error) as error:
        return Result(kind=kind, problem=f"it cannot be unpacked: {error}")


def _checksum_of_all(kind: str, data: bytes) -> str:
    return hashlib.sha256(kind.encode() + b"\0" + data).hexdigest()[:16]


def _checksum_of_line(head: str, part: str) -> str:
    return f"{zlib.crc32(f'{head} {part}'.encode()):08x}"
