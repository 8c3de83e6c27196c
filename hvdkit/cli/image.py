"""`hvdkit image`: build the images of launcher and workers, and images of a user's own project."""

import json
import shlex
import tempfile
import time
from pathlib import Path

import click

from hvdkit import __version__

LOGS = "images"


@click.group(
    epilog="\b\nExamples:\n  hvdkit image build\n"
    "  hvdkit image user --image registry.example.com/me/train:1 . && hvdkit launch --image …"
)
def command() -> None:
    """Build container images with docker, podman or buildah, whichever works here."""


def _builder_options(function):
    options = (
        click.option("--builder", type=click.Choice(("docker", "podman", "buildah")), help="Instead of the first."),
        click.option(
            "--builder-arg",
            "builder_args",
            multiple=True,
            metavar="WORD",
            help="A further word for the builder, such as --builder-arg=--no-cache; can be given again.",
        ),
        click.option("--push", is_flag=True, help="Send the image to the registry in its name."),
        click.option("--dry-run", is_flag=True, help="Print the commands and run nothing."),
        click.option("--verbose", is_flag=True, help="Show the builder's output."),
        click.option("--json", "as_json", is_flag=True, help="Print the result as JSON."),
    )
    for option in reversed(options):
        function = option(function)
    return function


@command.command(
    epilog="\b\nExamples:\n  hvdkit image build\n  hvdkit image build --cuda --target worker\n"
    "  hvdkit image build --registry registry.example.com/team --push"
)
@click.option("--cuda", is_flag=True, help="For GPUs: Horovod with NCCL. Building needs no GPU.")
@click.option("--target", type=click.Choice(("launcher", "worker")), help="Only this one; both by default.")
@click.option("--tag", metavar="TAG", help="What stands after the colon; by default the version, and latest.")
@click.option("--registry", metavar="PREFIX", help="What stands before the name, as registry.example.com/team.")
@click.option(
    "--base",
    metavar="IMAGE",
    help="A Debian or Ubuntu image with Python 3.11 or newer to build on; debian:bookworm-slim by default.",
)
@click.option("--monarch", is_flag=True, help="Add Monarch, for --backend monarch.")
@_builder_options
def build(
    cuda: bool,
    target: str | None,
    tag: str | None,
    registry: str | None,
    base: str | None,
    monarch: bool,
    **options,
) -> None:
    """Build hvdkit's own images, hvdkit-launcher and hvdkit-worker.

    Horovod comes from the wheel cache when that has the right wheel (see hvdkit horovod build), else the build
    compiles it.
    """
    from hvdkit.images import own

    with tempfile.TemporaryDirectory(prefix="hvdkit-image-") as folder:
        wheels = Path(folder)
        if not options["dry_run"]:
            own.collect_wheels(wheels, cuda=cuda)
        builds = [
            own.own_build(
                one,
                wheels=wheels,
                names=own.image_names(one, cuda=cuda, registry=registry, tag=tag),
                cuda=cuda,
                monarch=monarch,
                base=base,
            )
            for one in ([target] if target else own.TARGETS)
        ]
        _run(builds, **options)


@command.command(epilog="\b\nExamples:\n  hvdkit image user --image registry.example.com/me/train:1 --push my-project/")
@click.argument("project", type=click.Path(path_type=Path, exists=True, file_okay=False), default=".")
@click.option("--image", required=True, metavar="NAME", help="The new image's name; hvdkit launch --image takes it.")
@click.option("--base", metavar="IMAGE", help=f"What to build on; hvdkit-worker:{__version__} by default.")
@_builder_options
def user(project: Path, image: str, base: str | None, **options) -> None:
    """Build an image of your own project: its requirements.txt and its files, in /workspace, where jobs start.

    What .dockerignore names stays out; without one, .git, virtual environments, caches and what looks like a secret
    (.env, .netrc, kubeconfig, *.pem, SSH keys) do. torch stays as it is: Horovod was compiled for it.
    """
    from hvdkit.images.own import image_names
    from hvdkit.images.user import user_build

    with tempfile.TemporaryDirectory(prefix="hvdkit-image-") as folder:
        base = base or image_names("worker")[0]
        _run([user_build(project.resolve(), image=image, base=base, folder=Path(folder))], **options)


def _run(
    builds: list,
    *,
    builder: str | None,
    builder_args: tuple[str, ...],
    push: bool,
    dry_run: bool,
    verbose: bool,
    as_json: bool,
) -> None:
    """Build each image, push it where asked, and say what came out."""
    from hvdkit.horovod_wheel import cache
    from hvdkit.images import builders

    builder = builders.find(builder)
    results = []
    for one in builds:
        name, started = one.names[0], time.monotonic()
        commands = [(f"building {name}", builders.build_command(builder, one, builder_args))]
        if push:
            commands += [(f"pushing {pushed}", builders.push_command(builder, pushed)) for pushed in one.names]
        for what, words in commands:
            if dry_run:
                click.echo(shlex.join(words))
                continue
            log = cache.root().parent / LOGS / f"{name.rpartition('/')[2].replace(':', '-')}.log"
            builders.run_steps(what, words, log, verbose=verbose)
        seconds = round(time.monotonic() - started, 1)
        results.append({"names": list(one.names), "builder": builder, "pushed": push, "seconds": seconds})
    if dry_run:
        return
    if as_json:
        click.echo(json.dumps({"version": 1, "images": results}, indent=2))
        return
    for result in results:
        click.echo(
            f"{' '.join(result['names'])}: {'built and pushed' if push else 'built'} in {result['seconds']:.0f} s"
        )
