"""`hvdkit config`: every setting of a job and where it came from, and the schema of hvdkit.yaml."""

import json
from dataclasses import asdict, is_dataclass
from typing import Any

import click

from hvdkit.cli.job_flags import job_flags, load, warn_of_typos
from hvdkit.config.settings import DEFAULT, Setting, all_settings, make_spec

EXAMPLES = """\b
Examples:
  hvdkit config                                what is set, and where
  hvdkit config --all                          the defaults, too
  hvdkit config --profile gpu --workers 4      as 'hvdkit render' would see it
  hvdkit config schema > hvdkit.schema.json    for an editor's completion

\b
A hvdkit.yaml:
  version: 1
  backend: mpijob
  image: registry.example.com/team/train:1.0
  command: [python, train.py]
  profiles:
    gpu:
      slots: 8
      resources: {gpus: 8}
"""


@click.group(epilog=EXAMPLES, invoke_without_command=True)
@job_flags
@click.option("--all", "everything", is_flag=True, help="Also the fields that have their default.")
@click.option("--json", "as_json", is_flag=True, help="As JSON, always with the defaults.")
@click.pass_context
def command(context: click.Context, everything: bool, as_json: bool, **flags: Any) -> int:
    """Show each setting and where it came from: a flag, a variable, hvdkit.yaml or a default.

    Flags win over HVDKIT_* variables, which are named after the field (HVDKIT_WORKERS, HVDKIT_RESOURCES_GPUS), and
    these over hvdkit.yaml. A list is replaced as a whole, a mapping such as env key by key.
    """
    if context.invoked_subcommand:
        return 0
    given = load(flags)
    make_spec(given, name="train")  # settings that contradict each other are an error here as in any other command
    settings = all_settings(given)
    if as_json:
        click.echo(to_json(settings))
    else:
        show(settings if everything else [setting for setting in settings if setting.source != DEFAULT])
    warn_of_typos()
    return 0


@command.command("schema")
def schema_command() -> int:
    """Print the JSON Schema of hvdkit.yaml.

    An editor with a YAML language server finds it by a first line such as
    # yaml-language-server: $schema=hvdkit.schema.json
    """
    from hvdkit.config.schema import schema

    click.echo(json.dumps(schema(), indent=2))
    return 0


def show(settings: list[Setting]) -> None:
    """A line a setting."""
    if not settings:
        click.echo("Nothing is set; --all shows the defaults.")
        return
    rows = [(one.name, json.dumps(plain(one.value), ensure_ascii=False), one.source) for one in settings]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    for name, value, source in rows:
        click.echo(f"{name:{widths[0]}}  {value:{min(widths[1], 40)}}  {source}")


def to_json(settings: list[Setting]) -> str:
    """All settings for machines."""
    rows = [{"name": one.name, "value": plain(one.value), "source": one.source} for one in settings]
    return json.dumps({"version": 1, "settings": rows}, indent=2, ensure_ascii=False)


def plain(value: Any) -> Any:
    """A value as JSON knows it; what a part leaves open is left out."""
    if is_dataclass(value):
        return {key: plain(member) for key, member in asdict(value).items() if member not in (None, (), {})}
    if isinstance(value, (tuple, list)):
        return [plain(member) for member in value]
    return {key: plain(member) for key, member in value.items()} if isinstance(value, dict) else value
