"""`hvdkit bench project`: what efficiency to expect on more GPUs, by a model that is held against published figures."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hvdkit.bench.networks import DATA_SHEETS, NETWORKS, find_network
from hvdkit.bench.project_allreduce import ALGORITHMS
from hvdkit.errors import InputError

if TYPE_CHECKING:
    from hvdkit.bench.networks import Network
    from hvdkit.bench.project import Projection, Workload
    from hvdkit.bench.project_published import Comparison, Constants

GPUS = "8,16,32,64,128,256,512"
EXAMPLES = """\b
Examples:
  hvdkit bench project --published
  hvdkit bench project --model resnet50 --batch-size 64 --images-per-second 400 --network 100gbe
  hvdkit bench project --gradient-megabytes 1300 --step-seconds 0.45 --network nvlink-ib --gpus 64,512,4096
  hvdkit bench project --result scaling --model resnet50 --network 25gbe
  hvdkit bench project --model resnet50 --step-seconds 1.2 --allreduce allreduce.json --library horovod-mpi --gpus 2,4,8
"""


@click.command(epilog=EXAMPLES)
@click.option("--model", help="A torchvision classifier: its gradients, layer by layer.")
@click.option("--gradient-megabytes", type=click.FloatRange(min=0, min_open=True), help="Instead of --model.")
@click.option("--step-seconds", type=click.FloatRange(min=0, min_open=True), help="A step of one GPU alone.")
@click.option("--images-per-second", type=click.FloatRange(min=0, min_open=True), help="Or its images a second …")
@click.option("--batch-size", type=click.IntRange(min=1), help="… and its batch.")
@click.option("--result", type=click.Path(path_type=Path), help="Or a sweep's folder: its step of one rank.")
@click.option(
    "--spread",
    type=click.FloatRange(min=0, max=1, max_open=True),
    default=0.037,  # as fitted to Horovod's published figures
    show_default=True,
    help="How much ranks differ: standard deviation of a step by its mean.",
)
@click.option("--network", default="100gbe", show_default=True, help=f"Of {', '.join(NETWORKS)}.")
@click.option("--allreduce", type=click.Path(path_type=Path), multiple=True, help="Or fit it to `bench allreduce`.")
@click.option("--library", default="horovod-mpi", show_default=True, help="Of the fit.")
@click.option("--algorithm", type=click.Choice(list(ALGORITHMS)), default="ring", show_default=True)
@click.option("--gpus", default=GPUS, show_default=True, help="Numbers of GPUs.")
@click.option("--gpus-per-server", type=click.IntRange(min=1), help="Other than the network's own.")
@click.option("--published", is_flag=True, help="Hold the model against Horovod's published figures, and stop.")
@click.option("--json", "as_json", is_flag=True, help="The result as JSON.")
def command(published: bool, as_json: bool, gpus: str, algorithm: str, **flags: Any) -> int:
    """Project scaling efficiency to more GPUs.

    A step computes; gradients are reduced while the backward pass goes on, by a model of latency and bandwidth; what
    is left is waited for, and all wait for the slowest rank. The band shows what 20 % of error in every constant would
    do; beyond 512 GPUs, which is the largest run that the model was held against, it grows.
    """
    if published:
        return _published(as_json)
    from hvdkit.bench.project import project_all

    network = _network(flags["network"], flags["allreduce"], flags["library"], flags["gpus_per_server"])
    workload = _workload(**{name: flags[name] for name in _OF_WORKLOAD})
    counts = [_count(word) for word in gpus.split(",") if word.strip()]
    projections = project_all(workload, counts, network, ALGORITHMS[algorithm])
    if as_json:
        click.echo(json.dumps(_as_json(workload, network, algorithm, projections), indent=2))
    else:
        click.echo(describe(workload, network, algorithm, projections))
    return 0


_OF_WORKLOAD = (
    "model",
    "gradient_megabytes",
    "step_seconds",
    "images_per_second",
    "batch_size",
    "result",
    "spread",
)


def _workload(
    model: str | None,
    gradient_megabytes: float | None,
    step_seconds: float | None,
    images_per_second: float | None,
    batch_size: int | None,
    result: Path | None,
    spread: float,
) -> "Workload":
    from hvdkit.bench.project import Workload, even_layers
    from hvdkit.bench.project_models import named_layers

    if result is not None:
        measured, step_seconds = _step_of(result, model)
        model = measured if gradient_megabytes is None else model
    elif step_seconds is None and images_per_second and batch_size:
        step_seconds = batch_size / images_per_second
    if step_seconds is None:
        raise InputError(
            "how long does one GPU take? Say --step-seconds, or --images-per-second and --batch-size, or --result."
        )
    if (model is None) == (gradient_megabytes is None):
        raise InputError("how large are the gradients? Say --model, or --gradient-megabytes, and not both.")
    layers = named_layers(model) if model else even_layers(gradient_megabytes * 1e6)
    return Workload(name=model or "model", step_seconds=step_seconds, layers=layers, spread=spread)


def _step_of(path: Path, model: str | None) -> tuple[str, float]:
    """The model of a sweep, and its step of one rank alone; InputError when it was another model's than asked for."""
    from hvdkit.bench.result_file import find, load
    from hvdkit.bench.summary import summarise

    file = find(path)
    results = load(file)
    measured = results.settings.model
    if model is not None and model != measured:
        raise InputError(
            f"--model {model}: the sweep in {file} measured {measured}; say that one, or --gradient-megabytes."
        )
    singles = [one for one in summarise(results) if one.point.ranks == 1 and one.step_seconds]
    singles.sort(key=lambda one: one.point.engine == "ideal")
    if not singles:
        raise InputError(f"--result {file} has no run of one worker that succeeded.")
    return measured, singles[0].step_seconds.value


def _network(name: str, files: tuple[Path, ...], library: str, per_server: int | None) -> "Network":
    from hvdkit.bench import allreduce
    from hvdkit.bench.project_fit import fit

    network = find_network(name)
    if files:
        measured = [allreduce.load(file) for file in files]
        network = fit([row for one in measured for row in one.rows], library, measured[0].cores).network()
    return replace(network, gpus_per_server=per_server) if per_server else network


def _count(text: str) -> int:
    if not text.strip().isdecimal() or not int(text):
        raise InputError(f"--gpus '{text}' is no number of GPUs; say numbers with commas between, such as {GPUS}.")
    return int(text)


def describe(workload: "Workload", network: "Network", algorithm: str, projections: list["Projection"]) -> str:
    """The projection for people."""
    lines = [
        f"{workload.name}: {workload.gradient_bytes / 1e6:.0f} MB of gradients, "
        f"{1e3 * workload.step_seconds:.0f} ms a step of one GPU, ranks differ by {workload.spread:.1%}",
        f"{network.name}: {network.description}; {algorithm}",
        "",
        f"{'GPUs':>6} {'efficiency':>10} {'band':>12} {'step':>10} {'waits for allreduce':>20} {'for the slowest':>16}",
    ]
    for one in projections:
        step, exposed = 1e3 * one.step_seconds, 1e3 * one.exposed_seconds
        lines.append(
            f"{one.gpus:>6} {one.efficiency:>10.1%} {f'{one.low:.0%} - {one.high:.0%}':>12} "
            f"{step:>7.0f} ms {exposed:>17.0f} ms {1e3 * one.straggling_seconds:>13.0f} ms"
        )
    return "\n".join(lines)


def _as_json(
    workload: "Workload", network: "Network", algorithm: str, projections: list["Projection"]
) -> dict[str, Any]:
    return {
        "version": 1,
        "kind": "projection",
        "workload": {
            "name": workload.name,
            "step_seconds": workload.step_seconds,
            "gradient_bytes": workload.gradient_bytes,
            "spread": workload.spread,
        },
        "network": asdict(network),
        "algorithm": algorithm,
        "projections": [asdict(one) for one in projections],
    }


def _published(as_json: bool) -> int:
    from hvdkit.bench.project_models import named_layers
    from hvdkit.bench.project_published import compare

    constants, comparisons = compare(named_layers)
    if as_json:
        rows = [asdict(one) | {"error_points": one.error_points} for one in comparisons]
        made = {"version": 1, "kind": "published", "constants": asdict(constants), "models": rows}
        click.echo(json.dumps(made, indent=2))
    else:
        click.echo(describe_published(constants, comparisons))
    return 0


def describe_published(constants: "Constants", comparisons: list["Comparison"]) -> str:
    """The check against Horovod's figures, with how much each constant matters."""
    between = DATA_SHEETS["25gbe"].between
    bandwidth = constants.bandwidth * between.bytes_per_second * 8 / 1e9
    latency = constants.latency * between.step_seconds * 1e6
    lines = [
        "Horovod's published efficiency, Pascal GPUs, 4 a server, 25 Gbit/s RoCE, against this model. Fitted to the",
        f"six figures at 16 and 128 GPUs, for all models: {bandwidth:.1f} Gbit/s, {latency:.0f} us a step between",
        f"servers, ranks that differ by {constants.spread:.1%}. The figures at 512 GPUs are held out.",
        "",
        f"{'':<14} {'16 GPUs':>16} {'128 GPUs':>16} {'512 GPUs':>16} {'error':>7} {'unfitted':>9}",
    ]
    for one in comparisons:
        pairs = [f"{one.published.efficiency[gpus]:.1%} {made.efficiency:.1%}" for gpus, made in one.projected.items()]
        cells = " ".join(f"{pair:>16}" for pair in pairs)
        lines.append(f"{one.published.model:<14} {cells} {one.error_points:>+7.1f} {one.unfitted_points:>+9.1f}")
    lines += [
        "",
        "Each pair: published, projected. Errors in points of efficiency at 512 GPUs; 'unfitted' is with the network",
        "by its data sheet. Error when one constant is 20 % smaller / larger:",
    ]
    for name in comparisons[0].sensitivity:
        ends = [(one.published.model, *one.sensitivity[name]) for one in comparisons]
        errors = "   ".join(f"{model} {less:+.1f} / {more:+.1f}" for model, less, more in ends)
        lines.append(f"  {name:<22} {errors}")
    return "\n".join(lines)
