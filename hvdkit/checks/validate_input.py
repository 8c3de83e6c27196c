"""Files, folders and standard input, turned into manifests."""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hvdkit.checks.validate_fields import Field, Manifest
from hvdkit.checks.validate_finding import ERROR, NOTE, WARNING, Finding
from hvdkit.checks.validate_yaml import DEEPEST, BadYaml, Document, read_documents
from hvdkit.errors import InputError

SUFFIXES = (".yaml", ".yml", ".json")
KUSTOMIZATION = (
    "skipped: kustomize reads it, a cluster never does",
    "'kustomize build … | hvdkit validate -' checks its result",
)
KUSTOMIZATIONS = ("kustomization.yaml", "kustomization.yml")
LARGEST = 64 * 2**20  # a cluster takes objects of 1.5 MB; more is a wrong file, or one without an end
STANDARD_INPUT = "-"


@dataclass(frozen=True)
class Source:
    """A text to check."""

    name: str
    content: bytes
    found: bool = False
    """Found in a folder, not named by the user: then it may be something else than a manifest."""


def read_sources(arguments: list[str]) -> list[Source]:
    """What the user named, folders opened. Raises InputError for what cannot be read."""
    sources = {}
    for argument in arguments:
        path = Path(argument)
        if argument == STANDARD_INPUT:
            sources[argument] = Source("<stdin>", sys.stdin.buffer.read(LARGEST + 1))
        elif path.is_dir():
            files = sorted(file for file in path.rglob("*") if file.suffix in SUFFIXES and not file.is_dir())
            if not files:
                raise InputError(f"{argument} holds no {', '.join('*' + suffix for suffix in SUFFIXES)} file.")
            for file in files:
                sources.setdefault(str(file), Source(str(file), read(file), found=True))
        else:
            sources[argument] = Source(argument, read(path))
    for source in sources.values():
        if len(source.content) > LARGEST:
            raise InputError(f"{source.name} is larger than {LARGEST // 2**20} MiB, so it is no manifest.")
    return list(sources.values())


def read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(LARGEST + 1)
    except OSError as error:
        reason = f"{path} cannot be read: {error.strerror}."
        raise InputError(f"{reason} Name a file, a folder or - (standard input).") from None
    except ValueError:  # a NUL in the name
        raise InputError(f"{str(path)!r} is not a file name.") from None


def parse(source: Source) -> tuple[list[Manifest], list[Finding]]:
    """The objects of a text, and what is wrong with the text itself."""
    reader = Parser(source)
    reader.run()
    return reader.manifests, reader.findings


class Parser:
    """Reads one source."""

    def __init__(self, source: Source):
        self.source = source
        self.manifests: list[Manifest] = []
        self.findings: list[Finding] = []

    def say(self, severity: str, document: int, line: int | None, sentence: str, way_out: str, title: str = "") -> None:
        self.findings.append(Finding(severity, self.source.name, document, line, title, "", sentence, way_out))

    def run(self) -> None:
        if Path(self.source.name).name in KUSTOMIZATIONS:
            self.say(NOTE, 0, None, *KUSTOMIZATION)
            return
        try:
            text = self.source.content.decode("utf-8-sig")
        except UnicodeDecodeError:
            text = "\0"
        if "\0" in text:
            self.say(ERROR, 0, None, "not a text file", "name YAML or JSON files; they are in UTF-8")
            return
        count = 0
        try:
            for count, document in enumerate(documents(text), 1):
                self.take(document, count)
        except BadYaml as problem:
            self.say(ERROR, count + 1, problem.line, problem.sentence, problem.way_out)
            return
        if count == 0:
            # Among others in a folder such a file does no harm.
            severity = WARNING if self.source.found else ERROR
            self.say(severity, 0, None, "holds no object", "take it out or fill it: 'kubectl apply' refuses it")

    def take(self, document: Document, number: int) -> None:
        """Turn a document into manifests; Lists are opened."""
        for line, key in document.twice:
            sentence = f"the key '{key}' stands twice in one mapping; only the last one would count"
            self.say(ERROR, number, line, sentence, "keep one of them")
        value = document.value
        if self.source.found and is_something_else(value):
            sentence = "skipped: not a manifest, it has neither apiVersion nor kind"
            self.say(NOTE, number, document.first_line, sentence, "")
            return
        for field in objects(Field(value)):
            manifest = Manifest(
                field,
                file=self.source.name,
                document=number,
                lines=document.lines,
                document_value=value,
                first_line=document.first_line,
            )
            if isinstance(field.value, dict):
                self.manifests.append(manifest)
            else:
                sentence = f"a manifest is a mapping with apiVersion and kind, this is {kind_of(field.value)}"
                self.say(ERROR, number, manifest.line_of(field.path), sentence, "look at the indentation")


def documents(text: str) -> Iterator[Document]:
    """The documents of a text. JSON is YAML, but for some ways of writing a character."""
    try:
        yield from read_documents(text)
    except BadYaml:
        if not text.lstrip().startswith("{"):
            raise
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = None
        if value is None or too_deep(value):
            raise
        yield Document(value, 1)


def objects(field: Field) -> Iterator[Field]:
    """An object itself, or what a List of objects holds."""
    waiting = [field]
    while waiting:
        current = waiting.pop()
        kind = current["kind"].text or ""
        if kind.endswith("List") and isinstance(current["items"].value, list):
            members = list(current["items"])
            if kind != "List":
                # The members of a PodList may leave out what they are.
                said = {"apiVersion": current["apiVersion"].value, "kind": kind.removesuffix("List")}
                members = [
                    Field({**said, **member.value}, member.path) if isinstance(member.value, dict) else member
                    for member in members
                ]
            waiting += reversed(members)
        else:
            yield current


def is_something_else(value: object) -> bool:
    """A file of settings, say: with neither the head of a manifest nor its usual parts."""
    return not (isinstance(value, dict) and {"apiVersion", "kind", "metadata", "spec"} & value.keys())


def too_deep(value: object) -> bool:
    """Whether a value is nested deeper than we follow; the checks call themselves once a level."""
    level = [value]
    for _ in range(DEEPEST):
        level = [
            member
            for each in level
            if isinstance(each, dict | list)
            for member in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return False
    return True


def kind_of(value: object) -> str:
    """What a value is, in words."""
    if isinstance(value, list):
        return "a list"
    return "empty" if value is None else "a single value"
