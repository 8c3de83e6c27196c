"""The YAML reader: types as kubectl gives them, lines, and nothing that exhausts the machine."""

import math

import pytest

from hvdkit.checks.validate_fields import Field, Manifest
from hvdkit.checks.validate_yaml import DEEPEST, BadYaml, read_documents


def value(text: str) -> object:
    (document,) = read_documents(text)
    return document.value


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        # booleans of YAML 1.1, as Go's reader has them; PyYAML takes y and n for strings
        ("y", True),
        ("Off", False),
        ("TRUE", True),
        ("tRUE", "tRUE"),
        ('"yes"', "yes"),
        # numbers; PyYAML takes 1e3 for a string, 12:30 for 750 and a date for a date
        ("1e3", 1000),
        ("1.0", 1),
        ("1.5", 1.5),
        ("0x1F", 31),
        ("010", 8),
        ("0o10", 8),
        ("-010", -8),
        ("0b11", 3),
        ("089", 89),
        ("1_000", 1000),
        ("+4", 4),
        ("-x", "-x"),
        ("1.2.3", "1.2.3"),
        ("12:30", "12:30"),
        ("2024-01-01", "2024-01-01"),
        ("9" * 5000, "9" * 5000),
        (".5", 0.5),
        ("-.inf", -math.inf),
        ("4Gi", "4Gi"),
        ("=", "="),
        # null
        ("~", None),
        ("Null", None),
        ("''", ""),
        # tags
        ("!!str 4", "4"),
        ("!!int '4'", 4),
        ("!mine 4", "4"),
        ("|\n  4", "4"),
    ],
)
def test_words_are_typed_as_kubectl_types_them(word: str, expected: object) -> None:
    result = value(f"a: {word}")["a"]
    assert result == expected and type(result) is type(expected)


def test_keys_become_strings() -> None:
    assert value("1: a\non: b\n~: c\n2.5: d") == {"1": "a", "true": "b", "null": "c", "2.5": "d"}


def test_aliases_and_merges() -> None:
    text = "base: &base {a: 1, b: 2}\nhere:\n  <<: *base\n  b: 3\nmany:\n  <<: [*base, {c: 4}]\nagain: *base\n'<<': 5"
    assert value(text) == {
        "base": {"a": 1, "b": 2},
        "here": {"a": 1, "b": 3},
        "many": {"a": 1, "b": 2, "c": 4},
        "again": {"a": 1, "b": 2},
        "<<": 5,
    }


def test_lines() -> None:
    text = "# one\na:\n  b:\n  - c: 1\n  -\n    d: 2\n---\ne: 3\n"
    first, second = read_documents(text)
    manifest = Manifest(Field(first.value), lines=first.lines, document_value=first.value, first_line=first.first_line)
    lines = {("a",): 2, ("a", "b"): 3, ("a", "b", 0, "c"): 4, ("a", "b", 1, "d"): 6, ("a", "x", "y"): 2}
    assert {path: manifest.line_of(path) for path in lines} == lines
    assert second.first_line == 7 and second.lines[id(second.value)] == {"e": 8}


def test_keys_that_stand_twice() -> None:
    (document,) = read_documents("a: 1\nb: {c: 1, c: 2}\na: 3\n")
    assert document.twice == [(2, "c"), (3, "a")]
    assert document.value == {"a": 3, "b": {"c": 2}}


def test_empty_documents_are_left_out() -> None:
    assert [document.value for document in read_documents("---\n---\na: 1\n--- # nothing\n...\n")] == [{"a": 1}]


@pytest.mark.parametrize(
    ("text", "line", "sentence"),
    [
        ("a: 1\nb: *c\n", 2, "the alias *c stands for nothing"),
        ("a: &a [*a]\n", 1, "the alias *a stands for nothing"),
        ("a: 1\n? [b]\n: 2\n", 2, "a list or mapping where a key is expected"),
        ("a: {b}}\n", 1, "not valid YAML: "),
        ("a: 1\n<<: 4\n", 2, "'<<' merges mappings only"),
        ("a: 1\n\tb: 2\n", 2, "a tab in the indentation"),
        ("a: 1\nb: {{ .Values.b }}\n", 2, "a template, not YAML yet"),
        ("{{- if .Values.a }}\na: 1\n", 1, "a template, not YAML yet"),
        ("a: 1\nb: \x07\n", 2, "holds a control character"),
        ("[" * 100_000, 1, ""),
        ("- " * 100_000, 1, f"nested deeper than {DEEPEST} levels"),
        ("{a: " * 200 + "}" * 200, 1, f"nested deeper than {DEEPEST} levels"),
    ],
)
def test_what_is_no_yaml_is_named_with_its_line(text: str, line: int, sentence: str) -> None:
    with pytest.raises(BadYaml) as caught:
        list(read_documents(text))
    assert caught.value.line == line and caught.value.sentence.startswith(sentence) and caught.value.way_out


def test_a_bomb_of_aliases_is_refused() -> None:
    lines = ["a0: &a0 [x, x]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    with pytest.raises(BadYaml, match="more than 2,000,000 values"):
        list(read_documents("\n".join(lines)))
