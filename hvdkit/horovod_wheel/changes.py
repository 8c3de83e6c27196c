"""What hvdkit changes in Horovod's source release: as little as possible, each with its reason."""

import hashlib
from dataclasses import astuple, dataclass
from pathlib import Path

from hvdkit.errors import HvdkitError

SDIST = "horovod==0.28.1"
SDIST_SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"

HERE = Path(__file__).parent
TOOLCHAIN_FILE = HERE / "toolchain.cmake"
HOOK_FILE = HERE / "hook.cmake"
WORLD_GUARD_FILE = HERE / "world_guard.py"

# Everything that shapes the wheel and is the same for every target; it is part of the cache key.
BUILD_ENVIRONMENT = {
    "HOROVOD_WITH_PYTORCH": "1",
    "HOROVOD_WITHOUT_TENSORFLOW": "1",
    "HOROVOD_WITHOUT_MXNET": "1",
    "HOROVOD_WITH_MPI": "1",
    "HOROVOD_WITH_GLOO": "1",
    "HOROVOD_WITHOUT_NVTX": "1",  # its library left the CUDA toolkit, and a machine's leftover must not decide
    "CMAKE_POLICY_VERSION_MINIMUM": "3.5",  # the bundled Gloo asks for a CMake 2.8 that CMake 4 refuses to be
    "CMAKE_GENERATOR": "Ninja",  # from its wheel, so `make` need not be there, and it counts its steps
    "NINJA_STATUS": "[%f/%t] ",
}


@dataclass(frozen=True, kw_only=True)
class Change:
    """One replacement in one file of the source release."""

    file: str
    old: str
    new: str
    reason: str
    times: int = 1


CHANGES = (
    Change(
        file="horovod/torch/optimizer.py",
        old="    def zero_grad(self):\n",
        new="    def zero_grad(self, *args, **kwargs):\n",
        times=2,
        reason="torch's zero_grad takes set_to_none; here it was a TypeError",
    ),
    Change(
        file="horovod/torch/optimizer.py",
        old="super(self.__class__, self).zero_grad()\n",
        new="super(self.__class__, self).zero_grad(*args, **kwargs)\n",
        times=2,
        reason="and it must arrive",
    ),
    Change(
        file="horovod/torch/CMakeLists.txt",
        old="from distutils.sysconfig import get_python_inc; print(get_python_inc())",
        new="import sysconfig; print(sysconfig.get_path('include'))",
        reason="Python 3.12 has no distutils",
    ),
    Change(
        file="horovod/runner/js_run.py",
        old="from distutils.spawn import find_executable\n",
        new="from shutil import which as find_executable\n",
        reason="horovodrun imports it, and Python 3.12 has no distutils",
    ),
    Change(
        file="cmake/Modules/FindPytorch.cmake",
        old="import torch; from torch.utils.cpp_extension import CUDA_HOME; "
        "print(True if ((torch.version.cuda is not None) and (CUDA_HOME is not None)) else False)",
        new="import os; print('HOROVOD_GPU_OPERATIONS' in os.environ)",
        reason="a toolkit in /usr/local/cuda would turn a CPU build into half a CUDA build; --cuda decides",
    ),
    Change(
        file="horovod/common/gloo/gloo_context.cc",
        old="  device_attr.iface = gloo_iface_;\n"
        "  device_attr.ai_family = AF_UNSPEC;\n"
        "  auto dev = CreateDevice(device_attr);\n"
        "\n"
        "  global_ctx = global_context.ctx;\n",
        new="  gloo_iface_ = global_context.gloo_iface_;\n"
        "  device_attr.iface = gloo_iface_;\n"
        "  device_attr.ai_family = AF_UNSPEC;\n"
        "  auto dev = CreateDevice(device_attr);\n"
        "\n"
        "  global_ctx = global_context.ctx;\n",
        reason="process sets, all ranks among them, left the chosen interface and looked the host's own name up",
    ),
    Change(
        file="third_party/gloo/gloo/transport/tcp/device.cc",
        old="  GLOO_ENFORCE_NE(rv, -1);\n  struct addrinfo* rp;\n",
        new='  GLOO_ENFORCE(rv == 0, "the name ", attr.hostname, " does not resolve: ", gai_strerror(rv));\n'
        "  struct addrinfo* rp;\n",
        reason="where that name does not resolve, Gloo read an answer that was not there: SIGSEGV",
    ),
    Change(
        file="horovod/common/basics.py",
        old='because process_sets entry number {ps_idx} is a duplicate: {ps}")\n',
        new='because process_sets entry number {ps_idx} is a duplicate: {ps}")\n'
        "\n"
        "        # A script that names its own subset of ranks has chosen another world than the launcher's.\n"
        "        if comm == [] or getattr(comm, 'name', None) == 'MPI_COMM_WORLD':\n"
        "            from horovod.common.hvdkit_guard import check_world\n"
        "            check_world(self)\n",
        reason="no false success: a world that is not the launcher's ends the job (world_guard.py)",
    ),
)


def apply(source: Path) -> None:
    """Make all changes in the unpacked source release, or fail without a guess."""
    for change in CHANGES:
        path = source / change.file
        text = path.read_text()
        if text.count(change.old) != change.times:
            raise HvdkitError(
                f"Horovod's {change.file} is not the one hvdkit knows ({change.reason}): expected the text to change "
                f"{change.times} times, found it {text.count(change.old)} times; please report this"
            )
        path.write_text(text.replace(change.old, change.new))
    (source / "horovod/common/hvdkit_guard.py").write_text(WORLD_GUARD_FILE.read_text())


def digest() -> str:
    """A short name for this recipe: another set of changes, flags or tools makes another wheel."""
    from hvdkit.horovod_wheel import tools

    parts = [
        SDIST_SHA256,
        *map(repr, map(astuple, CHANGES)),
        repr(BUILD_ENVIRONMENT),
        repr(tools.PINNED),
        tools.SETUPTOOLS,
    ]
    parts += [path.read_text() for path in (TOOLCHAIN_FILE, HOOK_FILE, WORLD_GUARD_FILE)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
