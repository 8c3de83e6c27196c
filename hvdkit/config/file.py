"""`hvdkit.yaml`: a version, the fields of a JobSpec, and named profiles that change some of them."""

from collections.abc import Mapping
from pathlib import Path
from types import NoneType
from typing import Any

from hvdkit.config.reading import unknown_key
from hvdkit.config.settings import Setting, merge, settings_of
from hvdkit.errors import InputError

FILE_NAME = "hvdkit.yaml"
VERSION = "1"


def read_file(file: Path, profile: str | None) -> list[Setting]:
    """The settings in a file, and over them those of the profile."""
    document = parse(read_text(file), str(file))
    try:
        return settings_in(document, file.name, profile)
    except InputError as error:
        raise InputError(f"{file}: {error}") from None


def settings_in(document: Any, source: str, profile: str | None) -> list[Setting]:
    """The settings of a file's content; every profile is checked, also those that are not asked for."""
    if not isinstance(document, Mapping):
        raise InputError(f"the file must begin with 'version: {VERSION}' and go on with a line 'key: value' for each.")
    found = document.get("version")
    if found != VERSION:
        what = "it is missing" if found is None else f"'{found}' is not known to this version of hvdkit"
        raise InputError(f"version: {what}; write 'version: {VERSION}'.")
    base = {key: value for key, value in document.items() if key not in ("version", "profiles")}
    profiles = document.get("profiles") or {}
    if not isinstance(profiles, Mapping):
        raise InputError("profiles: it must be a mapping, with a name and settings for each profile.")
    layers = {}
    for name, data in profiles.items():
        if not isinstance(data, (Mapping, NoneType)):
            raise InputError(f"profiles.{name}: it must be a mapping, a line 'key: value' for each setting.")
        try:
            layers[name] = settings_of(data, f"{source} (profile {name})")
        except InputError as error:
            raise InputError(f"profiles.{name}.{error}") from None
    if profile is not None and profile not in layers:
        if not layers:
            raise InputError(f"profiles: there are none, so '{profile}' cannot be used.")
        raise unknown_key(profile, layers, ("profiles",))
    return merge(settings_of(base, source), layers.get(profile, []))


def read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InputError(f"{file}: it cannot be read: {reason}.") from None


def parse(text: str, where: str) -> Any:
    """YAML to mappings, lists, text and None; a key that is given twice is an error."""
    import yaml

    class Reader(yaml.BaseLoader):
        def construct_scalar(self, node: yaml.ScalarNode) -> str | None:
            text = super().construct_scalar(node)
            return None if node.style is None and text in ("", "~", "null", "Null", "NULL") else text

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
            keys = [self.construct_object(key) for key, _ in node.value]
            for index, key in enumerate(keys):
                if not isinstance(key, str):
                    raise InputError(f"{where}:{node.start_mark.line + 1}: a key must be a single word.")
                if key in keys[:index]:
                    line = node.value[index][0].start_mark.line + 1
                    raise InputError(f"{where}:{line}: {key} is given twice; keep one of them.")
            return super().construct_mapping(node, deep=deep)

    try:
        return yaml.load(text, Loader=Reader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "it cannot be read"
        raise InputError(f"{where}{line}: it is not YAML: {problem}.") from None
    except RecursionError:
        raise InputError(f"{where}: it is nested too deep.") from None
