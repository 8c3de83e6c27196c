"""Text to the values of a dataclass's fields, by the fields' types. Pure.

The file and the environment both hand over text, so `cpus: 4`, `tag: 1.10` and `answer: yes` mean what stands there:
no reader of YAML gets to turn them into a number or a boolean first.
"""

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

from hvdkit.errors import InputError

Path = tuple[str, ...]

_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


@cache
def types_of(part: type) -> dict[str, Any]:
    """The type of each field."""
    return get_type_hints(part)


def bare(hint: Any) -> tuple[Any, bool]:
    """A type without its None, and whether it had one."""
    members = get_args(hint)
    if NoneType not in members:
        return hint, False
    return next(member for member in members if member is not NoneType), True


def is_mapping(hint: Any) -> bool:
    return get_origin(hint) is Mapping


def is_required(declared: Field) -> bool:
    """Whether a field has no default."""
    return declared.default is MISSING and declared.default_factory is MISSING


def dotted(path: Iterable[str]) -> str:
    return ".".join(path)


def leaves(part: type, data: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every value in `data`, typed, with its path: through parts and mappings, so that each can be replaced alone.

    A list is one value: what is said later replaces it as a whole. An empty mapping, `env: {}`, is one, too: it takes
    away what was said before.
    """
    for key, value in entries(data, path):
        if key not in types_of(part):
            raise unknown_key(key, types_of(part), path)
        here = (*path, key)
        hint, optional = bare(types_of(part)[key])
        if isinstance(hint, type) and is_dataclass(hint):
            if optional and value is None:
                yield here, None
            else:
                yield from leaves(hint, value, here)
        elif is_mapping(hint) and value == {}:
            yield here, {}
        elif is_mapping(hint):
            for name, member in entries(value, here):
                yield (*here, name), read(get_args(hint)[1], member, dotted((*here, name)))
        else:
            yield here, read(types_of(part)[key], value, dotted(here))


def read(hint: Any, value: Any, where: str) -> Any:
    """One value of a type, from text, lists and mappings of text."""
    hint, optional = bare(hint)
    if value is None and optional:
        return None
    if value is None:
        raise InputError(f"{where}: it has no value; leave the key out, or write '' for an empty text.")
    if get_origin(hint) is tuple:
        if not isinstance(value, (list, tuple)):
            raise InputError(f"{where}: it must be a list, such as [a, b].")
        return tuple(read(get_args(hint)[0], member, f"{where}[{index}]") for index, member in enumerate(value))
    if is_dataclass(hint):
        return build(hint, dict(leaves_in(hint, value, where)), where)
    if isinstance(value, (list, tuple, Mapping)):
        raise InputError(f"{where}: it must be a single value.")
    return {int: read_int, bool: read_bool, str: read_text}[hint](value, where)


def leaves_in(part: type, value: Any, where: str) -> Iterator[tuple[Path, Any]]:
    """Like `leaves`, for a member of a list: the paths in the result begin at the member."""
    start = (where,)
    for path, member in leaves(part, value, start):
        yield path[len(start) :], member


def build(part: type, found: Mapping[Path, Any], where: str = "") -> Any:
    """The dataclass from its values by path."""
    values: dict[str, Any] = {}
    for declared in fields(part):
        hint, _ = bare(types_of(part)[declared.name])
        here = f"{where}.{declared.name}" if where else declared.name
        below = {path[1:]: value for path, value in found.items() if path[0] == declared.name}
        if () in below:
            values[declared.name] = below[()]
        elif below and is_mapping(hint):
            values[declared.name] = {path[0]: value for path, value in below.items()}
        elif below:
            values[declared.name] = build(hint, below, here)
        elif is_required(declared):
            raise InputError(f"{here}: it is missing{f', and {where} needs it' if where else ''}.")
    return part(**values)


def read_int(value: Any, where: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    text = str(value).strip()
    if not (text.isascii() and text.lstrip("+-").isdecimal() and len(text) <= 20):
        raise InputError(f"{where}: '{value}' is not a whole number.")
    return int(text)


def read_bool(value: Any, where: str) -> bool:
    word = str(value).strip().lower()
    if word not in (*_TRUE, *_FALSE):
        raise InputError(f"{where}: '{value}' is neither true nor false.")
    return word in _TRUE


def read_text(value: Any, where: str) -> str:
    return str(value)


def entries(data: Any, path: Path) -> Iterable[tuple[str, Any]]:
    """The keys and values of what must be a mapping; an empty one may be left blank."""
    if data is None:
        return ()
    if not isinstance(data, Mapping):
        raise InputError(f"{dotted(path) or 'the file'}: it must be a mapping, a line 'key: value' for each.")
    return data.items()


def unknown_key(key: str, known: Iterable[str], path: Path) -> InputError:
    """An error that offers the nearest key there is."""
    known = list(known)
    near = difflib.get_close_matches(str(key), known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}."
    return InputError(f"{dotted((*path, str(key)))}: there is no such key; {hint}")
