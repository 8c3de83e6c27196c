"""Builds the images of the tests where no registry can be reached: on a Debian made of packages, with buildah.

    python tests/e2e/image_store.py [further words of `hvdkit image build`]

The Dockerfile and the command are the users'; only the base image is ours. buildah keeps every layer, so that a second
run takes seconds.
"""

import hashlib
import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

from hvdkit import __version__
from hvdkit.horovod_wheel import cache

SUITE = "bookworm"
PACKAGES = {name: name for name in ("buildah", "podman", "skopeo", "runc", "mmdebstrap")}
# As Debian's slim images do it: nobody reads manuals in a container.
SLIM = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/info/*", "/usr/share/locale/*", "/usr/share/lintian/*")
CERTIFICATES = Path("/usr/local/share/ca-certificates")
WORKER = f"localhost/hvdkit-worker:{__version__}"
LAUNCHER = f"localhost/hvdkit-launcher:{__version__}"
NFS_SERVER = f"localhost/hvdkit-nfs:{__version__}"


def run(*command: str | Path, **options) -> str:
    """Run to the end; the output in the error where it fails."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stderr[-3000:]}"
    return done.stdout


def folder() -> Path:
    """Where base images and archives are kept between runs."""
    found = cache.root().parent / "images"
    found.mkdir(parents=True, exist_ok=True)
    return found


def install_tools() -> None:
    """Install what is missing, from Debian."""
    missing = [package for program, package in PACKAGES.items() if shutil.which(program) is None]
    if not missing:
        return
    assert os.geteuid() == 0, f"install {', '.join(missing)}, or run this as root, which installs them"
    run("apt-get", "update", "-qq")
    words = ("apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing)
    run(*words, env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"})


def base_image() -> str:
    """A Debian like debian:bookworm-slim; it trusts the certificates that this machine trusts."""
    excluded = [f"--dpkgopt=path-exclude={pattern}" for pattern in SLIM]
    recipe = ["--variant=minbase", "--include=ca-certificates", *excluded, SUITE]
    certificates = sorted(CERTIFICATES.glob("*.crt")) if CERTIFICATES.is_dir() else []
    digest = hashlib.sha256(json.dumps(recipe).encode())
    for certificate in certificates:
        digest.update(certificate.read_bytes())
    name = f"localhost/hvdkit-test-base:{digest.hexdigest()[:12]}"
    if has(name):
        return name
    rootfs = folder() / f"base-{digest.hexdigest()[:12]}.tar"
    if not rootfs.exists():
        copies = [f"--customize-hook=copy-in {one} {CERTIFICATES}" for one in certificates]
        hooks = [f'--customize-hook=mkdir -p "$1{CERTIFICATES}"', *copies]
        hooks.append('--customize-hook=chroot "$1" update-ca-certificates')
        new = rootfs.with_suffix(".new.tar")
        run("mmdebstrap", "--mode=root", *hooks, *recipe, new)
        new.rename(rootfs)
    container = run("buildah", "from", "scratch").strip()
    try:
        run("buildah", "add", "--quiet", container, rootfs, "/")
        run("buildah", "config", "--cmd", "bash", container)
        run("buildah", "commit", "--quiet", container, name)
    finally:
        run("buildah", "rm", container)
    return name


def has(name: str) -> bool:
    """Whether the store has an image of this name."""
    return subprocess.run(["buildah", "inspect", "--type", "image", name], capture_output=True).returncode == 0


def builder_words() -> list[str]:
    """What buildah needs on a machine with low limits and without a network of its own for containers."""
    words = ["--network=host", "--runtime=runc"]
    for name, number in (("nofile", resource.RLIMIT_NOFILE), ("nproc", resource.RLIMIT_NPROC)):
        most = resource.getrlimit(number)[1]
        limit = 16384 if most == resource.RLIM_INFINITY else min(most, 16384)
        words.append(f"--ulimit={name}={limit}:{limit}")
    return words


def build(*words: str) -> int:
    """`hvdkit image build` on our base; its exit code."""
    install_tools()
    hvdkit = [sys.executable, "-m", "hvdkit", "image", "build", "--builder=buildah", f"--base={base_image()}"]
    return subprocess.call([*hvdkit, *(f"--builder-arg={word}" for word in builder_words()), *words])


def build_nfs_server() -> None:
    """The image of nfs/, on our base."""
    words = [*builder_words(), "--layers", "--quiet", f"--build-arg=BASE={base_image()}", f"--tag={NFS_SERVER}"]
    run("buildah", "build", *words, Path(__file__).parents[2] / "nfs")


def require(*names: str) -> None:
    """Fail with the way out when an image is not there."""
    missing = [name for name in names if shutil.which("buildah") is None or not has(name)]
    assert not missing, f"{', '.join(missing)}: not built yet; run `make images` first (it needs the network)"


if __name__ == "__main__":
    code = build(*sys.argv[1:])
    build_nfs_server()
    sys.exit(code)
