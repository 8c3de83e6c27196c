"""`hvdkit launch`: flags and hvdkit.yaml to a job, and the job's end to an exit code."""

import contextlib
import json
import shutil
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hvdkit.cli.job_flags import job_flags, load, warn_of_typos
from hvdkit.cli.launch_cluster import cluster_flags, launch_on_cluster, refuse_on_this_machine
from hvdkit.cli.render import manifest, spec_of
from hvdkit.config.settings import DEFAULT, Setting, find, merge, sources_named
from hvdkit.errors import InputError
from hvdkit.jobs import LOCAL
from hvdkit.jobs.spec import Host, JobSpec

if TYPE_CHECKING:
    from hvdkit.jobs.local import LocalPlan
    from hvdkit.local.supervisor import Outcome, RunOptions

MONARCH = "monarch"
SECONDS = click.IntRange(min=1)
START_TIMEOUT_HELP = "Seconds until the ranks must have started, without those in a queue.  [default: 120, cluster 600]"
# What a run on this machine can do, by backend.
USED_HERE = {MONARCH: {"name", "command", "backend", "workers", "slots", "engine", "threads", "env", "run.grace"}}
USED_HERE[LOCAL] = USED_HERE[MONARCH] | {"controller", "hosts", "mpi_args", "timeline", "autotune"}

EXAMPLES = """\b
Examples:
  hvdkit launch --workers 2                            the MNIST demo on 2 ranks
  hvdkit launch --workers 4 -- python train.py --lr 1  your script
  hvdkit launch --workers 2 --dry-run                  what would run, exactly
  hvdkit launch --workers 2 --explain                  each setting, and why
  hvdkit launch --hosts a:4,b:4 -- python train.py     on two machines over SSH
  hvdkit launch --workers 2 --debug-rank 1 -- python train.py   rank 1 in pdb
  hvdkit launch --backend monarch --workers 2          DDP on a mesh of actors

While it runs: Ctrl-\\ makes every rank print its stacks, Ctrl-C ends all of them,
SIGTERM asks the ranks to stop in good order.
"""


@click.command(epilog=EXAMPLES, context_settings={"allow_interspersed_args": False})
@job_flags
@click.option("--hosts", metavar="A:4,B:4", help="Run on these machines over SSH, with so many ranks each.")
@click.option("--log-dir", type=click.Path(file_okay=False, path_type=Path), help="Also write a file a rank here.")
@click.option("--debug-rank", type=int, help="This terminal is for this rank: pdb at breakpoint() or an exception.")
@click.option("--start-timeout", type=SECONDS, help=START_TIMEOUT_HELP)
@cluster_flags
@click.option("--dry-run", is_flag=True, help="Print the command or manifest; no cluster is asked, and nothing is run.")
@click.option("--explain", is_flag=True, help="Say for each setting why it is so, and run nothing.")
@click.option("--json", "as_json", is_flag=True, help="The plan or outcome as JSON; what ranks print goes to stderr.")
@click.argument("command_line", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND …]")
def command(
    hosts: str | None,
    log_dir: Path | None,
    debug_rank: int | None,
    start_timeout: int | None,
    dry_run: bool,
    explain: bool,
    as_json: bool,
    command_line: tuple[str, ...],
    **flags: Any,
) -> int:
    """Run a training command on N workers and see it through.

    What no flag says comes from HVDKIT_* variables, then from hvdkit.yaml ('hvdkit config' shows which). Without a
    COMMAND it trains a small network on MNIST.
    """
    refuse_late_flags(command_line)
    asked = with_hosts(load(flags, command_line), hosts)
    warn_of_typos()
    backend, here, reason = choose_backend(asked)
    if start_timeout and not here:  # pods wait for each other as long
        asked = merge(asked, [Setting(path=("run", "start_timeout"), value=start_timeout, source="--start-timeout")])
    settings = with_backend(asked, backend)
    if backend != LOCAL and (dry_run or explain):
        show_cluster_job(settings, explain=explain, as_json=as_json)
        if here:
            click.echo("hvdkit: no cluster is configured: without --dry-run it runs on this machine.", err=True)
        return 0
    if not here:
        for flag, value in {"--log-dir": log_dir, "--debug-rank": debug_rank}.items():
            if value is not None:
                raise InputError(f"{flag}: backend {backend} has no use for it; leave it out, or use --backend local.")
        return launch_on_cluster(asked, reason, flags, as_json=as_json)

    refuse_on_this_machine(flags, backend)
    spec = local_spec(settings)
    with sources_named(settings):
        plan = local_plan(spec)
    if dry_run or explain:
        from hvdkit.cli.local_plan_text import explanation, plan_as_json, shell_script

        click.echo(plan_as_json(plan) if as_json else explanation(plan) if explain else shell_script(plan))
        return 0

    from hvdkit.local.record import begin
    from hvdkit.local.supervisor import RunOptions

    variables = {setting.name: setting.value for setting in plan.settings}
    with sources_named(settings):
        check_command(spec, variables["PATH"])
    check_debug_rank(debug_rank, spec)
    threads_text = variables["OMP_NUM_THREADS"] + (" thread" if variables["OMP_NUM_THREADS"] == "1" else " threads")
    ranks = f"{spec.world_size} rank{'s' if spec.world_size > 1 else ''}"
    click.echo(f"hvdkit: {spec.name}: {ranks} by {plan.controller}, {threads_text} each; backend {reason}", err=True)
    recorder = begin(spec)
    options = RunOptions(log_dir=log_dir or recorder.log_dir, debug_rank=debug_rank, grace=spec.run.grace)
    options.start_timeout = start_timeout or options.start_timeout
    with recorder.ends_with_it(), contextlib.redirect_stdout(sys.stderr if as_json else sys.stdout):
        outcome = run_here(plan, options)
    recorder.end(**asdict(outcome))
    report(spec.name, outcome, as_json=as_json)
    return outcome.exit_code


def refuse_late_flags(command_line: tuple[str, ...]) -> None:
    """InputError for a flag of ours that stands after a command without `--`: the command would get it instead."""
    words = sys.argv[1:]  # click has taken the `--` away
    if "launch" not in words or "--" in words:
        return
    ours = {name for option in click.get_current_context().command.params for name in option.opts if name[:2] == "--"}
    late = next((word for word in command_line if word.partition("=")[0] in ours), None)
    if late is not None:
        raise InputError(
            f"{late.partition('=')[0]}: it stands after the command and would go to it; put it before the command, or "
            f"write -- before '{command_line[0]}' if the command is to have it."
        )


def choose_backend(settings: list[Setting]) -> tuple[str, bool, str]:
    """The backend, whether it runs on this machine, and for the first line of output why it was chosen.

    A cluster is one that kubectl would find; nobody asks whether it answers.
    """
    from hvdkit.cluster.connection import check_named, configured_in

    asked = find(settings, "backend")
    configured = configured_in()
    none = "no cluster is configured"
    if asked is not None and asked.value != "auto":
        why = "as asked" if asked.from_flag else asked.source
        if asked.value == MONARCH and not configured:
            check_named()
            return MONARCH, True, f"{MONARCH} on this machine ({why}; {none})"
        return asked.value, asked.value == LOCAL, f"{asked.value} ({why})"
    if hosts := find(settings, "hosts"):
        return LOCAL, True, f"{LOCAL} ({hosts.source})"
    if not configured:
        check_named()  # a wrong path must not train here what was meant for a cluster
        return LOCAL, True, f"{LOCAL} ({none})"
    return "mpijob", False, f"mpijob (a cluster is configured in {configured})"


def with_backend(settings: list[Setting], backend: str) -> list[Setting]:
    """The settings with the backend that was chosen."""
    asked = find(settings, "backend")
    source = asked.source if asked is not None and asked.value == backend else DEFAULT
    return merge(settings, [Setting(path=("backend",), value=backend, source=source)])


def with_hosts(settings: list[Setting], text: str | None) -> list[Setting]:
    """The settings with `--hosts`, and as many workers as there are hosts unless somebody who knows them says else."""
    if text is not None:
        slots = find(settings, "slots")
        hosts = parse_hosts(text, slots.value if slots else 1)
        settings = merge(settings, [Setting(path=("hosts",), value=hosts, source="--hosts")])
    given, workers = find(settings, "hosts"), find(settings, "workers")
    if given is None or (workers is not None and (workers.from_flag or not given.from_flag)):
        return settings
    return merge(settings, [Setting(path=("workers",), value=len(given.value), source=given.source)])


def parse_hosts(text: str, slots: int) -> tuple[Host, ...]:
    """`a:4,b:4` to hosts; a host without a number has `slots`."""
    hosts = []
    with sources_named([Setting(path=("hosts",), value=text, source="--hosts")]):
        for part in text.split(","):
            name, colon, number = part.strip().partition(":")
            if colon and not number.isdecimal():
                raise InputError(f"hosts: '{part.strip()}' has no number of slots after ':'; write --hosts a:4,b:4.")
            hosts.append(Host(name=name, slots=int(number) if colon else slots))
    return tuple(hosts)


def show_cluster_job(settings: list[Setting], *, explain: bool, as_json: bool) -> None:
    """What `hvdkit render` prints, byte for byte; or each setting and where it came from."""
    text = manifest(settings, "json" if as_json else "yaml")
    if not explain:
        click.echo(text, nl=False)
        return
    from hvdkit.cli.config import show, to_json
    from hvdkit.config.settings import all_settings

    everything = all_settings(settings)
    click.echo(to_json(everything)) if as_json else show(everything)


def local_spec(settings: list[Setting]) -> JobSpec:
    """The spec of a run on this machine.

    A flag that it has no use for is an error. hvdkit.yaml may say such things: the same file serves a cluster.
    """
    backend = find(settings, "backend").value
    used = [one for one in settings if USED_HERE[backend] & {one.path[0], one.name}]
    for setting in settings:
        if setting.from_flag and setting not in used:
            raise InputError(
                f"{setting.source}: backend {backend} on this machine has no use for it; leave it out, or choose the "
                "--backend of a cluster."
            )
    spec = spec_of(used)
    with sources_named(settings):
        if spec.backend == LOCAL and spec.engine == "ddp":
            raise InputError("engine: backend local starts Horovod ranks; for DDP use --backend monarch, or torchrun.")
        if spec.timeline is not None and Path(spec.timeline).is_dir():
            raise InputError(f"timeline: '{spec.timeline}' is a folder; name a file in it.")
        if spec.timeline is not None and not Path(spec.timeline).absolute().parent.is_dir():
            raise InputError(f"timeline: the folder of '{spec.timeline}' is not there; make it, or name another file.")
    return replace(spec, timeline=str(Path(spec.timeline).absolute())) if spec.timeline else spec


def local_plan(spec: JobSpec) -> "LocalPlan":
    """The processes to start on this machine."""
    from hvdkit.jobs import local
    from hvdkit.local.machine import read_machine

    if spec.backend == LOCAL:
        return local.render(spec, read_machine())
    from hvdkit.jobs.monarch import check
    from hvdkit.local.monarch import check_installed, plan_here

    check(spec)  # what the mesh of a cluster cannot do, this one cannot either
    check_installed()
    return plan_here(spec, read_machine())


def run_here(plan: "LocalPlan", options: "RunOptions") -> "Outcome":
    """Run the plan to its end."""
    from hvdkit.local import monarch, supervisor

    return monarch.run(plan, options) if plan.controller == MONARCH else supervisor.run(plan, options)


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
    if spec.backend == MONARCH:
        raise InputError("--debug-rank: a Monarch mesh cannot give a rank this terminal; use --backend local.")
    if not 0 <= debug_rank < spec.world_size:
        raise InputError(f"--debug-rank: there is no rank {debug_rank} in a world of {spec.world_size}.")
    if spec.hosts or not sys.stdin.isatty():
        raise InputError("--debug-rank: pdb needs this terminal: no --hosts, and no input from a file or pipe.")


def report(name: str, outcome: "Outcome", *, as_json: bool) -> None:
    """Say how the run ended."""
    if as_json:
        click.echo(json.dumps({"version": 1, "name": name, **asdict(outcome)}))
        return
    if not outcome.reason:
        return
    click.echo(f"hvdkit: {outcome.reason}; exit code {outcome.exit_code}", err=True)
    if outcome.tail:
        whose = f" of rank {outcome.rank}" if outcome.rank is not None else ""
        click.echo(f"hvdkit: the last lines{whose}:", err=True)
        for line in outcome.tail:
            click.echo(f"  {line}", err=True)
