"""YAML as kubectl reads it, with the line of every key.

PyYAML's own loader is not enough: it keeps no lines, takes the last of two equal keys in silence, and types plain words
differently from the reader in kubectl (there `y` is a boolean, 1e3 a number, 12:30 and 2024-01-01 are strings). So its
parser's events are put together here, without recursion, so that no nesting and no alias can exhaust the machine.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import yaml

DEEPEST = 100  # a CRD's schema, the deepest thing that people apply, stays well below half of it
MOST_VALUES = 2_000_000  # aliases counted as often as they stand there: a small file can mean a huge document

# Every source build of PyYAML has the slow parser, the wheels have the quick one too.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

TRUE = {"y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"}
FALSE = {"n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"}
NULL = {"", "~", "null", "Null", "NULL"}
DECIMAL = re.compile(r"[-+]?(0|[1-9][0-9]*)")
OTHER_BASE = re.compile(r"[-+]?0(x[0-9a-fA-F]+|o?[0-7]+|b[01]+)")
FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
NOT_FINITE = re.compile(r"([-+]?\.(inf|Inf|INF))|\.(nan|NaN|NAN)")

STRING_TAG = "tag:yaml.org,2002:str"
PLAIN_TAGS = {f"tag:yaml.org,2002:{name}" for name in ("bool", "int", "float", "null")}
MERGE = "<<"


class BadYaml(Exception):
    """The text is not YAML that a manifest can be read from."""

    def __init__(self, line: int | None, sentence: str, way_out: str):
        super().__init__(sentence)
        self.line, self.sentence, self.way_out = line, sentence, way_out


@dataclass
class Document:
    """One document of a file."""

    value: object
    first_line: int
    lines: dict[int, dict] = field(default_factory=dict)
    """For each mapping and list, by id: the line of each key or index."""

    twice: list[tuple[int, str]] = field(default_factory=list)
    """The keys that stand twice in one mapping, each with the line of the second."""


def read_documents(text: str) -> Iterator[Document]:
    """The documents of a text, empty ones left out. Raises BadYaml where it stops being YAML."""
    try:
        builder = None
        for event in yaml.parse(text, Loader=LOADER):
            if isinstance(event, yaml.DocumentStartEvent):
                builder = Builder(event.start_mark.line + 1)
            elif isinstance(event, yaml.DocumentEndEvent):
                if builder.document.value is not None:
                    yield builder.document
            elif isinstance(event, yaml.NodeEvent | yaml.CollectionEndEvent):
                builder.take(event)
    except yaml.YAMLError as error:
        raise explained(error, text) from None
    except BadYaml as problem:
        raise usual_reason(problem.line, text) or problem from None


@dataclass
class Open:
    """A mapping or list whose end has not come yet."""

    value: dict | list
    line: int
    anchor: str | None
    lines: dict = field(default_factory=dict)
    key: str | None = None
    """The key that waits for its value; None when a key comes next."""

    merged: list[dict] = field(default_factory=list)
    size: int = 1


class Builder:
    """Puts one document together from the parser's events."""

    def __init__(self, first_line: int):
        self.document = Document(None, first_line)
        self.open: list[Open] = []
        self.anchors: dict[str, tuple[object, int]] = {}

    def take(self, event: yaml.Event) -> None:
        line = event.start_mark.line + 1
        if isinstance(event, yaml.ScalarEvent):
            if self.wants_key():
                self.take_key(event, line)
                return
            value = scalar(event)
            self.remember(event.anchor, value, 1)
            self.place(value, line, 1)
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor not in self.anchors:
                raise BadYaml(
                    line,
                    f"the alias *{event.anchor} stands for nothing",
                    f"write &{event.anchor} before the value that it repeats; a value cannot hold itself",
                )
            value, size = self.anchors[event.anchor]
            self.place(value, line, size)
        elif isinstance(event, yaml.CollectionStartEvent):
            if len(self.open) >= DEEPEST:
                sentence = f"nested deeper than {DEEPEST} levels"
                raise BadYaml(line, sentence, "no manifest needs that; look at the brackets")
            value = {} if isinstance(event, yaml.MappingStartEvent) else []
            self.refuse_as_key(line)
            self.open.append(Open(value, line, event.anchor))
        else:
            self.close()

    def wants_key(self) -> bool:
        return bool(self.open) and isinstance(self.open[-1].value, dict) and self.open[-1].key is None

    def refuse_as_key(self, line: int) -> None:
        if self.wants_key():
            raise BadYaml(line, "a list or mapping where a key is expected", "look at the brackets and the indentation")

    def take_key(self, event: yaml.ScalarEvent, line: int) -> None:
        top, key = self.open[-1], scalar(event)
        if key == MERGE and is_plain(event):
            top.key = MERGE
            return
        key = key if isinstance(key, str) else "null" if key is None else str(key).lower()
        if key in top.value:
            self.document.twice.append((line, key))
        top.key, top.lines[key] = key, line
        self.remember(event.anchor, key, 1)

    def place(self, value: object, line: int, size: int) -> None:
        """Hang a finished value where the document is open."""
        if not self.open:
            self.document.value = value
            return
        self.refuse_as_key(line)
        top = self.open[-1]
        top.size += size
        if top.size > MOST_VALUES:
            sentence = f"more than {MOST_VALUES:,} values, the aliases written out"
            raise BadYaml(line, sentence, "no manifest needs that; use fewer aliases")
        if isinstance(top.value, list):
            top.lines[len(top.value)] = line
            top.value.append(value)
        elif top.key == MERGE and top.key not in top.lines:
            self.merge(top, value, line)
        else:
            top.value[top.key] = value
        top.key = None

    def merge(self, top: Open, value: object, line: int) -> None:
        sources = value if isinstance(value, list) else [value]
        if not all(isinstance(source, dict) for source in sources):
            raise BadYaml(line, "'<<' merges mappings only", "write '<<: *name' with the anchor of a mapping")
        top.merged += sources

    def close(self) -> None:
        """End the innermost mapping or list."""
        top = self.open.pop()
        for source in top.merged:
            for key, value in source.items():
                if key not in top.value:  # what is written out wins over what is merged
                    top.value[key] = value
                    top.lines[key] = top.line
        self.document.lines[id(top.value)] = top.lines
        self.remember(top.anchor, top.value, top.size)
        self.place(top.value, top.line, top.size)

    def remember(self, anchor: str | None, value: object, size: int) -> None:
        if anchor:
            self.anchors[anchor] = (value, size)


def is_plain(event: yaml.ScalarEvent) -> bool:
    """Whether a word stands without quotes and without a tag, so that its look decides what it is."""
    return event.implicit[0] and not event.style and event.tag in (None, "!")


def scalar(event: yaml.ScalarEvent) -> object:
    """The value of a word."""
    if not is_plain(event) and event.tag not in PLAIN_TAGS:
        return event.value
    word = event.value
    if word in NULL:
        return None
    if word in TRUE or word in FALSE:
        return word in TRUE
    if word[0] in "+-.0123456789":
        return number(word)
    return word


def number(word: str) -> int | float | str:
    """A number if kubectl takes the word for one, else the word itself."""
    plain = word.replace("_", "")
    if DECIMAL.fullmatch(plain) and len(plain) < 40:
        return int(plain)
    if OTHER_BASE.fullmatch(plain) and len(plain) < 60:
        # Python writes octal numbers 0o17, and YAML also 017.
        return int(re.sub(r"^([-+]?)0(?=[0-7])", r"\g<1>0o", plain), 0)
    if FLOAT.fullmatch(plain):
        value = float(plain)
        # kubectl turns YAML into JSON first, and there 1.0 and 1e3 are written 1 and 1000.
        return int(value) if value.is_integer() and abs(value) < 1e21 else value if math.isfinite(value) else word
    if NOT_FINITE.fullmatch(word):
        return float(word.replace(".", ""))
    return word


def explained(error: yaml.YAMLError, text: str) -> BadYaml:
    """The parser's complaint with its line, and the usual reasons for it in plain words."""
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    if mark is None:
        # A character that YAML does not allow; the parser counts bytes.
        position = getattr(error, "position", 0) or 0
        line = text.encode()[:position].count(b"\n") + 1
        return BadYaml(line, "holds a control character, so it is not YAML", "save the file as plain UTF-8 text")
    line = min(mark.line + 1, text.rstrip().count("\n") + 1)  # not below the text, when it ended too early
    problem = ", ".join(part for part in (getattr(error, "context", ""), getattr(error, "problem", "")) if part)
    otherwise = BadYaml(line, f"not valid YAML: {problem}", "look at this line and the one before it")
    return usual_reason(line, text) or otherwise


def usual_reason(line: int, text: str) -> BadYaml | None:
    """What mostly is behind a line that is no YAML."""
    lines = text.split("\n")
    around = lines[line - 1] if line <= len(lines) else ""
    indentation = around[: len(around) - len(around.lstrip())]
    if "\t" in indentation:
        return BadYaml(line, "a tab in the indentation, which YAML forbids", "indent with spaces")
    if "{{" in around or "{%" in around:
        return BadYaml(line, "a template, not YAML yet", "render it first ('helm template') and validate the result")
    return None
