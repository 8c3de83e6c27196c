"""Makes a compiled wheel fit for any folder: no path of the build is left in it."""

import json
import os
import sys
from pathlib import Path

from hvdkit.errors import HvdkitError
from hvdkit.horovod_wheel.commands import Log, run
from hvdkit.horovod_wheel.target import Target

FACTS_FILE = "hvdkit.json"  # in the wheel's dist-info: what it was built for


def relocate(wheel: Path, target: Target, env: dict[str, str], folder: Path, log: Log) -> Path:
    """A wheel whose library finds torch, Open MPI and CUDA from where it lies itself."""
    unpacked, packed = folder / "unpacked", folder / "packed"
    packed.mkdir(parents=True)
    _tool([sys.executable, "-m", "wheel", "unpack", str(wheel), "-d", str(unpacked)], env, log)
    content = next(unpacked.iterdir())
    library = next(content.glob("horovod/torch/mpi_lib_v2*.so"))
    _tool(["strip", "--strip-unneeded", str(library)], env, log)
    _tool(["patchelf", "--set-rpath", ":".join(run_path(target)), str(library)], env, log)
    dist_info = next(content.glob("horovod-*.dist-info"))
    facts = {"version": 1, "key": target.key, **target.facts()}
    (dist_info / FACTS_FILE).write_text(json.dumps(facts, indent=2) + "\n")
    _tool([sys.executable, "-m", "wheel", "pack", str(content), "-d", str(packed)], env, log)
    return next(packed.glob("*.whl"))


def run_path(target: Target) -> list[str]:
    """Where the dynamic linker looks, from site-packages/horovod/torch."""
    site_packages = "$ORIGIN/../.."
    folders = [f"{site_packages}/torch/lib"]
    if target.open_mpi.is_wheel:
        folders.append(f"{site_packages}/../..")  # PREFIX/lib, beside PREFIX/lib/pythonX.Y/site-packages
    else:
        folders.append(os.path.normpath(target.open_mpi.library_folder))
    if target.cuda:
        folders += [f"{site_packages}/{folder}" for folder in target.cuda.runtime_folders()]
    return folders


def _tool(command: list[str], env: dict[str, str], log: Log) -> None:
    if run(command, log=log, env=env) != 0:
        raise HvdkitError(f"{' '.join(command[:4])} failed on the compiled wheel: the full log is {log.path}")
