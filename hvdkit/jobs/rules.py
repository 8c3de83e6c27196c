"""The rules that the fields of a JobSpec keep, most of them Kubernetes' own. Pure.

A field names its rule where it is declared: `image: str | None = ruled(image)`. `check_part` walks over a spec with
all its parts and calls every rule with the field's full name, so that an error reads `volumes[0].nfs.path: …`.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import field, fields, is_dataclass
from typing import Any

from hvdkit.errors import InputError

Rule = Callable[[str, Any], None]

MAX_INT32 = 2**31 - 1  # what Kubernetes keeps counts and seconds in

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_DNS_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
_DATA_KEY = re.compile(r"[-._A-Za-z0-9]{1,253}")
_SERVER = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?|[0-9A-Fa-f]*:[0-9A-Fa-f:.]*")
_QUANTITY = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(?:([KMGTPE]i|[mkMGTPE])|[eE]([+-]?\d{1,2}))?")
_SUFFIXES = {"m": 0.001}
_SUFFIXES |= {letter: 1000.0**power for power, letter in enumerate("kMGTPE", start=1)}
_SUFFIXES |= {f"{letter}i": 1024.0**power for power, letter in enumerate("KMGTPE", start=1)}

_LEAST_MEMORY = 1024**2  # a number without its suffix is below it

_REQUIRED = object()


def ruled(rule: Rule, default: Any = _REQUIRED) -> Any:
    """A field whose values must keep `rule`; a tuple's members keep it one by one."""
    if default is _REQUIRED:
        return field(metadata={"rule": rule})
    if isinstance(default, dict):
        return field(default_factory=dict, metadata={"rule": rule})
    return field(default=default, metadata={"rule": rule})


def choice(choices: tuple[str, ...], default: str | None) -> Any:
    """A field that is one of a few words; `metadata["choices"]` lists them for help texts and schemas."""

    def rule(name: str, value: str) -> None:
        one_of(name, value, choices)

    return field(default=default, metadata={"rule": rule, "choices": choices})


def check_part(part: Any, where: str = "") -> None:
    """Check every field of a spec or a part of one, then `part.check(where)`, which compares fields with each other."""
    for declared in fields(part):
        value = getattr(part, declared.name)
        if isinstance(value, Mapping):
            # A frozen spec must not change through the mapping that somebody else holds.
            object.__setattr__(part, declared.name, dict(value))
        _check_value(where + declared.name, value, declared.metadata.get("rule"))
    if hasattr(part, "check"):
        part.check(where)


def _check_value(name: str, value: Any, rule: Rule | None) -> None:
    if value is None:
        return
    if isinstance(value, tuple):
        for index, member in enumerate(value):
            _check_value(f"{name}[{index}]", member, rule)
    elif is_dataclass(value):
        check_part(value, f"{name}.")
    elif rule is None and isinstance(value, Mapping):
        for key, member in value.items():
            _check_value(f"{name}.{key}", member, None)
    elif rule is not None:
        rule(name, value)


def one_of(name: str, value: str, choices: tuple[str, ...]) -> None:
    """One of a few words."""
    if value not in choices:
        raise InputError(f"{name}: '{value}' is not one of {', '.join(choices)}.")


def positive(name: str, value: int) -> None:
    """1 or more."""
    if value < 1:
        raise InputError(f"{name}: {value} is too few; it must be 1 or more.")
    if value > MAX_INT32:
        raise InputError(f"{name}: {value} is too much; it must be at most {MAX_INT32}.")


def not_negative(name: str, value: int) -> None:
    """0 or more."""
    if not 0 <= value <= MAX_INT32:
        raise InputError(f"{name}: {value} must be 0 or more, and at most {MAX_INT32}.")


def port(name: str, value: int) -> None:
    """A TCP port that needs no root."""
    if not 1024 <= value <= 65535:
        raise InputError(f"{name}: {value} is not a port that a non-root process may open; use 1024 to 65535.")


def word(name: str, value: str) -> None:
    """Any text that a process can be given."""
    if "\0" in value:
        raise InputError(f"{name}: it contains a null character.")


def text(name: str, value: str) -> None:
    """Any text that can be written into a manifest."""
    word(name, value)
    if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
        raise InputError(f"{name}: {value!r} is not valid Unicode, so no manifest can hold it.")


def dns_label(name: str, value: str) -> None:
    """A name of one part, such as a namespace."""
    if len(value) > 63 or not _DNS_LABEL.fullmatch(value):
        raise InputError(f"{name}: '{value}' is not a DNS label; use up to 63 of a-z, 0-9 and '-', no '-' at an end.")


def dns_name(name: str, value: str) -> None:
    """A name of Kubernetes' usual kind, such as a secret's."""
    if len(value) > 253 or not _DNS_NAME.fullmatch(value):
        raise InputError(f"{name}: '{value}' is not the name of an object; use up to 253 of a-z, 0-9, '-' and '.'.")


def data_key(name: str, value: str) -> None:
    """A key in a secret or config map."""
    if not _DATA_KEY.fullmatch(value):
        raise InputError(f"{name}: '{value}' is not a key; use up to 253 of A-Z, a-z, 0-9, '-', '_' and '.'.")


def image(name: str, value: str) -> None:
    """A container image's reference."""
    if not value or not value.isascii() or not value.isprintable() or " " in value:
        raise InputError(f"{name}: '{value}' is not an image; write it as in registry.example.com/team/train:1.0.")


def server(name: str, value: str) -> None:
    """A host name or address."""
    if len(value) > 253 or not _SERVER.fullmatch(value):
        raise InputError(f"{name}: '{value}' is not a host name or address.")


def absolute_path(name: str, value: str) -> None:
    """A path from the root, without ways back."""
    text(name, value)
    if not value.startswith("/"):
        raise InputError(f"{name}: '{value}' is not an absolute path; begin it with '/'.")
    if ".." in value.split("/"):
        raise InputError(f"{name}: '{value}' contains '..'; write the path without it.")


def mount_path(name: str, value: str) -> None:
    """Where a volume appears in the container."""
    absolute_path(name, value)
    if ":" in value:
        raise InputError(f"{name}: '{value}' contains ':', which Kubernetes does not allow in a mount path.")
    if not value.strip("/"):
        raise InputError(f"{name}: a volume at '/' would hide the whole image; mount it in a folder.")


def relative_path(name: str, value: str) -> None:
    """A path inside something."""
    text(name, value)
    if not value or value.startswith("/") or ".." in value.split("/"):
        raise InputError(f"{name}: '{value}' is not a relative path without '..'.")


def quantity(name: str, value: str) -> None:
    """An amount of something, as Kubernetes writes it."""
    if parse_quantity(value) is None:
        hint = f"; write {value[:-1]}i" if re.fullmatch(r"\d+[KMGT]B", value) else ", such as 4, 500m or 16Gi"
        raise InputError(f"{name}: '{value}' is not an amount as Kubernetes writes it{hint}.")
    if parse_quantity(value) == 0:
        raise InputError(f"{name}: it must be more than 0; leave it out to ask for none.")


def memory(name: str, value: str) -> None:
    """An amount of memory."""
    quantity(name, value)
    amount = parse_quantity(value)
    if value.endswith("m"):
        raise InputError(f"{name}: '{value}' are thousandths of a byte; write {value[:-1]}Mi for mebibytes.")
    if amount is not None and amount < _LEAST_MEMORY:
        raise InputError(f"{name}: '{value}' is less than 1Mi, in which nothing runs; write 16Gi for gibibytes.")


def cpus(name: str, value: str) -> None:
    """An amount of processors."""
    quantity(name, value)
    if value.endswith("i"):
        raise InputError(f"{name}: '{value}' has a suffix for bytes; write processors as 4 or 500m.")


def parse_quantity(value: str) -> float | None:
    """The amount as a number; None when it is none."""
    match = _QUANTITY.fullmatch(value)
    if match is None or not value.isascii() or len(value) > 30:
        return None
    digits, suffix, exponent = match.groups()
    factor = 10.0 ** int(exponent) if exponent else _SUFFIXES.get(suffix, 1.0)
    return float(digits) * factor


def variables(name: str, value: Mapping[str, Any]) -> None:
    """Environment variables: C identifiers, and values without null characters."""
    for key, member in value.items():
        if not _VARIABLE.fullmatch(key):
            raise InputError(f"{name}: '{key}' is not a variable name; write --env NAME=VALUE.")
        if isinstance(member, str) and "\0" in member:
            raise InputError(f"{name}: the value of {key} contains a null character.")
        if is_dataclass(member):
            check_part(member, f"{name}.{key}.")


def label_key(name: str, value: str) -> None:
    """The key of a label or annotation: `[domain/]name`."""
    prefix, slash, last = value.rpartition("/")
    good_prefix = (len(prefix) <= 253 and _DNS_NAME.fullmatch(prefix)) if slash else True
    if not last or len(last) > 63 or not _LABEL_VALUE.fullmatch(last) or not good_prefix:
        raise InputError(f"{name}: '{value}' is not a label's key; write name or example.com/name.")


def label_value(name: str, value: str) -> None:
    """The value of a label."""
    if len(value) > 63 or not _LABEL_VALUE.fullmatch(value):
        raise InputError(f"{name}: '{value}' is not a label's value; use up to 63 of A-Z, a-z, 0-9, '-', '_', '.'.")


def device(name: str, value: str) -> None:
    """A resource that is not Kubernetes' own: it has a domain."""
    label_key(name, value)
    if "/" not in value:
        raise InputError(f"{name}: '{value}' is not an extended resource; write it with its domain, example.com/nic.")


def labels(name: str, value: Mapping[str, str]) -> None:
    """Labels, as Kubernetes checks them."""
    for key, member in value.items():
        label_key(name, key)
        label_value(f"{name}.{key}", member)


def annotations(name: str, value: Mapping[str, str]) -> None:
    """Annotations, as Kubernetes checks them."""
    for key, member in value.items():
        label_key(name, key)
        text(f"{name}.{key}", member)
    if sum(len(key) + len(member.encode()) for key, member in value.items()) > 256 * 1024:
        raise InputError(f"{name}: Kubernetes takes 256 KiB of annotations at most.")


def quantities(name: str, value: Mapping[str, str]) -> None:
    """Amounts of resources that have a domain in their name."""
    for key, member in value.items():
        device(name, key)
        quantity(f"{name}.{key}", member)
        amount = parse_quantity(member)
        if amount is not None and not amount.is_integer():
            raise InputError(f"{name}.{key}: '{member}' is not whole; extended resources come in whole pieces.")
