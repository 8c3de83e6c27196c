"""Images that buildah built, for containerd: an archive of the layers that it does not have yet.

An image with torch in it has gigabytes, and a change of a few files must not cost writing them all again.
"""

import json
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

from .problem import Problem

_BLOBS = Path("blobs/sha256")


def identity(image: str) -> str | None:
    """What tells an image of buildah's from another of the same name; None where there is none."""
    if shutil.which("buildah") is None:
        return None
    done = subprocess.run(["buildah", "inspect", "--type", "image", image], capture_output=True, text=True)
    return json.loads(done.stdout)["FromImageID"] if done.returncode == 0 else None


def full_name(image: str) -> str:
    """As containerd spells what a manifest calls by the short name."""
    return f"docker.io/library/{image.removeprefix('localhost/')}"


def pack_new_layers(image: str, content: Path, folder: Path) -> Path:
    """Write the image without what is in containerd's content folder already: the archive."""
    layout = folder / "layout"
    shutil.rmtree(folder, ignore_errors=True)
    (layout / _BLOBS).mkdir(parents=True)
    there = content / _BLOBS
    known = {blob.name for blob in there.iterdir()} if there.is_dir() else set()
    for name in known:  # what is found here is not written again
        os.link(there / name, layout / _BLOBS / name)
    # Not by `buildah push`, which would compress all layers, and that takes minutes.
    copy = ["skopeo", "copy", "--quiet", "--dest-oci-accept-uncompressed-layers"]
    words = [*copy, f"containers-storage:{image}", f"oci:{layout}:image"]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise Problem(f"`{' '.join(words)}` failed: {done.stderr.strip()}")
    index = layout / "index.json"
    listed = json.loads(index.read_text())
    listed["manifests"][0]["annotations"] = {"io.containerd.image.name": full_name(image)}
    index.write_text(json.dumps(listed))
    archive = folder / f"{image.rpartition('/')[2].replace(':', '-')}.tar"
    with tarfile.open(archive, "w") as tar:
        for name in ("oci-layout", "index.json"):
            tar.add(layout / name, name)
        for blob in (layout / _BLOBS).iterdir():
            if blob.name not in known:
                tar.add(blob, str(_BLOBS / blob.name))
    shutil.rmtree(layout)
    return archive
