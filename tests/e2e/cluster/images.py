"""The images of the cluster, unpacked once into a containerd root in the cache; each node starts on a copy of it.

The copy is made of hard links, so that gigabytes come in a second and nothing that a cluster does, however it ends,
reaches the cache.
"""

import fcntl
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from . import built
from .archives import Files, names_and_fingerprint, pack
from .build import program
from .containerd import ask_containerd, write_configuration
from .namespaces import in_own_namespaces
from .places import cache
from .problem import Problem
from .processes import Processes, wait_until

PAUSE = "localhost/pause:1"
BUSYBOX = "localhost/busybox:1"
MPI_OPERATOR = "localhost/mpi-operator:1"
TRAINING_OPERATOR = "localhost/training-operator:1"
_NOBODY = "65534:65534"


def prepare(further: Iterable[str] = ()) -> None:
    """Have the cluster's own images and these in the cache: archives, or images that buildah has."""
    # One after the other, so that none is packed with layers that the one before has brought.
    steps = [[], *([one] for one in further)]
    with _locked():
        for step in steps:
            missing = _missing(step)
            try:
                _import(missing)
            except Problem as problem:
                # Whatever an import that was cut off left in the cache: it is only a cache.
                print(f"cluster: {problem}; importing all images anew", file=sys.stderr, flush=True)
                shutil.rmtree(_store(), ignore_errors=True)
                for again in steps:
                    _import(_missing(again))
                return


def _missing(further: list[str]) -> dict[str, dict[str, str]]:
    """Archives to import: what each holds, by name and fingerprint."""
    known = _imported()
    missing = {}
    for archive in [*_own_archives(), *(Path(one) for one in further if Path(one).is_file())]:
        names, fingerprint = names_and_fingerprint(archive)
        if not names:
            raise Problem(f"{archive} holds no image with a name: save it with one, as `docker save NAME` does")
        if any(known.get(name) != fingerprint for name in names):
            missing[str(archive)] = dict.fromkeys(names, fingerprint)
    for image in [one for one in further if not Path(one).is_file()]:
        identity = built.identity(image)
        if identity is None:
            raise Problem(f"{image} is not there: no such archive, and buildah has no such image (`make images`)")
        if known.get(built.full_name(image)) != identity:
            archive = built.pack_new_layers(image, _store() / "io.containerd.content.v1.content", cache() / "new")
            missing[str(archive)] = {built.full_name(image): identity}
    return missing


def _import(missing: dict[str, dict[str, str]]) -> None:
    if not missing:
        return
    print(f"cluster: importing {', '.join(Path(path).name for path in missing)}", file=sys.stderr, flush=True)
    in_own_namespaces("import-images", "--", *missing)
    known = _imported()
    for marks in missing.values():
        known |= marks
    _record().write_text(json.dumps(known, indent=1))
    shutil.rmtree(cache() / "new", ignore_errors=True)


def import_archives(archives: list[Path]) -> None:
    """Unpack into the cache. Runs in namespaces of its own, which end the containerd that does it."""
    folder = cache() / "import"
    shutil.rmtree(folder, ignore_errors=True)
    processes = Processes(folder)
    socket = Path("/run/import/containerd.sock")
    configuration = write_configuration(folder, root=_store(), socket=socket)
    processes.start("containerd", ["containerd", "--config", str(configuration)])
    wait_until(lambda: ask_containerd(socket, "version"), "containerd answers", processes, ["containerd"])
    for archive in archives:
        import_into(socket, archive)
    processes.stop("containerd")


def import_into(socket: Path, archive: Path) -> None:
    """Import an archive into a containerd that runs, for pods."""
    images = ["--namespace", "k8s.io", "images"]
    # The new image takes over the old one's name before its own layers are unpacked, and containerd's collector
    # would remove the old layers, on which the new ones stand, meanwhile. A second name keeps them.
    held = sorted(names_and_fingerprint(archive)[0])
    for name in held:
        ask_containerd(socket, *images, "tag", "--force", name, f"{name}-before")
    done = subprocess.run(
        ["ctr", "--address", str(socket), *images, "import", str(archive)], capture_output=True, text=True
    )
    if done.returncode:
        raise Problem(f"containerd cannot import {archive}: {done.stderr.strip()}")
    ask_containerd(socket, *images, "rm", *(f"{name}-before" for name in held))


def copy_for_node(root: Path) -> None:
    """Give a node's containerd everything that was imported."""
    root.parent.mkdir(parents=True, exist_ok=True)
    with _locked():
        subprocess.run(["cp", "--archive", "--link", str(_store()), str(root)], check=True)
        for database in _store().glob("io.containerd.*/*.db"):  # written in place: a link would write into the cache
            copy = root / database.relative_to(_store())
            copy.unlink()
            shutil.copyfile(database, copy)


def _own_archives() -> list[Path]:
    contents: dict[str, tuple[Files, list[str]]] = {
        PAUSE: ({"pause": program("pause")}, ["/pause"]),
        MPI_OPERATOR: ({"mpi-operator": program("mpi-operator")}, ["/mpi-operator"]),
        TRAINING_OPERATOR: ({"manager": program("training-operator"), "tmp": None}, ["/manager"]),
        BUSYBOX: (_busybox(), ["/bin/sh"]),
    }
    made = []
    for name, (files, entrypoint) in contents.items():
        archive = cache() / "archives" / f"{name.removeprefix('localhost/').replace(':', '-')}.tar"
        newest = max(path.stat().st_mtime for path in files.values() if isinstance(path, Path))
        if not archive.exists() or archive.stat().st_mtime < newest:
            archive.parent.mkdir(parents=True, exist_ok=True)
            pack(archive, name, files, entrypoint=entrypoint, user=_NOBODY)
        made.append(archive)
    return made


def _busybox() -> Files:
    """A small image with a shell, for tests of the cluster itself and for the init containers of PyTorchJobs."""
    file = Path(shutil.which("busybox") or "")
    applets = subprocess.run([file, "--list"], capture_output=True, text=True, check=True).stdout.split()
    return {"tmp": None, **dict.fromkeys((f"bin/{applet}" for applet in applets), "busybox"), "bin/busybox": file}


def _store() -> Path:
    version = subprocess.run(["containerd", "--version"], capture_output=True, text=True, check=True).stdout.split()[2]
    return cache() / f"images-containerd-{version}"


def _record() -> Path:
    return _store() / "imported.json"


def _imported() -> dict[str, str]:
    """Fingerprint of the archive that each image came from."""
    return json.loads(_record().read_text()) if _record().exists() else {}


@contextmanager
def _locked() -> Iterator[None]:
    cache().mkdir(parents=True, exist_ok=True)
    with (cache() / "images.lock").open("w") as file:
        waiting = time.monotonic()
        fcntl.flock(file, fcntl.LOCK_EX)
        if time.monotonic() - waiting > 5:
            print("cluster: waited for another import of images", file=sys.stderr, flush=True)
        yield
