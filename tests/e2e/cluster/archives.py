"""Images without a registry and without a builder: some files as one layer, in an archive that containerd imports."""

import hashlib
import io
import json
import platform
import tarfile
from pathlib import Path

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


# By path in the image: a file here, the target of a symbolic link, or None for an empty folder.
Files = dict[str, Path | str | None]


def pack(archive: Path, name: str, files: Files, *, entrypoint: list[str], user: str = "") -> None:
    """Write an image of these files under a name."""
    layer = _layer(files)
    configuration = _json(
        {
            "architecture": _ARCHITECTURES[platform.machine()],
            "os": "linux",
            "config": {"Entrypoint": entrypoint, "User": user, "Env": ["PATH=/bin:/"]},
            "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
        }
    )
    image = "application/vnd.oci.image"
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": f"{image}.manifest.v1+json",
            "config": _descriptor(f"{image}.config.v1+json", configuration),
            "layers": [_descriptor(f"{image}.layer.v1.tar", layer)],
        }
    )
    listed = _descriptor(f"{image}.manifest.v1+json", manifest)
    listed["annotations"] = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name}
    with tarfile.open(archive, "w") as tar:
        _add(tar, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
        _add(tar, "index.json", _json({"schemaVersion": 2, "manifests": [listed]}))
        for blob in (configuration, manifest, layer):
            _add(tar, f"blobs/sha256/{_digest(blob).removeprefix('sha256:')}", blob)


def names_and_fingerprint(archive: Path) -> tuple[set[str], str]:
    """The images in an archive, and what tells it from another of the same name, without reading its layers."""
    names: set[str] = set()
    lists = []
    with tarfile.open(archive) as tar:
        for item in tar:
            if item.name in ("index.json", "manifest.json") and (file := tar.extractfile(item)):
                lists.append(file.read())
    for content in map(json.loads, lists):
        if isinstance(content, list):  # as `docker save` writes it
            names.update(name for image in content for name in image.get("RepoTags") or ())
        else:
            notes = [image.get("annotations", {}) for image in content["manifests"]]
            names.update(note["io.containerd.image.name"] for note in notes if "io.containerd.image.name" in note)
    return names, hashlib.sha256(b"".join(sorted(lists))).hexdigest()


def _layer(files: Files) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for path, source in sorted(files.items()):
            item = tarfile.TarInfo(path)
            if source is None:
                item.type, item.mode = tarfile.DIRTYPE, 0o1777
                tar.addfile(item)
            elif isinstance(source, str):
                item.type, item.linkname = tarfile.SYMTYPE, source
                tar.addfile(item)
            else:
                _add(tar, path, source.read_bytes(), mode=0o755)
    return buffer.getvalue()


def _add(tar: tarfile.TarFile, path: str, content: bytes, mode: int = 0o644) -> None:
    item = tarfile.TarInfo(path)
    item.size, item.mode = len(content), mode
    tar.addfile(item, io.BytesIO(content))


def _descriptor(kind: str, blob: bytes) -> dict:
    return {"mediaType": kind, "digest": _digest(blob), "size": len(blob)}


def _digest(blob: bytes) -> str:
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"


def _json(content: dict) -> bytes:
    return json.dumps(content, sort_keys=True).encode()
