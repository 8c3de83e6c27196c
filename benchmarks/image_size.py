"""Sizes of the images against the wheels that they must contain, and what a rebuild and a start cost.

    python benchmarks/image_size.py [--part sizes] [--output FILE]

Needs root and the network, and the images of `make images`. A full build here finds its downloads in pip's cache, as a
rebuild on a user's machine does; layers are made anew.
"""

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from machine_facts import machine_facts

REPOSITORY = Path(__file__).parents[1]
sys.path[:0] = [str(REPOSITORY / "tests/e2e"), str(REPOSITORY / "tests/local")]

from containers import LIMITS, PODMAN, RESTRICTED, run_in  # noqa: E402
from image_store import LAUNCHER, WORKER, base_image, builder_words, require, run  # noqa: E402
from pods import free_port, make_keys  # noqa: E402

CONTEXT = (
    "hvdkit",
    "images",
    "setup.cfg",
    "pyproject.toml",
    "constraints.txt",
    "README.md",
    "LICENSE",
    ".dockerignore",
)
# Sizes of the installed files as their wheels brought them: without the bytecode that pip adds.
INSTALLED = """
import importlib.metadata as metadata, json, os
sizes = {}
for found in metadata.distributions():
    files = [file for file in found.files or [] if "__pycache__" not in file.parts]
    sizes[found.name] = sum(os.path.getsize(file.locate()) for file in files if os.path.exists(file.locate()))
print(json.dumps(sizes))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="starts of a container that are timed")
    parser.add_argument("--part", choices=("sizes", "starts", "builds"), action="append", help="all by default")
    parser.add_argument("--output", type=Path, help="results go here; parts that are not measured now stay in it")
    options = parser.parse_args()
    require(LAUNCHER, WORKER)
    parts = {"sizes": sizes, "starts": lambda: starts(options.rounds), "builds": builds}
    before = json.loads(options.output.read_text()) if options.output and options.output.exists() else {}
    result = before | {"version": 1, "machine": machine_facts()}
    result |= {name: measure() for name, measure in parts.items() if name in (options.part or parts)}
    print(json.dumps(result, indent=2))
    if options.output:
        options.output.write_text(json.dumps(result, indent=2) + "\n")


def sizes() -> dict:
    """Both images, and how small the launcher is beside the worker."""
    found = {"launcher": sizes_of(LAUNCHER, "launcher"), "worker": sizes_of(WORKER, "worker")}
    ratios = {
        f"launcher_{kind}_of_worker": round(found["launcher"][kind] / found["worker"][kind], 3)
        for kind in ("image", "image_compressed")
    }
    return found | ratios


def sizes_of(image: str, *lists: str) -> dict:
    """Bytes of an image, packed and unpacked, and of the wheels in it, which these lists of packages name."""
    wheels, unpacked = packed_wheels(image, *lists), json.loads(run_in(image, "python", "-c", INSTALLED))
    found = {
        "image": json.loads(run(*PODMAN, "image", "inspect", image))[0]["Size"],
        "image_compressed": compressed(image),
        "wheels": sum(unpacked.values()),
        "wheels_compressed": sum(wheels.values()),
        "largest_wheels": dict(sorted(wheels.items(), key=lambda item: -item[1])[:8]),
    }
    for kind in ("image", "image_compressed"):
        found[f"{kind}_of_wheels"] = round(found[kind] / found[kind.replace("image", "wheels")], 3)
    return found


def packed_wheels(image: str, *lists: str) -> dict[str, int]:
    """The size of every wheel on the package index that the image was made of."""
    listed = run_in(image, "cat", *(f"/opt/hvdkit/share/hvdkit/{name}.txt" for name in lists))
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "list.txt").write_text(listed)
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--no-deps"]
        run(*pip, "--report", f"{folder}/report.json", "-r", f"{folder}/list.txt")
        chosen = json.loads((Path(folder) / "report.json").read_text())["install"]
    wheels = {}
    for package in chosen:
        request = urllib.request.Request(package["download_info"]["url"], method="HEAD")
        with urllib.request.urlopen(request, timeout=60) as answer:
            wheels[package["metadata"]["name"]] = int(answer.headers["Content-Length"])
    return wheels


def compressed(image: str) -> int:
    """Bytes that a registry would hold and a node would pull."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        run("buildah", "push", "--quiet", "--disable-compression=false", image, f"oci:{folder}/image:latest")
        return sum(blob.stat().st_size for blob in Path(folder, "image/blobs/sha256").iterdir())


def builds() -> dict:
    """Seconds of a full build of both images, of a second one, and of one after a change of one line of code."""
    with tempfile.TemporaryDirectory(prefix="hvdkit-benchmark-") as folder:
        copy = Path(folder)
        for name in CONTEXT:
            source = REPOSITORY / name
            if source.is_dir():
                shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy2(source, copy)
        # A build with --no-cache leaves no layers behind; the second one does, and finds some of `make images`.
        seconds = {"full": build(copy, "--no-cache"), "second": build(copy)}
        with (copy / "hvdkit/train/loop.py").open("a") as module:
            module.write("# one more line\n")
        seconds["one_line_changed"] = build(copy)
    run("buildah", "rmi", *(f"localhost/hvdkit-{role}:benchmark" for role in ("launcher", "worker")))
    return seconds | {"one_line_changed_of_full": round(seconds["one_line_changed"] / seconds["full"], 3)}


def build(source: Path, *further: str) -> float:
    """Both images, from the sources in this folder, under names of their own."""
    words = [sys.executable, "-m", "hvdkit", "image", "build", "--builder=buildah", "--tag=benchmark"]
    words += [f"--base={base_image()}", *(f"--builder-arg={word}" for word in (*builder_words(), *further))]
    began = time.monotonic()
    run(*words, cwd=source, env=os.environ | {"PYTHONPATH": str(source)})
    return round(time.monotonic() - began, 1)


def starts(rounds: int) -> dict:
    """Seconds from `podman run` to the first word of the SSH server, and of a container that does nothing."""
    taken: dict[str, list[float]] = {"nothing": [], "ssh": []}
    with tempfile.TemporaryDirectory() as folder:
        keys = make_keys(Path(folder))
        for _ in range(rounds):
            began = time.monotonic()
            run_in(WORKER, "true")
            taken["nothing"].append(time.monotonic() - began)
            taken["ssh"].append(ssh_seconds(keys))
    return {name: {"median": round(statistics.median(all_), 2), "all": all_} for name, all_ in taken.items()}


def ssh_seconds(keys: Path) -> float:
    port, name = free_port(), "hvdkit-benchmark-start"
    words = [*PODMAN, "run", "--rm", "--replace", f"--name={name}", "--network=host", *LIMITS, *RESTRICTED]
    words += ["--tmpfs=/tmp", f"--volume={keys}:/etc/hvdkit/ssh:ro", "--env=HVDKIT_SSH_FOLDER=/etc/hvdkit/ssh"]
    began = time.monotonic()
    with subprocess.Popen([*words, f"--env=HVDKIT_SSH_PORT={port}", WORKER], stderr=subprocess.PIPE) as process:
        try:
            while not answers(port):
                assert process.poll() is None, process.stderr.read().decode()
                assert time.monotonic() - began < 120, "the SSH server does not answer"
                time.sleep(0.01)
            return time.monotonic() - began
        finally:
            run(*PODMAN, "rm", "--force", "--time=0", name)


def answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False


if __name__ == "__main__":
    main()
