"""`hvdkit launch`: flags to a JobSpec, and the job's end to an exit code."""

import json
import secrets
import shlex
import shutil
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hvdkit.errors import EnvironmentProblem, InputError
from hvdkit.jobs.spec import BACKENDS, CONTROLLERS, Host, JobSpec

if TYPE_CHECKING:
    from hvdkit.jobs.local import LocalPlan
    from hvdkit.local.supervisor import Outcome

DEMO = ("python", "-m", "hvdkit.train")
_LETTERS = "bcdfghjklmnpqrstvwxz2456789"  # no vowels: a random name is never a word

SECONDS = click.IntRange(min=1)

EXAMPLES = """\b
Examples:
  hvdkit launch --workers 2                            the MNIST demo on 2 ranks
  hvdkit launch --workers 4 -- python train.py --lr 1  your script
  hvdkit launch --workers 2 --dry-run                  what would run, exactly
  hvdkit launch --workers 2 --explain                  each setting, and why
  hvdkit launch --hosts a:4,b:4 -- python train.py     on two machines over SSH
  hvdkit launch --workers 2 --debug-rank 1 -- python train.py   rank 1 in pdb

While it runs: Ctrl-\\ makes every rank print its stacks, Ctrl-C ends all of them,
SIGTERM asks the ranks to stop in good order.
"""


@click.command(epilog=EXAMPLES, context_settings={"show_default": True, "allow_interspersed_args": False})
@click.option("--workers", "-w", type=int, default=None, help="Pods, or shares of this machine.  [default: 1]")
@click.option("--slots", type=int, default=1, help="Ranks in a worker, or on a host that names no number.")
@click.option("--backend", type=click.Choice(BACKENDS), default="auto", help="Where to run.")
@click.option("--controller", type=click.Choice(CONTROLLERS), default="mpi", help="How the ranks find each other.")
@click.option("--hosts", metavar="A:4,B:4", help="Run on these machines over SSH, with so many ranks each.")
@click.option("--name", help="Name of the job.  [default: train-<5 characters>]")
@click.option("--threads", type=int, help="CPU threads a rank.  [default: cores / ranks]")
@click.option("--env", "env", multiple=True, metavar="NAME=VALUE", help="Variable for the ranks; repeatable.")
@click.option("--mpi-arg", "mpi_args", multiple=True, help="Further words for mpirun; repeatable.")
@click.option("--timeline", type=click.Path(dir_okay=False), help="Record Horovod's timeline in this file.")
@click.option("--autotune", is_flag=True, help="Let Horovod tune itself while it trains.")
@click.option("--log-dir", type=click.Path(file_okay=False, path_type=Path), help="Also write a file a rank here.")
@click.option("--debug-rank", type=int, help="Run this rank in pdb on this terminal.")
@click.option("--start-timeout", type=SECONDS, default=120, help="Seconds until every rank must have started.")
@click.option("--grace", type=SECONDS, default=30, help="Seconds that ranks asked to stop may take.")
@click.option("--dry-run", is_flag=True, help="Print the exact command and environment, and run nothing.")
@click.option("--explain", is_flag=True, help="Say for each setting why it is so, and run nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan or, at the end, the outcome as JSON.")
@click.argument("command_line", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND …]")
def command(
    workers: int | None,
    slots: int,
    backend: str,
    controller: str,
    hosts: str | None,
    name: str | None,
    threads: int | None,
    env: tuple[str, ...],
    mpi_args: tuple[str, ...],
    timeline: str | None,
    autotune: bool,
    log_dir: Path | None,
    debug_rank: int | None,
    start_timeout: int,
    grace: int,
    dry_run: bool,
    explain: bool,
    as_json: bool,
    command_line: tuple[str, ...],
) -> int:
    """Run a training command on N workers and see it through.

    Without a COMMAND it trains a small network on MNIST.
    """
    from hvdkit.jobs import local
    from hvdkit.local.machine import read_machine

    parsed_hosts = parse_hosts(hosts, slots) if hosts is not None else ()
    backend, reason = choose_backend(backend, hosts=bool(parsed_hosts))
    spec = JobSpec(
        name=name if name is not None else random_name("train"),
        command=command_line or DEMO,
        backend=backend,
        workers=workers if workers is not None else len(parsed_hosts) or 1,
        slots=slots,
        controller=controller,
        threads=threads,
        env=parse_env(env),
        mpi_args=mpi_args,
        hosts=parsed_hosts,
        timeline=str(Path(timeline).absolute()) if timeline else None,
        autotune=autotune,
    )
    plan = local.render(spec, read_machine())
    if dry_run or explain:
        click.echo(plan_as_json(plan) if as_json else explanation(plan) if explain else shell_script(plan))
        return 0

    from hvdkit.local.supervisor import RunOptions, run

    variables = {setting.name: setting.value for setting in plan.settings}
    check_command(spec, variables["PATH"])
    check_debug_rank(debug_rank, spec)
    threads_text = variables["OMP_NUM_THREADS"] + (" thread" if variables["OMP_NUM_THREADS"] == "1" else " threads")
    ranks = f"{spec.world_size} rank{'s' if spec.world_size > 1 else ''}"
    click.echo(f"hvdkit: {spec.name}: {ranks} by {spec.controller}, {threads_text} each; backend {reason}", err=True)
    options = RunOptions(log_dir=log_dir, debug_rank=debug_rank, start_timeout=start_timeout, grace=grace)
    outcome = run(plan, options)
    report(outcome, as_json=as_json)
    return outcome.exit_code


def choose_backend(backend: str, *, hosts: bool) -> tuple[str, str]:
    """The backend and, for the first line of output, why it was chosen."""
    if backend != "auto":
        return backend, f"{backend} (as asked)"
    if hosts:
        return "local", "local (--hosts)"
    from hvdkit.cluster.probe import kubeconfig_files

    configured = kubeconfig_files()
    if not configured:
        return "local", "local (no cluster is configured)"
    raise EnvironmentProblem(
        f"backend: a cluster is configured in {configured[0]}, and this version of hvdkit launches on this machine "
        "only; add --backend local to do that."
    )


def random_name(prefix: str) -> str:
    """A name that no other job is likely to have."""
    return f"{prefix}-" + "".join(secrets.choice(_LETTERS) for _ in range(5))


def parse_hosts(text: str, slots: int) -> tuple[Host, ...]:
    """`a:4,b:4` to hosts; a host without a number has `slots`."""
    hosts = []
    for part in text.split(","):
        name, colon, number = part.strip().partition(":")
        if colon and not number.isdecimal():
            raise InputError(f"hosts: '{part.strip()}' has no number of slots after ':'; write --hosts a:4,b:4.")
        hosts.append(Host(name=name, slots=int(number) if colon else slots))
    return tuple(hosts)


def parse_env(pairs: tuple[str, ...]) -> dict[str, str]:
    """`NAME=VALUE` pairs to a dictionary; the last of a name wins."""
    env = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise InputError(f"env: '{pair}' has no '='; write --env NAME=VALUE.")
        env[name] = value
    return env


def check_command(spec: JobSpec, path: str) -> None:
    """Say now, in one sentence, what would otherwise fail on every rank."""
    if not spec.hosts and spec.command[0] != "python" and shutil.which(spec.command[0], path=path) is None:
        raise InputError(
            f"command: '{spec.command[0]}' is neither on PATH nor a file that can be run; "
            "a script needs its interpreter, as in -- python train.py."
        )


def check_debug_rank(debug_rank: int | None, spec: JobSpec) -> None:
    """A rank that exists, and a terminal to talk to."""
    if debug_rank is None:
        return
    if not 0 <= debug_rank < spec.world_size:
        raise InputError(f"debug_rank: there is no rank {debug_rank} in a world of {spec.world_size}.")
    if spec.hosts or not sys.stdin.isatty():
        raise InputError("debug_rank: pdb needs this terminal: no --hosts, and no input from a file or pipe.")


def shell_script(plan: "LocalPlan") -> str:
    """The plan as people read it; for mpirun on this machine also a script that a shell can run."""
    lines = [
        "# HVDKIT_CHANNEL and HVDKIT_LAUNCHER_PID are added when it runs: they lead the ranks to the launcher.",
        "# Without them each rank writes straight to this terminal.",
    ]
    if plan.controller == "gloo":
        lines += [
            "# So are HOROVOD_GLOO_RENDEZVOUS_ADDR and _PORT: they lead to Horovod's rendezvous server, which",
            "# the launcher starts first. The ranks are then started together.",
        ]
    for process in plan.processes:
        command = shlex.join(process.argv)
        if process.env_on_stdin:
            lines += ["", f"{command} <<'ENVIRONMENT'", json.dumps(dict(process.env)), "ENVIRONMENT"]
        else:
            variables = [f"{name}={shlex.quote(value)}" for name, value in process.env.items()]
            lines += ["", "env " + " \\\n    ".join([*variables, command])]
    return "\n".join(lines)


def explanation(plan: "LocalPlan") -> str:
    """Every setting with its value and reason."""
    return "\n".join(f"{setting.name} {setting.value}\n    {setting.reason}" for setting in plan.settings)


def plan_as_json(plan: "LocalPlan") -> str:
    """The plan for machines."""
    processes = [
        {"argv": list(process.argv), "env": dict(process.env), "host": process.host} for process in plan.processes
    ]
    settings = [asdict(setting) for setting in plan.settings]
    return json.dumps({"world_size": plan.world_size, "processes": processes, "settings": settings}, indent=2)


def report(outcome: "Outcome", *, as_json: bool) -> None:
    """Say how the run ended."""
    if as_json:
        click.echo(json.dumps(asdict(outcome)))
        return
    if not outcome.reason:
        return
    click.echo(f"hvdkit: {outcome.reason}; exit code {outcome.exit_code}", err=True)
    if outcome.tail:
        whose = f" of rank {outcome.rank}" if outcome.rank is not None else ""
        click.echo(f"hvdkit: the last lines{whose}:", err=True)
        for line in outcome.tail:
            click.echo(f"  {line}", err=True)
