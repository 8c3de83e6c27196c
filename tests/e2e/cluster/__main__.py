"""`python -m tests.e2e.cluster`: a real Kubernetes in namespaces of its own, from the repository's folder, as root."""

import argparse
import os
import subprocess
import sys
from pathlib import Path

from . import cluster, images, lifecycle, namespaces
from .places import Places
from .problem import Problem


def main() -> int:
    os.environ["PATH"] += ":/usr/local/sbin:/usr/sbin:/sbin"  # where Debian keeps runc and iptables
    words = sys.argv[1:]
    end = words.index("--") if "--" in words else len(words)
    arguments = _parser().parse_args(words[:end])
    arguments.command = words[end + 1 :] or ["bash"]
    try:
        return arguments.action(arguments) or 0
    except Problem as problem:
        print(f"cluster: {problem}", file=sys.stderr)
        return 3
    except KeyboardInterrupt:
        return 130


def _build(arguments: argparse.Namespace) -> None:
    lifecycle.prepare(arguments.image)


def _run(arguments: argparse.Namespace) -> int:
    if not arguments.prepared:
        lifecycle.prepare(arguments.image)
    return lifecycle.run(arguments.name, arguments.nodes, arguments.gpus, arguments.command)


def _up(arguments: argparse.Namespace) -> None:
    lifecycle.prepare(arguments.image)
    lifecycle.up(arguments.name, arguments.nodes, arguments.gpus)


def _enter(arguments: argparse.Namespace) -> None:
    lifecycle.enter(arguments.name, arguments.command)


def _down(arguments: argparse.Namespace) -> None:
    lifecycle.down(arguments.name)


def _first_process(arguments: argparse.Namespace) -> int:
    places = Places(arguments.folder) if arguments.folder else None
    return namespaces.first_process(places, arguments.command)


def _start(arguments: argparse.Namespace) -> int:
    places = Places(arguments.folder)
    cluster.start(places, nodes=arguments.nodes, gpus=arguments.gpus)
    print(f"cluster: ready after {places.ready.read_text().strip()} s", file=sys.stderr, flush=True)
    try:
        code = subprocess.call(arguments.command)
    except FileNotFoundError as error:
        raise Problem(f"{arguments.command[0]} is not a command here: {error.strerror}") from None
    return code if code >= 0 else 128 - code


def _import_images(arguments: argparse.Namespace) -> None:
    images.import_archives([Path(archive) for archive in arguments.command])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.cluster", description=__doc__)
    actions = parser.add_subparsers(required=True, metavar="ACTION")

    image = argparse.ArgumentParser(add_help=False)
    image.add_argument(
        "--image",
        action="append",
        default=[],
        metavar="IMAGE",
        help="for its pods: an archive, or the name of an image that buildah has",
    )
    size = argparse.ArgumentParser(add_help=False)
    size.add_argument("--nodes", type=int, default=1)
    size.add_argument("--gpus", type=int, default=4, help="pretended GPUs a node (default: 4)")
    name = argparse.ArgumentParser(add_help=False)
    name.add_argument("--name", default="dev", help="default: dev")
    folder = argparse.ArgumentParser(add_help=False)
    folder.add_argument("--folder", type=Path)

    def add(word: str, action: object, *parents: argparse.ArgumentParser, **words: str) -> argparse.ArgumentParser:
        added = actions.add_parser(word, parents=parents, **words)
        added.set_defaults(action=action)
        return added

    in_it = {"usage": "%(prog)s [options] [-- COMMAND]", "epilog": "Without a command: bash."}
    add("build", _build, image, help="install, build and import what a cluster needs, and no more")
    run = add("run", _run, image, size, help="run a command in a new cluster, which ends with it", **in_it)
    run.add_argument("--name", help="default: the first free one")
    run.add_argument("--prepared", action="store_true", help="skip what `build` does")
    add("up", _up, image, size, name, help="start a cluster that stays")
    add("enter", _enter, name, help="run a command in the cluster that `up` started", **in_it)
    add("down", _down, name, help="end it")
    # What these start inside new namespaces.
    add("first-process", _first_process, folder)
    add("start", _start, folder, size)
    add("import-images", _import_images)
    return parser


if __name__ == "__main__":
    sys.exit(main())
