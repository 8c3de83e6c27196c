"""Where the files of a public data set come from: a folder that the user names, a usual one, or a download."""

import contextlib
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from hvdkit.errors import HvdkitError, InputError
from hvdkit.runtime.engine import Engine
from hvdkit.runtime.session import on_every_rank
from hvdkit.train.datasets import cache
from hvdkit.train.settings import TrainSettings

_NETWORK_SECONDS = 15  # torchvision downloads without a time limit of its own


class Content(NamedTuple):
    """What a folder has of a data set."""

    files: list[Path]
    """Those that would be read."""

    missing: list[str]
    """Those that it lacks, as paths below the folder."""


@dataclass(frozen=True, kw_only=True)
class PublicData:
    """A data set that anybody can download."""

    name: str
    look: Callable[[Path], Content]
    download: Callable[[Path], Path]
    """Fetches the data set into an empty folder, checks what came, and returns the folder to keep."""

    top: str
    """The name of that folder."""


class Unavailable(HvdkitError):
    """No rank, or not every rank, can get the files. Raised on all ranks, with the same reason."""


def locate(public: PublicData, settings: TrainSettings, engine: Engine) -> Path:
    """The folder with the files, on every rank; a copy of it when there is a --cache-dir."""
    folder = on_every_rank(engine, lambda: _named_folder(public, settings) or _usual_folder(public))
    # Found on some hosts only, it must be fetched on the others, so that all ranks train on the same.
    if not all(engine.gather(folder is not None)):
        folder = _downloaded(public, engine)
    if settings.cache_dir is None or folder.parent == settings.cache_dir:  # the latter: only the copy is left
        return folder
    return on_every_rank(engine, lambda: _copied(public, folder, settings.cache_dir, engine))


def named(settings: TrainSettings) -> tuple[Path, str] | None:
    """The folder that the user names, and what names it."""
    if settings.data_dir is not None:
        return settings.data_dir, "--data-dir"
    if os.environ.get("HVDKIT_DATA_DIR"):
        return Path(os.environ["HVDKIT_DATA_DIR"]), "HVDKIT_DATA_DIR"
    return None


def user_cache() -> Path:
    """Where downloads are kept for the next run."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "hvdkit" / "data"


def _named_folder(public: PublicData, settings: TrainSettings) -> Path | None:
    """The named folder, where the files must be; or its copy, if that is all that can be reached."""
    found = named(settings)
    if found is None:
        return None
    folder, origin = found
    try:
        missing = public.look(folder).missing
    except OSError as error:  # no permission, a stale NFS handle
        raise InputError(f"{origin}: {error.filename} cannot be read: {error.strerror}.") from None
    if not missing:
        return folder
    if settings.cache_dir is not None:
        copy = cache.place(folder, settings.cache_dir)
        if not public.look(copy).missing:
            return copy
    more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
    raise InputError(
        f"{origin}: {folder} on {socket.gethostname()} lacks {missing[0]}{more}; name a folder that has "
        f"{public.name}, or train with --data synthetic."
    )


def _usual_folder(public: PublicData) -> Path | None:
    for folder in (Path("../shared/data"), user_cache()):
        with contextlib.suppress(OSError):  # nobody asked for this one
            if not public.look(folder).missing:
                return folder
    return None


def _downloaded(public: PublicData, engine: Engine) -> Path:
    """Fetch the data set into the user's cache on this host, by one rank."""
    folder, problem = user_cache(), None
    if engine.local_rank == 0:
        before = socket.getdefaulttimeout()
        socket.setdefaulttimeout(_NETWORK_SECONDS)
        try:
            cache.make_once(folder / public.top, lambda: not public.look(folder).missing, public.download)
        except (OSError, RuntimeError, ImportError) as error:
            problem = str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
        finally:
            socket.setdefaulttimeout(before)
    problems = [found for found in engine.gather(problem) if found]
    if problems:
        raise Unavailable(problems[0])
    return folder


def _copied(public: PublicData, folder: Path, cache_dir: Path, engine: Engine) -> Path:
    """The copy of the folder's files on the local disk, made by one rank of this host."""
    copy = cache.place(folder, cache_dir)
    if engine.local_rank == 0:
        try:
            cache.copy_files(public.look(folder).files, folder, copy)
        except OSError as error:
            raise cache.unwritable(cache_dir, error) from None
    return copy
