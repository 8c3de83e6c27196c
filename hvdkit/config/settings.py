"""Values of a JobSpec with where they came from, laid over each other: flags > environment > file > defaults. Pure."""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Any

from hvdkit import __version__
from hvdkit.config.reading import Path, bare, build, dotted, is_mapping, leaves, types_of
from hvdkit.errors import InputError
from hvdkit.jobs.spec import JobSpec

DEFAULT = "default"
# What a job is when nobody says: the demo, in the image that hvdkit itself builds.
DEFAULTS = {"command": ("python", "-m", "hvdkit.train"), "image": f"hvdkit-worker:{__version__}"}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One value of a JobSpec."""

    path: Path
    """Where it stands in the spec: ("resources", "gpus")."""

    value: Any
    """The value, with the type of its field."""

    source: str
    """A flag, a variable, a file (with the profile), or "default"."""

    @property
    def name(self) -> str:
        return dotted(self.path)


def settings_of(data: Any, source: str) -> list[Setting]:
    """The settings in `data`, which has the shape of `hvdkit.yaml` without version and profiles."""
    return [Setting(path=path, value=value, source=source) for path, value in leaves(JobSpec, data)]


def merge(*layers: Iterable[Setting]) -> list[Setting]:
    """One setting a path: that of the last layer which has it."""
    merged: dict[Path, Setting] = {}
    for layer in layers:
        for setting in layer:
            for path in related(setting.path, merged):
                del merged[path]
            merged[setting.path] = setting
    return list(merged.values())


def related(path: Path, among: Iterable[Path]) -> list[Path]:
    """The path itself, what lies below it, and what it lies in."""
    return [other for other in among if other[: len(path)] == path or path[: len(other)] == other]


def make_spec(settings: list[Setting], *, name: str) -> JobSpec:
    """The spec of merged settings; `name` is the job's when none is set."""
    given = [Setting(path=("name",), value=name, source=DEFAULT), *default_settings()]
    with sources_named(settings):
        return build(JobSpec, {setting.path: setting.value for setting in merge(given, settings)})


def default_settings() -> list[Setting]:
    """What the JobSpec itself leaves open."""
    return [Setting(path=(key,), value=value, source=DEFAULT) for key, value in DEFAULTS.items()]


def all_settings(settings: list[Setting]) -> list[Setting]:
    """Merged settings with the defaults of all other fields, in the order of the spec."""
    given = merge(default_settings(), settings)
    found: list[Setting] = []
    for path, value in declared_defaults(JobSpec):
        set_here = [given[index] for index, other in enumerate(given) if other.path[: len(path)] == path]
        parent = next((other for other in given if path[: len(other.path)] == other.path), None)
        if set_here:
            found += set_here
        elif parent is None:
            found.append(Setting(path=path, value=value, source=DEFAULT))
        elif parent not in found:
            found.append(parent)
    return found


def declared_defaults(part: type, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every field, through the parts, with its default."""
    for declared in fields(part):
        hint, _ = bare(types_of(part)[declared.name])
        here = (*path, declared.name)
        if isinstance(hint, type) and is_dataclass(hint):
            yield from declared_defaults(hint, here)
        elif is_mapping(hint):
            yield here, {}
        else:
            yield here, None if declared.default is MISSING else declared.default


@contextmanager
def sources_named(settings: list[Setting]) -> Iterator[None]:
    """Errors raised inside begin with the flag, variable or file that the wrong value came from."""
    try:
        yield
    except InputError as error:
        where, colon, sentence = str(error).partition(": ")
        source = source_of(where, settings) if colon else None
        if source is None:
            raise
        place = source if source.startswith(("--", "HVDKIT_")) else f"{source}: {where}"
        raise InputError(f"{place}: {sentence}") from None


def source_of(where: str, settings: list[Setting]) -> str | None:
    """Where the field of an error's first words was set; None when that is nowhere, or in several places."""
    name = re.sub(r"\[\d+\].*", "", where)
    exact = {setting.source for setting in settings if name == setting.name or name.startswith(f"{setting.name}.")}
    below = {setting.source for setting in settings if setting.name.startswith(f"{name}.")}
    sources = (exact or below) - {DEFAULT}
    return sources.pop() if len(sources) == 1 else None
