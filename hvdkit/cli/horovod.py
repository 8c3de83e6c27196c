"""`hvdkit horovod`: build, install and check Horovod for the torch that is installed."""

import json
import shutil
import time
from pathlib import Path

import click

from hvdkit.errors import EXIT_FAILED, EnvironmentProblem, HvdkitError, InputError


@click.group(epilog="\b\nExamples:\n  hvdkit horovod install\n  hvdkit horovod check --require mpi,gloo")
def command() -> None:
    """Build, install and check Horovod for the torch that is installed.

    `pip install horovod` fails on every torch since 2.1. These commands build a wheel that works, without root, and
    keep it in a cache: $HVDKIT_CACHE_DIR, else $XDG_CACHE_HOME/hvdkit, else ~/.cache/hvdkit.
    """


def _build_options(function):
    options = (
        click.option("--cuda", is_flag=True, help="Add NCCL, for GPUs. Building needs no GPU."),
        click.option("--gpu-targets", metavar="LIST", help="With --cuda: compute capabilities, such as 80,90."),
        click.option("--force", is_flag=True, help="Build again, even with a wheel in the cache."),
        click.option("--verbose", is_flag=True, help="Show the compiler's output."),
        click.option("--json", "as_json", is_flag=True, help="Print the result as JSON."),
    )
    for option in reversed(options):
        function = option(function)
    return function


@command.command(
    epilog="\b\nExamples:\n  hvdkit horovod build\n  hvdkit horovod build -o wheels/\n"
    "  hvdkit horovod build --cuda --gpu-targets 80,90"
)
@_build_options
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="DIR", help="Copy the wheel to this folder.")
def build(cuda: bool, gpu_targets: str | None, force: bool, verbose: bool, as_json: bool, output: Path | None) -> None:
    """Build the wheel, or take it from the cache.

    The wheel has MPI and Gloo (with --cuda also NCCL), works in any venv with the same Python, torch and Open MPI,
    and counts only after two ranks have trained a step with it.
    """
    started = time.monotonic()
    target = _target(cuda, gpu_targets)
    entry, cached = _build(target, force=force, verbose=verbose)
    wheel = _copy(entry.wheel, output) if output else entry.wheel
    seconds = time.monotonic() - started
    if as_json:
        result = {"key": target.key, "wheel": str(wheel), "cached": cached, "seconds": round(seconds, 2)}
        click.echo(json.dumps(entry.record | result, indent=2))
        return
    click.echo(f"{target.describe()}, {'from the cache' if cached else f'built in {seconds:.0f} s'}")
    click.echo(str(wheel))


@command.command(epilog="\b\nExamples:\n  hvdkit horovod install\n  hvdkit horovod install --cuda")
@_build_options
def install(cuda: bool, gpu_targets: str | None, force: bool, verbose: bool, as_json: bool) -> None:
    """Build the wheel (or take it from the cache), install it into this Python, and check it."""
    from hvdkit.horovod_wheel import installation
    from hvdkit.horovod_wheel.check import check as check_installed

    target = _target(cuda, gpu_targets)
    installed = None if force else installation.working(target)
    if installed is None:
        entry, _ = _build(target, force=force, verbose=verbose)
        installation.install(entry.wheel)
        installed = check_installed()
    _report(installed, ["mpi", "gloo", "nccl"] if cuda else ["mpi", "gloo"], as_json)


@command.command(
    epilog="\b\nExamples:\n  hvdkit horovod check\n  hvdkit horovod check --require mpi,nccl && hvdkit launch ..."
)
@click.option("--require", default="", metavar="LIST", help="Fail unless it has these: mpi, gloo, nccl, cuda.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def check(require: str, as_json: bool) -> None:
    """Say what the installed Horovod can do.

    Exit code 1 when something required is missing, 3 when Horovod is not installed or does not load.
    """
    from hvdkit.horovod_wheel import check as horovod_check

    wanted = horovod_check.parse_requirements(require)
    _report(horovod_check.check(), wanted, as_json)


def _target(cuda: bool, gpu_targets: str | None):
    from hvdkit.horovod_wheel import target
    from hvdkit.horovod_wheel.cuda import parse_gpus

    if gpu_targets is not None and not cuda:
        raise InputError("--gpu-targets needs --cuda")
    return target.read(with_cuda=cuda, gpus=parse_gpus(gpu_targets) if gpu_targets is not None else ())


def _build(target, *, force: bool, verbose: bool):
    from hvdkit.horovod_wheel import builder

    return builder.build(target, force=force, verbose=verbose)


def _copy(wheel: Path, folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return Path(shutil.copy(wheel, folder))
    except OSError as error:
        raise EnvironmentProblem(f"--output {folder} cannot be written: {error.strerror}") from error


def _report(installed, wanted: list[str], as_json: bool) -> None:
    missing = [name for name in wanted if not installed.features[name]]
    if as_json:
        click.echo(json.dumps(installed.to_json() | {"required": wanted, "missing": missing}, indent=2))
        raise click.exceptions.Exit(EXIT_FAILED if missing else 0)
    click.echo(f"Horovod {installed.version} on torch {installed.torch}")
    for name, present in installed.features.items():
        click.echo(f"  {name:<5} {'yes' if present else 'no'}")
    if installed.built_for_torch not in (None, installed.torch):
        built_for = f"it was built for torch {installed.built_for_torch}: run hvdkit horovod install"
        click.echo(f"warning: {built_for}", err=True)
    if missing:
        way_out = "hvdkit horovod install --cuda" if {"nccl", "cuda"} & set(missing) else "hvdkit horovod install"
        raise HvdkitError(f"the installed Horovod lacks {', '.join(missing)}: run {way_out}")
