"""`hvdkit bench report`: recorded results as a page and plots."""

from pathlib import Path

import click

EXAMPLES = """\b
Examples:
  hvdkit bench report scaling                          the folder of a sweep
  hvdkit bench report a/results.json b/results.json --output report
"""


@click.command(epilog=EXAMPLES)
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for report.html and plots/.  [default: that of the one FILE, else 'report']",
)
def command(files: tuple[Path, ...], output: Path | None) -> None:
    """Make a page and plots (PNG, SVG) of one or several results, side by side.

    The page needs no other file and no network, and follows the reader's choice of light or dark.
    """
    from hvdkit.bench.report import write_report
    from hvdkit.bench.result_file import find, load

    paths = [find(path) for path in files]
    folder = output or (paths[0].parent if len(paths) == 1 else Path("report"))
    for path in write_report([load(path) for path in paths], folder):
        click.echo(str(path))
