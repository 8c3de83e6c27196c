"""What a Horovod wheel is for: everything that decides whether a built wheel fits this Python.

Nothing here imports torch: a wheel that is already in the cache must be found in well under two seconds,
and importing torch alone takes longer.
"""

import ast
import hashlib
import importlib.util
import json
import os
import platform
import re
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from hvdkit.errors import EnvironmentProblem
from hvdkit.horovod_wheel import changes, cuda, openmpi

HOROVOD_VERSION = "0.28.1"


@dataclass(frozen=True, kw_only=True)
class Torch:
    """The installed torch, read from its files."""

    version: str
    build: str
    """The commit it was made from and the size of its library: pip's and conda's builds of one version differ."""
    cuda: str | None
    """The CUDA it was built with, such as 13.2."""
    folder: Path

    @property
    def cxx_standard(self) -> int:
        """The C++ standard its headers ask for."""
        for header in ("ATen/ATen.h", "torch/csrc/api/include/torch/all.h"):
            path = self.folder / "include" / header
            found = re.search(r"#error C\+\+(\d\d) or later", path.read_text()) if path.is_file() else None
            if found:
                return int(found[1])
        raise EnvironmentProblem(
            f"the headers of torch {self.version} under {self.folder / 'include'} do not say which C++ they need: "
            "install torch from its wheel"
        )


@dataclass(frozen=True, kw_only=True)
class Target:
    """One wheel's purpose. Two equal keys mean that the same wheel serves both."""

    python: str
    torch: Torch
    open_mpi: openmpi.OpenMpi
    machine: str
    cpu_flags: tuple[str, ...]
    libc: str
    cuda: cuda.Cuda | None
    """None: a Horovod for CPU tensors."""

    @property
    def local_version(self) -> str:
        """What pip shows after the +, so that people can see what an installed wheel is for."""
        device = f"cu{self.cuda.version.replace('.', '')}" if self.cuda else "cpu"
        return f"torch{self.torch.version.partition('+')[0]}.{device}"

    def facts(self) -> dict:
        """All that the key is made of, for the record beside the wheel."""
        return {
            "horovod": HOROVOD_VERSION,
            "python": self.python,
            "torch": self.torch.version,
            "torch_build": self.torch.build,
            "open_mpi": f"{self.open_mpi.version} ({self._open_mpi_source()})",
            "machine": self.machine,
            "cpu_flags": list(self.cpu_flags),
            "libc": self.libc,
            "cuda": self.cuda.facts() if self.cuda else None,
            "recipe": changes.digest(),
        }

    @property
    def key(self) -> str:
        """A folder name: readable in front, exact behind."""
        exact = hashlib.sha256(json.dumps(self.facts(), sort_keys=True).encode()).hexdigest()[:12]
        return f"{HOROVOD_VERSION}-{self.local_version}-cp{self.python.split('-')[1]}-{self.machine}-{exact}"

    def describe(self) -> str:
        """One line for people."""
        devices = f"MPI, Gloo, NCCL {self.cuda.nccl_version}" if self.cuda else "MPI, Gloo"
        python = f"{sys.version_info.major}.{sys.version_info.minor}"
        return (
            f"Horovod {HOROVOD_VERSION} ({devices}) for torch {self.torch.version}, Python {python}, "
            f"Open MPI {self.open_mpi.version}"
        )

    def _open_mpi_source(self) -> str:
        # A system's Open MPI is named by its folder in the wheel's rpath, so the folder belongs to the key.
        return "wheel" if self.open_mpi.is_wheel else str(self.open_mpi.library_folder)


def read(*, with_cuda: bool = False, gpus: tuple[int, ...] = ()) -> Target:
    """The target of the running Python; raises when torch or Open MPI is missing."""
    if sys.platform != "linux":
        raise EnvironmentProblem(f"Horovod wheels are built on Linux only, and this is {sys.platform}")
    torch = read_torch()
    return Target(
        python=sysconfig.get_config_var("SOABI"),
        torch=torch,
        open_mpi=openmpi.find(),
        machine=platform.machine(),
        cpu_flags=_cpu_flags(),
        libc=os.confstr("CS_GNU_LIBC_VERSION") or "unknown",
        cuda=cuda.find(torch.version, torch.cuda, gpus) if with_cuda else None,
    )


def read_torch() -> Torch:
    """The torch this Python would import, without importing it."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.origin:
        raise EnvironmentProblem(f"torch is not installed for {sys.executable}: pip install 'hvdkit[train]' brings it")
    folder = Path(spec.origin).parent
    try:
        facts = _constants((folder / "version.py").read_text())
        library_size = (folder / "lib" / "libtorch_cpu.so").stat().st_size
    except (OSError, SyntaxError) as error:
        raise EnvironmentProblem(
            f"the torch in {folder} is broken ({error}): pip install --force-reinstall torch mends it"
        ) from error
    version = facts.get("__version__") or "unknown"
    if facts.get("hip"):
        raise EnvironmentProblem(
            f"torch {version} is a ROCm build, which hvdkit cannot build Horovod for: install a CUDA or CPU build"
        )
    return Torch(
        version=version,
        build=f"{facts.get('git_version') or 'unknown'}-{library_size}",
        cuda=facts.get("cuda"),
        folder=folder,
    )


def _constants(source: str) -> dict[str, str | None]:
    """The plain assignments of a module such as torch/version.py, with or without type annotations."""
    values = {}
    for node in ast.parse(source).body:
        names = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if isinstance(names[0], ast.Name) and isinstance(node.value, ast.Constant):
            values[names[0].id] = node.value.value
    return values


def _cpu_flags() -> tuple[str, ...]:
    """The instruction sets that Horovod's half-precision code wants and this CPU has.

    Horovod would ask `gcc -march=native` in a shell; asked here, the answer can be part of the key.
    """
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return ()
    found = re.search(r"^flags\s*:(.*)$", text, re.MULTILINE)
    present = set(found[1].split()) if found else set()
    return tuple(f"-m{name}" for name in ("f16c", "avx", "fma") if name in present)
