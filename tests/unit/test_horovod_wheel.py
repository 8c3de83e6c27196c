"""What a Horovod wheel is for, what we change in Horovod, and how requests are read."""

import dataclasses
from pathlib import Path

import pytest

from hvdkit.errors import EnvironmentProblem, HvdkitError, InputError
from hvdkit.horovod_wheel import changes, check, compilation, cuda, relocate, target, world_guard
from hvdkit.horovod_wheel.openmpi import OpenMpi


def make_target(**other) -> target.Target:
    fields = {
        "python": "cpython-311-x86_64-linux-gnu",
        "torch": target.Torch(version="2.15.0+cu132", build="abc-1", cuda="13.2", folder=Path("/site/torch")),
        "open_mpi": OpenMpi(version="4.1.8", prefix=Path("/v"), library_folder=Path("/v/lib"), is_wheel=True),
        "machine": "x86_64",
        "cpu_flags": ("-mavx",),
        "libc": "glibc 2.36",
        "cuda": None,
    }
    return target.Target(**(fields | other))


def make_cuda(**other) -> cuda.Cuda:
    fields = {
        "version": "13.2",
        "toolkit": None,
        "toolkit_version": "wheels 13.2.2",
        "nccl_version": "2.30.7",
        "nccl_wheel": Path("/site/nvidia/nccl"),
        "gpus": (),
    }
    return cuda.Cuda(**(fields | other))


def test_key_changes_with_everything_that_makes_a_wheel_valid():
    base = make_target()
    torch, open_mpi = base.torch, base.open_mpi
    others = [
        make_target(python="cpython-312-x86_64-linux-gnu"),
        make_target(torch=dataclasses.replace(torch, version="2.14.1+cu132")),
        make_target(torch=dataclasses.replace(torch, build="abc-2")),
        make_target(open_mpi=dataclasses.replace(open_mpi, version="4.1.6")),
        make_target(open_mpi=dataclasses.replace(open_mpi, is_wheel=False)),
        make_target(machine="aarch64"),
        make_target(cpu_flags=()),
        make_target(libc="glibc 2.41"),
        make_target(cuda=make_cuda()),
        make_target(cuda=make_cuda(nccl_version="2.31.0")),
        make_target(cuda=make_cuda(toolkit_version="installed 13.2")),
        make_target(cuda=make_cuda(gpus=(80, 90))),
    ]
    keys = {base.key, *(other.key for other in others)}
    assert len(keys) == 1 + len(others)


def test_key_does_not_depend_on_where_things_lie():
    moved = make_target(
        torch=dataclasses.replace(make_target().torch, folder=Path("/elsewhere/torch")),
        open_mpi=OpenMpi(version="4.1.8", prefix=Path("/w"), library_folder=Path("/w/lib"), is_wheel=True),
    )
    assert moved.key == make_target().key


def test_key_changes_with_our_changes(monkeypatch):
    before = make_target().key
    monkeypatch.setattr(changes, "CHANGES", changes.CHANGES[1:])
    assert make_target().key != before


def test_run_path_is_relative_but_for_a_system_open_mpi():
    assert all(folder.startswith("$ORIGIN/") for folder in relocate.run_path(make_target(cuda=make_cuda())))
    system = OpenMpi(version="4.1.4", prefix=Path("/usr"), library_folder=Path("/opt/mpi/lib"), is_wheel=False)
    assert "/opt/mpi/lib" in relocate.run_path(make_target(open_mpi=system))


def write_torch(folder: Path, version_py: str, header: str = "#error C++17 or later compatible compiler\n") -> Path:
    (folder / "torch/include/ATen").mkdir(parents=True)
    (folder / "torch/lib").mkdir()
    (folder / "torch/__init__.py").write_text("raise SystemExit('torch was imported')\n")
    (folder / "torch/version.py").write_text(version_py)
    (folder / "torch/lib/libtorch_cpu.so").write_bytes(b"12345")
    (folder / "torch/include/ATen/ATen.h").write_text(header)
    return folder


def use_torch(monkeypatch, folder: Path) -> None:
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(__import__("sys").modules, "torch", raising=False)


@pytest.mark.parametrize(
    ("source", "expected_cuda"),
    [
        ("__version__ = '2.1.0+cpu'\ncuda = None\ngit_version = 'g'\nhip = None\n", None),
        (
            "from typing import Optional\n__version__ = '2.1.0+cpu'\ncuda: Optional[str] = '13.2'\n"
            "git_version = 'g'\nhip: Optional[str] = None\n",
            "13.2",
        ),
    ],
)
def test_torch_is_read_without_importing_it(tmp_path, monkeypatch, source, expected_cuda):
    use_torch(monkeypatch, write_torch(tmp_path, source))
    torch = target.read_torch()
    assert (torch.version, torch.cuda, torch.build) == ("2.1.0+cpu", expected_cuda, "g-5")


@pytest.mark.parametrize("standard", [17, 20, 23])
def test_cxx_standard_is_what_the_headers_ask_for(tmp_path, standard):
    write_torch(tmp_path, "", f"#if x\n#error C++{standard} or later compatible compiler is required to use ATen.\n")
    torch = target.Torch(version="9", build="b", cuda=None, folder=tmp_path / "torch")
    assert torch.cxx_standard == standard


def test_broken_and_foreign_torch_are_one_sentence(tmp_path, monkeypatch):
    use_torch(monkeypatch, write_torch(tmp_path / "a", "__version__ = \n"))
    with pytest.raises(EnvironmentProblem, match=r"broken.*reinstall"):
        target.read_torch()
    use_torch(monkeypatch, write_torch(tmp_path / "b", "__version__ = '2.1.0'\nhip = '6.0'\n"))
    with pytest.raises(EnvironmentProblem, match="ROCm"):
        target.read_torch()


def write_source(folder: Path) -> Path:
    """A tree with every text that we change, as often as we expect it."""
    for change in changes.CHANGES:
        path = folder / change.file
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(change.old * change.times)
    (folder / "horovod/common").mkdir(parents=True, exist_ok=True)
    return folder


def test_changes_are_applied(tmp_path):
    source = write_source(tmp_path)
    changes.apply(source)
    for change in changes.CHANGES:
        assert (source / change.file).read_text().count(change.new) == change.times
    assert "def check_world" in (source / "horovod/common/hvdkit_guard.py").read_text()


@pytest.mark.parametrize("change", changes.CHANGES, ids=lambda change: f"{change.file}:{change.old[:20]!r}")
def test_an_unknown_source_is_refused(tmp_path, change):
    source = write_source(tmp_path)
    path = source / change.file
    path.write_text(path.read_text() + change.old)
    with pytest.raises(HvdkitError, match=f"found it {change.times + 1} times"):
        changes.apply(source)


class World:
    """Stands for HorovodBasics."""

    def __init__(self, ranks: int, hosts: int, homogeneous: bool = True) -> None:
        self.size, self.cross_size, self.is_homogeneous = lambda: ranks, lambda: hosts, lambda: homogeneous


@pytest.mark.parametrize(
    ("ranks", "hosts", "world"),
    [
        (None, None, World(1, 1)),
        ("4", "2", World(4, 2)),
        ("4", None, World(4, 9)),
        (None, "2", World(9, 2)),
        ("2-4", "1-4", World(3, 3)),
        ("5", "2", World(5, 1, homogeneous=False)),
    ],
)
def test_guard_lets_the_right_world_pass(monkeypatch, ranks, hosts, world):
    for name, value in (("HVDKIT_WORLD_SIZE", ranks), ("HVDKIT_HOSTS", hosts)):
        monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(name, value)
    world_guard.check_world(world)


@pytest.mark.parametrize(
    ("ranks", "hosts", "world", "sentence"),
    [
        ("4", "2", World(1, 1), "started 4 ranks on 2 hosts, but Horovod sees 1 rank on 1 host"),
        ("4", "2", World(4, 1), "started 4 ranks on 2 hosts, but Horovod sees 4 ranks on 1 host"),
        ("2-4", "", World(5, 1), "started 2-4 ranks, but Horovod sees 5 ranks"),
        ("", "2", World(2, 1), "started 2 hosts, but Horovod sees 2 ranks on 1 host"),
        ("4", "2", World(3, 2, homogeneous=False), "started 4 ranks on 2 hosts, but Horovod sees 3 ranks:"),
        ("many", "", World(1, 1), "HVDKIT_WORLD_SIZE is 'many'"),
    ],
)
def test_guard_stops_another_world(monkeypatch, ranks, hosts, world, sentence):
    monkeypatch.setenv("HVDKIT_WORLD_SIZE", ranks)
    monkeypatch.setenv("HVDKIT_HOSTS", hosts)
    with pytest.raises(RuntimeError) as error:
        world_guard.check_world(world)
    assert sentence in str(error.value)


def test_gpu_lists():
    assert cuda.parse_gpus("90, 80,90") == (80, 90)
    for wrong in ("", "8.0", "sm_80", "80,,90", "8000"):
        with pytest.raises(InputError, match="--gpu-targets"):
            cuda.parse_gpus(wrong)


def test_cuda_needs_a_cuda_torch():
    with pytest.raises(EnvironmentProblem, match="built without CUDA"):
        cuda.find("2.15.0+cpu", None, ())


def test_requirements():
    assert check.parse_requirements("mpi, NCCL") == ["mpi", "nccl"]
    assert check.parse_requirements("") == []
    with pytest.raises(InputError, match="ddl"):
        check.parse_requirements("mpi,ddl")


@pytest.mark.parametrize(("memory", "expected"), [(1 << 20, 1), (5 << 30, 2), (1 << 50, 8), (None, 8)])
def test_jobs_follow_cores_and_memory(monkeypatch, memory, expected):
    monkeypatch.setattr(compilation.os, "sched_getaffinity", lambda _: range(8))
    monkeypatch.setattr(compilation, "_free_memory", lambda: memory)
    assert compilation.jobs() == expected
