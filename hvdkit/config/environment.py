"""HVDKIT_* variables: each field of a JobSpec by its path, HVDKIT_WORKERS or HVDKIT_RESOURCES_GPUS. Pure."""

import difflib
from collections.abc import Mapping
from typing import Any, get_origin

from hvdkit.config.file import parse
from hvdkit.config.reading import Path, bare, is_mapping, types_of
from hvdkit.config.settings import Setting, declared_defaults, settings_of, sources_named
from hvdkit.jobs.spec import JobSpec

PREFIX = "HVDKIT_"
CONFIG_VARIABLE = "HVDKIT_CONFIG"
PROFILE_VARIABLE = "HVDKIT_PROFILE"


def variables() -> dict[str, Path]:
    """The variable of every field."""
    return {variable(path): path for path, _ in declared_defaults(JobSpec)}


def variable(path: Path) -> str:
    return PREFIX + "_".join(path).upper()


def read_environment(environment: Mapping[str, str]) -> list[Setting]:
    """The settings in the environment; an empty variable sets nothing.

    A pod or rank has HVDKIT_* variables that describe the job it belongs to; they are not settings of the next one.
    """
    if "HVDKIT_JOB" in environment or "HVDKIT_WORLD_SIZE" in environment:
        return []
    found: list[Setting] = []
    for name, path in variables().items():
        text = environment.get(name)
        if text:
            value = parse(text, name) if is_structured(path) else text
            data: Any = value
            for key in reversed(path):
                data = {key: data}
            fault = Setting(path=path, value=text, source=name)
            with sources_named([fault]):
                found += settings_of(data, name)
    return found


def without_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment for a launch that is to obey its flags only; folders such as HVDKIT_DATA_DIR stay."""
    settings = {*variables(), CONFIG_VARIABLE, PROFILE_VARIABLE}
    return {name: value for name, value in environment.items() if name not in settings}


def is_structured(path: Path) -> bool:
    """Whether the field is a list or a mapping, which its variable holds as YAML: [a, b] or {a: b}."""
    part: Any = JobSpec
    for key in path:
        part, _ = bare(types_of(part)[key])
    return is_mapping(part) or get_origin(part) is tuple


def likely_typos(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that are no settings but look like one, and the one they look like."""
    known = [*variables(), CONFIG_VARIABLE, PROFILE_VARIABLE]
    typos = {}
    for name in environment:
        if name.startswith(PREFIX) and name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.9)
            if near:
                typos[name] = near[0]
    return typos
