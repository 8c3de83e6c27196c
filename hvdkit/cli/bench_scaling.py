"""`hvdkit bench scaling`: a sweep over numbers of workers, with intervals, plots and a verdict."""

import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hvdkit.bench.points import ENGINES, MODES, SweepSettings
from hvdkit.cli.bench_jobs import bench_job_flags, create_runner, recorded, settings_of_jobs, take_job_flags
from hvdkit.errors import EXIT_FAILED, HvdkitError, InputError

if TYPE_CHECKING:
    from hvdkit.bench.results import Results
    from hvdkit.bench.runners import Runner
    from hvdkit.config.settings import Setting

DEFAULTS = SweepSettings.__dataclass_fields__

EXAMPLES = """\b
Examples:
  hvdkit bench scaling --workers 1,2,4                     the MNIST network on this machine
  hvdkit bench scaling --workers 1,2,4 --model resnet50 --batch-size 16 -- --image-size 64
  hvdkit bench scaling --workers 1,2 --engines horovod,ddp
  hvdkit bench scaling --workers 1,2 --data synthetic,imagefolder --data-dir /data
  hvdkit bench scaling --workers 1,2,4 --mode strong --batch-size 256
  hvdkit bench scaling --workers 1,2,4,8 --backend mpijob --image registry/me/train:1 --cpus 4
  hvdkit bench scaling --workers 1,2 --pushgateway gateway:9091     results for Grafana

Run the same command again after whatever happened: it goes on where it stopped.
"""


class Words(click.ParamType):
    """Words with commas between."""

    name = "list"

    def convert(self, value, param, ctx) -> tuple[str, ...]:
        return value if isinstance(value, tuple) else tuple(word.strip() for word in value.split(",") if word.strip())


class Numbers(Words):
    """Whole numbers with commas between."""

    def convert(self, value, param, ctx) -> tuple[int, ...]:
        words = super().convert(value, param, ctx)
        if not words or not all(str(word).isdecimal() and int(word) for word in words):
            self.fail(f"'{value}' should be numbers of workers with commas between, such as 1,2,4.", param, ctx)
        return tuple(int(word) for word in words)


@click.command(epilog=EXAMPLES)
@click.option(
    "--workers", type=Numbers(), required=True, metavar="1,2,4", help="Numbers of workers; 1 is always added."
)
@click.option("--slots", type=int, help="Ranks a worker.  [default: one for each of its --gpus, else 1]")
@click.option("--backend", default="local", show_default=True, help="Where the points run: local, mpijob, indexed-job.")
@click.option("--engines", type=Words(), default="horovod", show_default=True, help=f"Of {', '.join(ENGINES)}.")
@click.option(
    "--mode",
    type=click.Choice(MODES),
    default="weak",
    show_default=True,
    help="What stays: a rank's batch (weak) or the world's (strong).",
)
@click.option("--model", default=DEFAULTS["model"].default, show_default=True, help="As for `hvdkit train`.")
@click.option(
    "--data",
    type=Words(),
    default="synthetic",
    show_default=True,
    help="Data sets side by side; synthetic beside a real one shows what input costs.",
)
@click.option("--data-dir", type=click.Path(path_type=Path), help="Folder with the data.")
@click.option(
    "--batch-size",
    type=int,
    default=DEFAULTS["batch_size"].default,
    show_default=True,
    help="Of a rank; in strong mode, of the world.",
)
@click.option("--steps", type=int, default=DEFAULTS["steps"].default, show_default=True, help="Steps of a run.")
@click.option(
    "--warmup-steps",
    type=int,
    default=DEFAULTS["warmup_steps"].default,
    show_default=True,
    help="Of these, steps that do not count.",
)
@click.option(
    "--repeats",
    type=int,
    default=DEFAULTS["repeats"].default,
    show_default=True,
    help="Runs of each point, interleaved; 5 at least.",
)
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    help="Run only the next so many rounds; the same command goes on. So two sweeps can take turns.",
)
@click.option(
    "--threads",
    type=int,
    help="Threads a rank, the same everywhere.  [default: what the largest point allows; in pods, --cpus / --slots]",
)
@click.option("--env", multiple=True, metavar="NAME=VALUE", help="A variable of all ranks; may be repeated.")
@click.option("--no-ideal", is_flag=True, help="Leave out the independent processes without communication.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=1),
    default=1800,
    show_default=True,
    help="Seconds after which a run has failed.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    default="scaling",
    show_default=True,
    help="Folder for results.json, report.html, plots and logs of failures.",
)
@click.option("--pushgateway", metavar="HOST:PORT", help="Pushgateway for the figures; they stay there for Grafana.")
@bench_job_flags
@click.option("--dry-run", is_flag=True, help="Print the command or manifest of each point, and run nothing.")
@click.option(
    "--json", "as_json", is_flag=True, help="Summaries and verdict as JSON on stdout; progress goes to stderr."
)
@click.argument("train_args", nargs=-1, type=click.UNPROCESSED, metavar="[-- TRAIN FLAGS …]")
def command(
    workers: tuple[int, ...],
    slots: int | None,
    rounds: int | None,
    threads: int | None,
    no_ideal: bool,
    data_dir: Path | None,
    timeout: float,
    output: Path,
    pushgateway: str | None,
    dry_run: bool,
    as_json: bool,
    train_args: tuple[str, ...],
    **flags,
) -> int:
    """Measure throughput and efficiency from 1 to N workers, and say what limits them.

    Every point is run several times, in rounds; a figure is a mean over runs with its 95 % interval. Independent
    processes without communication, run in the same rounds, show what the machine itself can do.

    On a cluster each run is a job, deleted when it has ended; what its ranks measured comes back through the log. Flags
    from --name to --no-capacity-check are about these jobs, as for `hvdkit launch`.
    """
    from hvdkit.bench import result_file
    from hvdkit.bench.sweep import open_results, sweep
    from hvdkit.metrics.push import check_address

    if pushgateway is not None:
        check_address(pushgateway)  # a typo is said now, not after an hour
    if data_dir is not None:
        train_args = ("--data-dir", str(data_dir.absolute()), *train_args)
    job_flags, backend = take_job_flags(flags), flags["backend"]
    of_jobs = settings_of_jobs(backend, job_flags)
    counts = tuple(sorted({1, *workers}))
    slots = slots or slots_of(of_jobs)
    settings = SweepSettings(
        workers=counts,
        slots=slots,
        threads=threads or (threads_here(counts[-1] * slots) if backend == "local" else threads_in_pod(of_jobs, slots)),
        ideal=not no_ideal,
        job=recorded(of_jobs),
        train_args=train_args,
        **flags,
    )
    runner = create_runner(backend, of_jobs, job_flags)
    if dry_run:
        click.echo(describe(runner, settings, timeout), nl=False)
        return 0
    results = open_results(settings, output)
    runner.check(settings, timeout)
    try:
        with watching() as watcher:
            sweep(results, runner, output, watcher, timeout=timeout, rounds=rounds)
    except KeyboardInterrupt:
        click.echo("hvdkit: interrupted; the same command goes on where it stopped.", err=True)
        raise
    path = output / result_file.FILE_NAME
    if pushgateway is not None:
        push(pushgateway, path)
    show(results, [path, *report(results, output)], as_json=as_json)
    failed = [run for run in results.runs if run.problem is not None]
    return EXIT_FAILED if failed else 0


def describe(runner: "Runner", settings: SweepSettings, timeout: float) -> str:
    """What the first round runs."""
    from hvdkit.bench.runners import RunSpec

    specs = [RunSpec(point=point, settings=settings, log=Path(), timeout=timeout) for point in settings.points()]
    return "".join(f"# {spec.point}\n{runner.describe(spec)}" for spec in specs)


def push(address: str, path: Path) -> None:
    """The figures to the Pushgateway, as they stand in the file; without it one warning, and all else goes on."""
    from hvdkit.metrics.bench import push_benchmark

    push_benchmark(address, json.loads(path.read_text()), warn=lambda text: click.echo(f"hvdkit: {text}", err=True))


def report(results: "Results", output: Path) -> list[Path]:
    """The files of the report; without matplotlib, or without a successful run, the results stand alone."""
    try:
        from hvdkit.bench.report import write_report

        return write_report([results], output)
    except HvdkitError as error:
        click.echo(f"hvdkit: no report: {error}", err=True)
        return []


def slots_of(of_jobs: list["Setting"]) -> int:
    """Ranks a worker when nobody says: a rank for each GPU."""
    gpus = next((setting.value for setting in of_jobs if setting.name == "resources.gpus"), 0)
    return max(1, gpus)


def threads_here(ranks: int) -> int:
    """Threads a rank that the largest point allows on this machine."""
    from hvdkit.jobs.tuning import threads_per_rank
    from hvdkit.local.machine import usable_cores

    return threads_per_rank(usable_cores(), ranks)


def threads_in_pod(of_jobs: list["Setting"], slots: int) -> int:
    """Threads a rank that a worker's processors allow; InputError where nobody said how many it has."""
    from hvdkit.jobs.resources import Resources
    from hvdkit.jobs.tuning import threads_per_rank

    cpus = next((setting.value for setting in of_jobs if setting.name == "resources.cpus"), None)
    cores = Resources(cpus=cpus).whole_cpus
    if cores is None:
        raise InputError("--threads: say how many threads a rank has in a pod, or how many --cpus a worker has.")
    return threads_per_rank(cores, slots)


@contextlib.contextmanager
def watching():
    """A table on a terminal, lines elsewhere; both on stderr, since stdout is for the result."""
    from rich.console import Console

    from hvdkit.bench.live import Lines, Screen

    console = Console(stderr=True)
    if not console.is_terminal:
        yield Lines(console)
        return
    with Screen(console) as screen:
        yield screen


def show(results: "Results", paths: list[Path], *, as_json: bool) -> None:
    """The table and the verdict, or both as JSON."""
    from hvdkit.bench.summary import summarise
    from hvdkit.bench.verdict import diagnose

    summaries, verdict = summarise(results), diagnose(results)
    if as_json:
        values = {"version": 1, "files": [str(path) for path in paths]}
        values |= {"summaries": [summary.as_json() for summary in summaries], "verdict": verdict.as_json()}
        click.echo(json.dumps(values, indent=2))
        return
    from rich.console import Console

    from hvdkit.bench.live import table

    console = Console(width=None if Console().is_terminal else 160)
    console.print(table(results, summaries))
    for judgement in verdict.judgements:
        click.echo(f"\n{judgement.text}")
        for finding in judgement.limits:
            click.echo(f"  {finding.cause}: {'; '.join(finding.evidence)}.\n    Try: {finding.advice}.")
    failed = [run for run in results.runs if run.problem is not None]
    for run in failed:
        click.echo(f"\n{run.point}, round {run.repeat + 1} failed: {run.problem}")
    if failed:
        click.echo("The same command tries the failed runs again.")
    click.echo("\n" + "\n".join(str(path) for path in paths))
