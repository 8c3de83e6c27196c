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
COMMAND_LINE = "the command line"  # of the words after `--`; flags are sources of their own
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
    """A flag, a variable, a file (with the profile), the command line, or "default"."""

    @property
    def name(self) -> str:
        return dotted(self.path)

    @property
    def from_flag(self) -> bool:
        return self.source.startswith("--")


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


def find(settings: Iterable[Setting], name: str) -> Setting | None:
    """The setting of a field; None when nobody has set it."""
    return next((setting for setting in settings if setting.name == name), None)


def related(path: Path, among: Iterable[Path]) -> list[Path]:
    """The path itself, what lies below it, and what it lies in."""
    return [other for other in among if other[: len(path)] == path or path[: len(other)] == other]


def make_spec(settings: list[Setting], *, name: str) -> JobSpec:
    """The spec of merged settings; `name` is the job's when none is set."""
    given = [Setting(path=("name",), value=name, source=DEFAULT), *default_settings(settings)]
    with sources_named(settings):
        return build(JobSpec, {setting.path: setting.value for setting in merge(given, settings)})


def default_settings(settings: list[Setting]) -> list[Setting]:
    """What the JobSpec itself leaves open, and what follows from the settings."""
    found = [Setting(path=(key,), value=value, source=DEFAULT) for key, value in DEFAULTS.items()]
    gpus = find(settings, "resources.gpus")
    if gpus is not None and gpus.value > 1:
        found.append(Setting(path=("slots",), value=gpus.value, source="a rank for each GPU"))
    return found


def all_settings(settings: list[Setting]) -> list[Setting]:
    """Merged settings with the defaults of all other fields, in the order of the spec."""
    given = merge(default_settings(settings), settings)
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
        place = place_of(where, sentence, settings) if colon else None
        if place is None:
            raise
        raise InputError(f"{place}: {sentence}") from None


def place_of(where: str, sentence: str, settings: list[Setting]) -> str | None:
    """The field `where` of an error, as whoever set it knows it; None when it was set nowhere or in several places."""
    name = re.sub(r"\[\d+\].*", "", where)
    found = [setting for setting in settings if name == setting.name or name.startswith(f"{setting.name}.")]
    if not found:
        below = [setting for setting in settings if setting.name.startswith(f"{name}.")]
        # Of a mapping such as env, several may have set something; the error quotes the key it is about.
        found = [setting for setting in below if f"'{setting.path[-1]}'" in sentence] or below
    if found:
        source = _only_source(found)
        if source is None or source == COMMAND_LINE:
            return None
        if source.startswith("--"):
            return source
        return source + where[len(name) :] if source.startswith("HVDKIT_") else f"{source}: {where}"
    # A part of the spec lacks something: whoever set the rest of it must add it.
    part = name.rpartition(".")[0]
    source = _only_source([setting for setting in settings if part and setting.name.startswith(f"{part}.")])
    return f"{source}: {where}" if source else None


def _only_source(settings: list[Setting]) -> str | None:
    sources = {setting.source for setting in settings} - {DEFAULT}
    return sources.pop() if len(sources) == 1 else None
