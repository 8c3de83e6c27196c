"""`hvdkit render`: the manifest of a job, from flags and hvdkit.yaml."""

import os
from pathlib import Path
from typing import Any

import click

from hvdkit.cli.job_flags import job_flags, load, warn_of_typos
from hvdkit.config.settings import Setting, find, make_spec, sources_named
from hvdkit.errors import EnvironmentProblem
from hvdkit.jobs import render
from hvdkit.jobs.spec import JobSpec

_LETTERS = "bcdfghjklmnpqrstvwxz2456789"  # no vowels: a random name is never a word

EXAMPLES = """\b
Examples:
  hvdkit render --backend mpijob --workers 4 --nfs 10.0.0.5:/exports/data:/data
  hvdkit render --backend indexed-job --workers 2 -- python train.py --lr 1
  hvdkit render --profile gpu -o job.yaml              settings of hvdkit.yaml
  hvdkit render --backend job | kubectl apply -f -     straight to a cluster
"""


@click.command(epilog=EXAMPLES, context_settings={"allow_interspersed_args": False})
@job_flags
@click.option("--output", "-o", type=click.Path(dir_okay=False), help="Write to this file.  [default: print it]")
@click.option("--format", "form", type=click.Choice(["yaml", "json"]), default="yaml", show_default=True, help="Text.")
@click.argument("command_line", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND …]")
def command(output: str | None, form: str, command_line: tuple[str, ...], **flags: Any) -> int:
    """Print the manifest of a job on a cluster; nothing is sent to one.

    What no flag says comes from HVDKIT_* variables, then from hvdkit.yaml ('hvdkit config' shows which). Without a
    COMMAND the job trains a small network on MNIST.
    """
    text = manifest(load(flags, command_line), form)
    warn_of_typos()
    if output is None or output == "-":
        click.echo(text, nl=False)
        return 0
    try:
        Path(output).write_text(text, encoding="utf-8")
    except OSError as error:
        raise EnvironmentProblem(f"--output: {output} cannot be written: {error.strerror}.") from None
    return 0


def manifest(settings: list[Setting], form: str = "yaml") -> str:
    """The text of the objects that the settings ask for."""
    from hvdkit.jobs.yaml_text import to_json, to_yaml

    spec = spec_of(settings)
    with sources_named(settings):
        objects = render(spec)
    return to_json(objects) if form == "json" else to_yaml(objects)


def spec_of(settings: list[Setting]) -> JobSpec:
    """The spec of the settings; a job without a name gets one that no other job is likely to have."""
    generated = find(settings, "generate_name")
    if generated is not None and generated.value:
        return make_spec(settings, name="train")  # the cluster adds five characters itself
    return make_spec(settings, name=unique_name("train"))


def unique_name(stem: str) -> str:
    """A name with five random characters at its end."""
    # Not from `secrets`, whose import alone takes longer than the rest of this file.
    return f"{stem}-{''.join(_LETTERS[byte % len(_LETTERS)] for byte in os.urandom(5))}"
