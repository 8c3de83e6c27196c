"""Everything that was said about a job, from all the places where it can be said."""

import os
from collections.abc import Mapping
from pathlib import Path

from hvdkit.config.environment import CONFIG_VARIABLE, PROFILE_VARIABLE, read_environment
from hvdkit.config.file import FILE_NAME, read_file
from hvdkit.config.settings import Setting, merge
from hvdkit.errors import InputError


def load_settings(
    flags: list[Setting],
    environment: Mapping[str, str],
    *,
    config: str | None = None,
    profile: str | None = None,
) -> list[Setting]:
    """Flags over environment over file. The file is --config, HVDKIT_CONFIG, or hvdkit.yaml in this folder; /dev/null
    means none."""
    named = config or environment.get(CONFIG_VARIABLE)
    chosen = profile or environment.get(PROFILE_VARIABLE) or None
    file = Path(named or FILE_NAME)
    if named and not file.exists():
        raise InputError(f"{'--config' if config else CONFIG_VARIABLE}: there is no file {named}.")
    there = named != os.devnull and file.exists()
    if not there and chosen:
        asked = f"--profile {chosen}" if profile else f"{PROFILE_VARIABLE}={chosen}"
        raise InputError(f"{asked}: profiles stand in {FILE_NAME}, and there is none in this folder.")
    from_file = read_file(file, chosen) if there else []
    return merge(from_file, read_environment(environment), flags)
