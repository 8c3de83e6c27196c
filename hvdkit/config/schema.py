"""A JSON Schema of `hvdkit.yaml`, made from the dataclasses, so that editors complete and explain each key."""

import ast
import inspect
import textwrap
from dataclasses import fields, is_dataclass
from itertools import pairwise
from typing import Any, get_args, get_origin

from hvdkit.config.file import VERSION
from hvdkit.config.reading import bare, is_mapping, is_required, types_of
from hvdkit.jobs.spec import JobSpec

Schema = dict[str, Any]

# The reader takes what is written as text, so an editor must not ask for quotes around `cpus: 4` or `DEBUG: true`.
_TEXT = ["string", "number", "boolean"]


def schema() -> Schema:
    """The schema of the whole file."""
    parts: dict[str, Schema] = {}
    settings = properties(JobSpec, parts)
    profile = {"type": ["object", "null"], "properties": settings, "additionalProperties": False}
    parts["profile"] = {"description": "Settings that replace those of the file when the profile is used.", **profile}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "hvdkit.yaml",
        "description": summary(JobSpec),
        "type": "object",
        "properties": {
            "version": {"description": "Version of this format.", "enum": [int(VERSION), VERSION]},
            "profiles": {
                "description": "Named changes to the settings; --profile chooses one.",
                "type": ["object", "null"],
                "additionalProperties": {"$ref": "#/$defs/profile"},
            },
            **settings,
        },
        "required": ["version"],
        "additionalProperties": False,
        "$defs": parts,
    }


def properties(part: type, parts: dict[str, Schema]) -> dict[str, Schema]:
    """The schema of each field; the parts it refers to are added to `parts`."""
    explained = docstrings(part)
    found = {}
    for declared in fields(part):
        kind = schema_of(types_of(part)[declared.name], parts)
        if choices := declared.metadata.get("choices"):
            kind = {"enum": [*choices, None] if bare(types_of(part)[declared.name])[1] else list(choices)}
        if isinstance(declared.default, (str, int)):
            kind = {**kind, "default": declared.default}
        found[declared.name] = {"description": explained[declared.name], **kind}
    return found


def schema_of(hint: Any, parts: dict[str, Schema]) -> Schema:
    """The schema of a type."""
    hint, optional = bare(hint)
    if get_origin(hint) is tuple:
        return {"type": "array", "items": schema_of(get_args(hint)[0], parts)}
    if is_mapping(hint):
        return {"type": ["object", "null"], "additionalProperties": schema_of(get_args(hint)[1], parts)}
    if is_dataclass(hint):
        return part_schema(hint, optional, parts)
    kinds = {str: _TEXT, int: ["integer"], bool: ["boolean"]}[hint]
    kinds = [*kinds, "null"] if optional else kinds
    return {"type": kinds if len(kinds) > 1 else kinds[0]}


def part_schema(part: type, optional: bool, parts: dict[str, Schema]) -> Schema:
    if part.__name__ not in parts:
        parts[part.__name__] = {
            "description": summary(part),
            "type": "object",
            "properties": properties(part, parts),
            # A profile may change one field of Elastic and leave the other to the file; members of lists are whole.
            "required": [] if part.__name__ == "Elastic" else [one.name for one in fields(part) if is_required(one)],
            "additionalProperties": False,
        }
    reference = {"$ref": f"#/$defs/{part.__name__}"}
    return {"anyOf": [reference, {"type": "null"}]} if optional else reference


def docstrings(part: type) -> dict[str, str]:
    """The text under each field of a dataclass."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(part))).body
    found: dict[str, str] = {}
    statements = body.body if isinstance(body, ast.ClassDef) else []
    for declared, following in pairwise(statements):
        is_text = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
        if isinstance(declared, ast.AnnAssign) and isinstance(declared.target, ast.Name) and is_text:
            found[declared.target.id] = " ".join(str(following.value.value).split())
    return found


def summary(part: type) -> str:
    return " ".join((part.__doc__ or "").split())
