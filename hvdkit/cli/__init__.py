"""The `hvdkit` command. Each subcommand is one file here and is imported only when it is used."""

import importlib
import sys

import click

from hvdkit import __version__
from hvdkit.errors import EXIT_INTERRUPTED, HvdkitError

# The one-line help stands here and not in the command's file, so that `hvdkit --help` imports none of them.
COMMANDS = {
    "launch": "Run a training command on N workers.",
    "render": "Print the manifest of a job on a cluster.",
    "status": "Show where a job stands.",
    "list": "List the jobs.",
    "logs": "Show what the ranks of a job said.",
    "why": "Say why a job failed or does not start, and what to do.",
    "wait": "Wait for the end of a job; the exit code is the job's.",
    "exec": "Run a command in a pod of a job.",
    "delete": "End jobs and remove all that was made for them.",
    "suspend": "Suspend a job on a cluster.",
    "resume": "Resume a suspended job.",
    "scale": "Give an elastic job another number of workers.",
    "config": "Show each setting and where it came from; the schema of hvdkit.yaml.",
    "train": "Train a model; this is what the ranks run.",
    "horovod": "Build, install and check Horovod for the installed torch.",
    "image": "Build the container images of launcher and workers, or of your own project.",
    "validate": "Check manifests against the real schemas and the known traps.",
    "doctor": "Say what works on this machine and how to mend what does not.",
    "selftest": "Run real collectives here: correct, how fast, by which library.",
    "bench": "Measure how training scales, and say what limits it.",
    "metrics": "Prune a Pushgateway, print scrape targets and alert rules.",
    "completion": "Print the shell completion for bash, zsh or fish.",
}


class LazyCommands(click.Group):
    """A group whose commands live in files of their own, each as `command`."""

    commands_help = COMMANDS
    module = "hvdkit.cli.{name}"

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.commands_help]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in self.commands_help:
            return None
        return importlib.import_module(self.module.format(name=name)).command

    def resolve_command(self, ctx: click.Context, args: list[str]):
        if args and args[0] not in self.commands_help and not args[0].startswith("-"):
            import difflib

            near = difflib.get_close_matches(args[0], self.commands_help, n=1)
            hint = f" Did you mean '{near[0]}'?" if near else f" '{ctx.command_path} --help' lists the commands."
            raise click.UsageError(f"There is no command '{args[0]}'.{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([*self.commands_help.items()])


@click.group(
    cls=LazyCommands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="'hvdkit COMMAND --help' explains a command, with examples.",
)
@click.version_option(__version__, prog_name="hvdkit")
def cli() -> None:
    """Take a training script from a laptop to many GPUs with Horovod and MPI."""


def main() -> None:
    """Run the command line; turn our errors into one sentence and an exit code."""
    try:
        code = cli.main(standalone_mode=False, prog_name="hvdkit")
    except click.exceptions.Abort:
        code = EXIT_INTERRUPTED
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except HvdkitError as error:
        click.echo(f"hvdkit: {error}", err=True)
        code = error.exit_code
    except BrokenPipeError:
        # The reader of our output has gone (`| head`): nothing is left to say, and nobody to say it to.
        sys.stderr.close()
        code = 0
    sys.exit(code if isinstance(code, int) else 0)
