"""What `hvdkit validate` finds, and how a field's place is written."""

from dataclasses import dataclass

ERROR, WARNING, NOTE = "error", "warning", "note"

Path = tuple[str | int, ...]
"""Where a field stands: keys and indices from the top of the document."""


@dataclass(frozen=True)
class Problem:
    """What a check says of one field of one object; it knows nothing of files."""

    severity: str
    path: Path
    sentence: str
    way_out: str = ""


@dataclass(frozen=True)
class Finding:
    """A problem with the place where a person finds it."""

    severity: str
    """error (the cluster or the job fails), warning (it works badly, or cannot be known), note (nothing to do)."""

    file: str
    """As the user named it; empty for objects that come from no file."""

    document: int
    """The document in that file, the first is 1; 0 when the file as a whole is meant."""

    line: int | None
    """The line in that file, when it is known."""

    object: str
    """Kind, namespace and name, as far as the object says them."""

    path: str
    """The field, as in spec.template.spec.containers[0].image; empty when the whole object is meant."""

    sentence: str
    """What is wrong with it."""

    way_out: str
    """What to do about it."""

    def __post_init__(self) -> None:
        # Keys and names come from the input, and go to a terminal.
        for name in ("object", "path", "sentence", "way_out"):
            object.__setattr__(self, name, printable(getattr(self, name)))

    def __str__(self) -> str:
        """The field and what is wrong with it, without the place."""
        return f"{self.path}: {self.sentence}" if self.path else self.sentence


def written(path: Path) -> str:
    """spec.containers[0].resources.limits[nvidia.com/gpu]: keys that hold dots stand in brackets."""
    text = ""
    for part in path:
        if isinstance(part, int) or not part or any(character in ".[] /\n" for character in part):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text


def printable(text: str) -> str:
    """A text without control characters, lone surrogates and the like: they are written out."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def counted(number: int, noun: str) -> str:
    """1 slot, 2 slots."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def shown(value: object, limit: int = 60) -> str:
    """A value as it may stand in a sentence: as JSON would write it, on one line, cut when long."""
    import json

    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= limit else text[: limit - 1] + "…"
