"""Objects as text: what `render` and `launch --dry-run` print is what is applied. Pure, and the same every time.

A string stays a string for every reader of YAML, 1.1 or 1.2: whatever is not plainly a word is quoted. PyYAML alone
would leave `1e3`, `0o17` and `y` bare, which Kubernetes' own reader takes for numbers and a boolean.
"""

import json
import re
from typing import Any

import yaml

_PLAIN = re.compile(r"-{0,2}[A-Za-z/](?:[A-Za-z0-9_/.=-]|[: ](?=[A-Za-z0-9_/.=-]))*")
_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})  # what some reader takes for more


class _Writer(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True  # a template that two replicas share is written twice: people and kubectl read it without anchors


def _write_string(writer: _Writer, value: str) -> yaml.Node:
    plain = _PLAIN.fullmatch(value) and value.lower().lstrip("-") not in _WORDS
    # Between single quotes a line break of any kind is folded; between double quotes it is written as \n.
    style = None if plain else "'" if value.isprintable() else '"'
    return writer.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Writer.add_representer(str, _write_string)


def to_yaml(objects: list[dict[str, Any]]) -> str:
    """The objects as YAML documents, in their order."""
    return "---\n".join(
        yaml.dump(made, Dumper=_Writer, sort_keys=False, allow_unicode=True, width=2**31) for made in objects
    )


def to_json(objects: list[dict[str, Any]]) -> str:
    """The objects as one JSON document, a List, which kubectl takes like several documents."""
    made = {"apiVersion": "v1", "kind": "List", "items": objects}
    return json.dumps(made, indent=2, ensure_ascii=False) + "\n"
