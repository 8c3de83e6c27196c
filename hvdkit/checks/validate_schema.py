"""A value against a schema, as the API server's strict check sees it: unknown fields are errors.

The schemas are Kubernetes' structural schemas, a small dialect of their own (null counts as absent, int-or-string,
lists keyed by a field, defaults that satisfy `required`), in which a general JSON Schema library gives other answers
and other sentences. The rules in CEL (`x-kubernetes-validations`) are not run.
"""

import base64
import binascii
import re
from dataclasses import dataclass
from functools import cache

from hvdkit.checks.validate_finding import ERROR, WARNING, Path, Problem, shown

# As it stands in every custom resource definition that holds a quantity.
NUMBER = r"(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))"
QUANTITY = f"^{NUMBER}(([KMGTPE]i)|[numkMGTPE]|([eE]{NUMBER}))?$"
QUANTITY_DEFINITION = "io.k8s.apimachinery.pkg.api.resource.Quantity"
QUANTITY_SCHEMA = {"x-kubernetes-int-or-string": True, "pattern": QUANTITY, "fractions": True}

# The API server takes these twice in Kubernetes' own kinds, with a warning at most; in custom kinds it refuses them.
TOLERATED_TWICE = {"env", "ports", "imagePullSecrets", "hostAliases"}

INTEGER_BITS = {"int32": 31, "int64": 63}
TYPES = {
    "object": (dict, "a mapping"),
    "array": (list, "a list"),
    "string": (str, "a string"),
    "boolean": (bool, "true or false"),
    "integer": (int, "a whole number"),
    "number": ((int, float), "a number"),
}


@dataclass(frozen=True)
class Schema:
    """The schema of one kind."""

    top: dict
    definitions: dict
    """What `$ref` refers to: the definitions of Kubernetes."""

    custom: bool
    """Whether it comes from a custom resource definition."""

    def problems(self, value: object, path: Path = ()) -> list[Problem]:
        """Everything in which a value departs from the schema."""
        walk = Walk(self)
        walk.check(value, self.top, path)
        return walk.found


class Walk:
    """One comparison of a value with a schema."""

    def __init__(self, schema: Schema):
        self.definitions = schema.definitions
        self.custom = schema.custom
        self.found: list[Problem] = []

    def report(self, path: Path, sentence: str, way_out: str, severity: str = ERROR) -> None:
        self.found.append(Problem(severity, path, sentence, way_out))

    def resolved(self, schema: dict) -> dict:
        """What a schema is after following its `$ref`."""
        while "$ref" in schema:
            name = schema["$ref"].rpartition("/")[2]
            # Published as a string, but a plain number is taken too.
            schema = QUANTITY_SCHEMA if name == QUANTITY_DEFINITION else self.definitions[name]
        return schema

    def check(self, value: object, schema: dict, path: Path) -> None:
        schema = self.resolved(schema)
        if schema.get("x-kubernetes-int-or-string") or schema.get("format") == "int-or-string":
            self.check_int_or_string(value, schema, path)
            return
        expected = schema.get("type") or ("object" if "properties" in schema else None)
        if expected is None:
            return
        python_type, words = TYPES[expected]
        if not isinstance(value, python_type) or (isinstance(value, bool) and expected != "boolean"):
            self.report(path, f"must be {words}, not {shown(value)}", mend_type(value, expected))
            return
        if expected == "object":
            self.check_mapping(value, schema, path)
        elif expected == "array":
            self.check_list(value, schema, path)
        elif expected == "string":
            self.check_string(value, schema, path)
        elif expected in ("integer", "number"):
            self.check_number(value, schema, path)

    def check_int_or_string(self, value: object, schema: dict, path: Path) -> None:
        fractions = schema.get("fractions", False) and isinstance(value, float)
        if isinstance(value, bool) or not (isinstance(value, int | str) or fractions):
            mend = f'write it in quotes: "{value}"' if isinstance(value, float) else "write one number or one word"
            self.report(path, f"must be a whole number or a string, not {shown(value)}", mend)
        elif isinstance(value, str):
            self.check_string(value, schema, path)

    def check_mapping(self, value: dict, schema: dict, path: Path) -> None:
        properties = schema.get("properties")
        rest = schema.get("additionalProperties")
        for key, member in value.items():
            here = (*path, key)
            if properties and key in properties:
                if member is not None:  # null is the same as leaving it out
                    self.check(member, properties[key], here)
            elif isinstance(rest, dict):
                if member is not None:
                    self.check(member, rest, here)
            elif properties and not rest and not schema.get("x-kubernetes-preserve-unknown-fields"):
                self.report_unknown(str(key), properties, here)
        for key in schema.get("required", ()):
            if value.get(key) is None and "default" not in (properties or {}).get(key, {}):
                self.report((*path, key), "is missing", f"{key} has to be given here")
        self.check_count(value, schema.get("maxProperties"), path)

    def report_unknown(self, key: str, known: dict, path: Path) -> None:
        near = nearest(key, known)
        if near:
            self.report(path, f"unknown field; did you mean '{near}'?", f"write {near}, or take the field out")
            return
        names = sorted(known)
        listed = ", ".join(names[:12]) + (", …" if len(names) > 12 else "")
        self.report(path, "unknown field", f"take it out or move it to where it belongs; known here: {listed}")

    def check_list(self, value: list, schema: dict, path: Path) -> None:
        items = schema.get("items", {})
        for index, member in enumerate(value):
            self.check(member, items, (*path, index))
        if len(value) < schema.get("minItems", 0):
            self.report(path, f"holds {len(value)} entries, at least {schema['minItems']} are needed", "add some")
        self.check_count(value, schema.get("maxItems"), path)
        kind = schema.get("x-kubernetes-list-type")
        if kind in ("map", "set"):
            self.check_unique(value, self.resolved(items), schema.get("x-kubernetes-list-map-keys") or (), path)

    def check_count(self, value: dict | list, most: int | None, path: Path) -> None:
        if most is not None and len(value) > most:
            self.report(path, f"holds {len(value)} entries, at most {most} are allowed", "take some out")

    def check_unique(self, value: list, items: dict, keys: list[str] | tuple, path: Path) -> None:
        """A list that Kubernetes merges by key must not hold a key twice."""
        defaults = {key: items.get("properties", {}).get(key, {}).get("default") for key in keys}
        seen: dict[str, int] = {}
        for index, member in enumerate(value):
            if keys and not isinstance(member, dict):
                continue
            identity = [member.get(key, defaults[key]) for key in keys] if keys else member
            first = seen.setdefault(shown(identity, 1000), index)
            if first == index:
                continue
            tolerated = not self.custom and path and path[-1] in TOLERATED_TWICE
            what = " and ".join(f"{key} {shown(member.get(key, defaults[key]))}" for key in keys) or shown(member)
            sentence = f"{what} stands here a second time, after [{first}]"
            self.report((*path, index), sentence, "keep one of them", WARNING if tolerated else ERROR)

    def check_string(self, value: str, schema: dict, path: Path) -> None:
        choices = schema.get("enum")
        if choices and value not in choices:
            self.report(path, f"{shown(value)} is not one of {', '.join(map(shown, choices))}", "write one of them")
        if len(value) < schema.get("minLength", 0):
            self.report(path, "must not be empty", "write a value or take the field out")
        if len(value) > schema.get("maxLength", len(value)):
            self.report(path, f"has {len(value)} characters, at most {schema['maxLength']} are allowed", "shorten it")
        pattern = schema.get("pattern")
        if pattern and not compiled(pattern).search(value):
            if pattern == QUANTITY:
                sentence = f"{shown(value)} is not a quantity"
                self.report(path, sentence, "write a number with m, k, M, G, T or Ki, Mi, Gi, Ti: 500m, 4, 16Gi")
            else:
                self.report(path, f"{shown(value)} does not match {pattern}", "write a value of that form")
        if schema.get("format") == "byte" and not is_base64(value):
            self.report(path, "is not base64", "encode the value (base64), or use stringData for plain text")

    def check_number(self, value: int | float, schema: dict, path: Path) -> None:
        bits = INTEGER_BITS.get(schema.get("format"))
        if bits and not -(1 << bits) <= value < 1 << bits:
            self.report(path, f"{shown(value)} does not fit into {bits + 1} bits", "write a smaller number")
        if "minimum" in schema and value < schema["minimum"]:
            self.report(path, f"must be at least {schema['minimum']}, not {value}", "write a larger number")
        if "maximum" in schema and value > schema["maximum"]:
            self.report(path, f"must be at most {schema['maximum']}, not {value}", "write a smaller number")


def mend_type(value: object, expected: str) -> str:
    """How to write a value of the right type; mostly it is a matter of quotes."""
    if expected == "string" and isinstance(value, bool):
        taken = "y, yes, on and true" if value else "n, no, off and false"
        return f"write the word in quotes; YAML takes {taken} for that"
    if expected == "string" and isinstance(value, int | float):
        return f'write it in quotes: "{value}"'
    if expected in ("integer", "boolean", "number") and isinstance(value, str):
        return "write it without quotes" if value.strip().lstrip("-").isalnum() else f"write {TYPES[expected][1]}"
    if expected == "array":
        return "put each entry on a line of its own, with '- ' before it"
    if expected == "object":
        return "put 'name: value' lines below it, indented"
    return f"write {TYPES[expected][1]} here"


def nearest(name: str, known: dict | list) -> str | None:
    """The known name that was probably meant."""
    import difflib

    folded = name.lower()
    for candidate in known:
        if candidate.lower() == folded:
            return candidate
    matches = difflib.get_close_matches(name, known, n=1, cutoff=0.7)
    return matches[0] if matches else None


def is_base64(text: str) -> bool:
    try:
        base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        return False
    return True


@cache
def compiled(pattern: str) -> re.Pattern:
    # In Go `$` is the end of the text, in Python also the place before a last newline.
    return re.compile(pattern[:-1] + r"\Z" if pattern.endswith("$") else pattern)
