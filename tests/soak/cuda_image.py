"""Builds the CUDA worker image and checks it as far as a machine without a GPU can.

    python tests/soak/cuda_image.py [--output FILE]

Horovod in it has NCCL, every library of Horovod, torch and CUDA finds those that it is linked with, and two ranks train
in it on the CPU. Needs root, as `make images` does; compiling takes about ten minutes unless the wheel is cached.
"""

import argparse
import json
import sys
import time
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
sys.path[:0] = [str(REPOSITORY / "benchmarks"), str(REPOSITORY / "tests/e2e")]

from containers import run_in  # noqa: E402
from image_size import sizes_of  # noqa: E402
from image_store import WORKER, build  # noqa: E402
from machine_facts import machine_facts  # noqa: E402

IMAGE = f"{WORKER}-cuda"
# Comes from the host with the driver: NVIDIA's container runtime mounts it.
OF_THE_DRIVER = {"libcuda.so.1", "libnvidia-ml.so.1"}
# Lie in the wheels, but no other library is linked with them (one that was would be found below as lacking the same):
# torch's Fortran runtime, and cuFile's part for network hardware, loaded only where that hardware's libraries are.
NOBODY_LOADS = {"libgfortran.so.5", "libcufile_rdma.so.1"}
SITE = "/opt/hvdkit/lib/python3.*/site-packages"
LIBRARIES = f"find {SITE}/horovod {SITE}/torch/lib {SITE}/nvidia/nccl {SITE}/nvidia/cu13 -name '*.so*' -type f"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="write the result to this file")
    options = parser.parse_args()
    began = time.monotonic()
    assert build("--cuda", "--target=worker") == 0
    seconds = round(time.monotonic() - began)
    result = {
        "version": 1,
        "machine": machine_facts(),
        "build_seconds": seconds,
        "sizes": sizes_of(IMAGE, "worker", "cuda"),
        "horovod": check_horovod(),
        "libraries": check_libraries(),
        "training": check_training(),
    }
    print(json.dumps(result, indent=2))
    if options.output:
        options.output.write_text(json.dumps(result, indent=2) + "\n")


def check_horovod() -> dict:
    """Horovod loads and has all three."""
    told = run_in(IMAGE, "hvdkit", "horovod", "check", "--require", "nccl,mpi,gloo", "--json")
    return {name: json.loads(told)[name] for name in ("version", "torch", "features")}


def check_libraries() -> dict:
    """No library lacks another one, but for the driver's."""
    script = (
        f"{LIBRARIES} | while read file; do echo \"file $file\"; ldd $file 2>/dev/null | grep 'not found'; done; true"
    )
    lines = [line.split() for line in run_in(IMAGE, "sh", "-c", script).splitlines()]
    missing: dict[str, list[str]] = {}
    current, count = "", 0
    for words in lines:
        if words[0] == "file":
            current, count = words[1], count + 1
        elif words[0] not in OF_THE_DRIVER and Path(current).name not in NOBODY_LOADS:
            missing.setdefault(words[0], []).append(Path(current).name)
    assert count > 20, f"only {count} libraries were found"
    assert not missing, f"libraries that are not in the image, and who needs them: {missing}"
    excepted = {"of_the_driver": sorted(OF_THE_DRIVER), "nobody_loads": sorted(NOBODY_LOADS)}
    return {"checked": count, **excepted, "missing": []}


def check_training() -> str:
    """Two ranks train in it; without a GPU they take the CPU."""
    train = ["hvdkit", "train", "--data=synthetic", "--synthetic-images=2000", "--epochs=1"]
    command = ["hvdkit", "launch", "--backend=local", "--workers=2", "--", *train]
    output = run_in(IMAGE, *command, further=("--shm-size=1g",))
    results = [line.removeprefix("[0] ") for line in output.splitlines() if line.startswith("[0] test accuracy")]
    assert results, output
    return results[0]


if __name__ == "__main__":
    main()
