"""`--cuda`: the CUDA toolkit and the NCCL that Horovod is built with, installed ones or those of the wheels."""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from hvdkit.errors import EnvironmentProblem, InputError
from hvdkit.horovod_wheel.commands import Log, run

DEFAULT_GPUS = (75, 80, 86, 89, 90, 100, 120)  # T4, A100, A10, L4, H100, B200, RTX 50


@dataclass(frozen=True, kw_only=True)
class Cuda:
    """What a CUDA build is made from."""

    version: str
    """The CUDA that torch was built with, such as 13.2."""
    toolkit: Path | None
    """An installed toolkit of that CUDA; None: the toolkit's own wheels."""
    toolkit_version: str
    nccl_version: str
    nccl_wheel: Path | None
    """site-packages/nvidia/nccl; None: the NCCL of the system."""
    gpus: tuple[int, ...]
    """Compute capabilities, 90 for 9.0. Empty: all of DEFAULT_GPUS that the toolkit knows."""

    def facts(self) -> dict:
        """What belongs to the cache key."""
        return {
            "torch_cuda": self.version,
            "toolkit": self.toolkit_version,
            "nccl": self.nccl_version,
            "gpus": list(self.gpus) or "default",
            "default_gpus": list(DEFAULT_GPUS),
        }

    def runtime_folders(self) -> list[str]:
        """Where the wheel finds CUDA's libraries, from site-packages on."""
        return ["nvidia/nccl/lib", f"nvidia/cu{self.version.partition('.')[0]}/lib"] if self.nccl_wheel else []


def parse_gpus(text: str) -> tuple[int, ...]:
    """`80,90` as numbers; raises for anything else."""
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch(r"\d{2,3}", part) for part in parts):
        raise InputError(f"--gpu-targets is '{text}', but must be compute capabilities without the dot, such as 80,90")
    return tuple(sorted({int(part) for part in parts}))


def find(torch_version: str, torch_cuda: str | None, gpus: tuple[int, ...]) -> Cuda:
    """What a CUDA build for this torch would use; raises when there is nothing it could."""
    if torch_cuda is None:
        raise EnvironmentProblem(
            f"torch {torch_version} was built without CUDA, so --cuda cannot work: install a CUDA build of torch"
        )
    major = torch_cuda.partition(".")[0]
    nccl_wheel, nccl_version = _find_nccl(major)
    toolkit = _installed_toolkit(major)
    if toolkit is None and int(major) < 13:
        # Their nvcc package holds ptxas and headers, but no nvcc.
        raise EnvironmentProblem(
            f"torch {torch_version} needs the CUDA {torch_cuda} toolkit, whose wheels lack nvcc before CUDA 13: "
            f"install the toolkit and set CUDA_HOME"
        )
    return Cuda(
        version=torch_cuda,
        toolkit=toolkit[0] if toolkit else None,
        toolkit_version=f"installed {toolkit[1]}" if toolkit else f"wheels {_wheels_version(torch_cuda)}",
        nccl_version=nccl_version,
        nccl_wheel=nccl_wheel,
        gpus=gpus,
    )


def prepare(cuda: Cuda, folder: Path, clean: dict[str, str], log: Log) -> dict[str, str]:
    """The environment of a CUDA build; installs the toolkit's wheels into `folder` where none is installed."""
    toolkit = cuda.toolkit or _install_wheels(cuda, folder / "toolkit", clean, log)
    env = {
        "CUDA_HOME": str(toolkit),
        "HOROVOD_CUDA_HOME": str(toolkit),
        "CUDAToolkit_ROOT": str(toolkit),
        "CUDACXX": str(toolkit / "bin/nvcc"),
        "HOROVOD_GPU_OPERATIONS": "NCCL",
        "HOROVOD_NCCL_LINK": "SHARED",
        "HOROVOD_BUILD_CUDA_CC_LIST": ",".join(map(str, _targets(cuda, toolkit))),
    }
    if cuda.nccl_wheel:
        env["HOROVOD_NCCL_HOME"] = str(_linkable_nccl(cuda.nccl_wheel, folder / "nccl"))
    return env


def _installed_toolkit(major: str) -> tuple[Path, str] | None:
    """The folder and version of an installed toolkit of this CUDA major."""
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    candidates = [Path(home) / "bin/nvcc" for home in homes if home]
    if on_path := shutil.which("nvcc"):
        candidates.insert(0, Path(on_path).resolve())
    for nvcc in candidates:
        if not nvcc.is_file():
            continue
        answer = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=False).stdout
        found = re.search(r"release (\d+\.\d+)", answer)
        if found and found[1].partition(".")[0] == major:
            return nvcc.parent.parent, found[1]
    return None


def _find_nccl(major: str) -> tuple[Path | None, str]:
    """The folder and version of NCCL: the wheel that torch brought, else the system's header."""
    try:
        distribution = importlib.metadata.distribution(f"nvidia-nccl-cu{major}")
    except importlib.metadata.PackageNotFoundError:
        pass
    else:
        folder = Path(os.path.normpath(distribution.locate_file("nvidia/nccl")))
        if (folder / "include/nccl.h").is_file():
            return folder, distribution.version
    for folder in filter(None, (os.environ.get("CUDA_HOME"), "/usr/local/cuda", "/usr")):
        header = Path(folder) / "include/nccl.h"
        if header.is_file():
            numbers = dict(re.findall(r"#define NCCL_(MAJOR|MINOR|PATCH) +(\d+)", header.read_text()))
            return None, ".".join(numbers.get(part, "0") for part in ("MAJOR", "MINOR", "PATCH"))
    raise EnvironmentProblem(f"NCCL is not installed: pip install nvidia-nccl-cu{major} brings it")


def _wheels_version(torch_cuda: str) -> str:
    """The toolkit release that torch itself asks pip for, else any of its CUDA version."""
    for requirement in importlib.metadata.requires("torch") or []:
        found = re.match(r"cuda-toolkit\[[^]]*\]==([\d.]+)", requirement)
        if found:
            return found[1]
    return f"{torch_cuda}.*"


def _install_wheels(cuda: Cuda, folder: Path, clean: dict[str, str], log: Log) -> Path:
    requirement = f"cuda-toolkit[nvcc,crt,nvvm,cudart,cccl]=={cuda.toolkit_version.removeprefix('wheels ')}"
    pip = [sys.executable, "-m", "pip", "install", "--target", str(folder), "--no-input", requirement]
    if run(pip, log=log, env=clean) != 0:
        log.require_room("pip fetched the CUDA toolkit")
        raise EnvironmentProblem(
            f"pip could not fetch {requirement}: {log.last_error()} (install a CUDA {cuda.version} toolkit and set "
            f"CUDA_HOME, or see {log.path})"
        )
    root = folder / f"nvidia/cu{cuda.version.partition('.')[0]}"
    # Compilers look for lib64 and for names without a version; wheels cannot hold symbolic links.
    (root / "lib64").symlink_to("lib")
    for library in list((root / "lib").glob("*.so.*")):
        plain = library.with_name(library.name.partition(".so.")[0] + ".so")
        if not plain.exists():
            plain.symlink_to(library.name)
    return root


def _linkable_nccl(wheel: Path, folder: Path) -> Path:
    """A folder that the linker can use, beside the wheel and not in it: the user's packages stay as they are."""
    (folder / "lib").mkdir(parents=True)
    (folder / "include").symlink_to(wheel / "include")
    (folder / "lib/libnccl.so.2").symlink_to(wheel / "lib/libnccl.so.2")
    (folder / "lib/libnccl.so").symlink_to("libnccl.so.2")
    return folder


def _targets(cuda: Cuda, toolkit: Path) -> list[int]:
    """The GPUs to compile for, as far as the toolkit knows them."""
    answer = subprocess.run([toolkit / "bin/nvcc", "--list-gpu-arch"], capture_output=True, text=True, check=False)
    known = {int(number) for number in re.findall(r"compute_(\d+)\b", answer.stdout)}
    unknown = [gpu for gpu in cuda.gpus if gpu not in known]
    if unknown:
        raise InputError(
            f"--gpu-targets names {', '.join(map(str, unknown))}, which CUDA {cuda.version} does not know: "
            f"it knows {', '.join(map(str, sorted(known)))}"
        )
    return list(cuda.gpus or [gpu for gpu in DEFAULT_GPUS if gpu in known])
