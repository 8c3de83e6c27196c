"""`hvdkit completion`: the script that completes commands and flags in a shell."""

import click


@click.command(epilog="\b\nExample:\n  hvdkit completion bash >> ~/.bashrc")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the completion script for SHELL."""
    from click.shell_completion import get_completion_class

    from hvdkit.cli import cli

    completion = get_completion_class(shell)
    assert completion is not None  # the three shells above are the ones click knows
    click.echo(completion(cli, {}, "hvdkit", "_HVDKIT_COMPLETE").source())
