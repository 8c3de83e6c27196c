"""`hvdkit doctor`: what works on this machine, what does not, and the way out."""

import click

from hvdkit.checks.doctor import ROLES, examine
from hvdkit.checks.doctor_finding import FAILURE, OK, WARNING, Finding

EXAMPLES = """\b
Examples:
  hvdkit doctor                  everything
  hvdkit doctor --role worker    only what a worker's image needs
  hvdkit doctor --json           for machines
"""


@click.command(epilog=EXAMPLES)
@click.option("--role", type=click.Choice(ROLES), help="Check only what the image of this role needs.")
@click.option("--json", "as_json", is_flag=True, help="The findings as JSON.")
def command(role: str | None, as_json: bool) -> int:
    """Say what works on this machine and how to mend what does not.

    Exit code 1 when something fails, 0 when there are only warnings.
    """
    if as_json:
        findings = list(examine(role))
        click.echo(to_json(findings))
    else:
        findings = show_table(role) if click.get_text_stream("stdout").isatty() else show_plain(role)
    return int(any(finding.status == FAILURE for finding in findings))


def to_json(findings: list[Finding]) -> str:
    """All findings, with a count of each status."""
    import json
    from collections import Counter
    from dataclasses import asdict

    counts = Counter(finding.status for finding in findings)
    document = {
        "version": 1,
        "failures": counts[FAILURE],
        "warnings": counts[WARNING],
        "findings": [asdict(finding) for finding in findings],
    }
    return json.dumps(document, indent=2)


def show_plain(role: str | None) -> list[Finding]:
    """A line a finding, as it comes, and the way out below it."""
    findings = []
    for finding in examine(role):
        findings.append(finding)
        click.echo(f"{finding.status:<8} {finding.name}: {finding.text}")
        if finding.way_out:
            click.echo(f"{'':<8} -> {finding.way_out}")
    click.echo(summary(findings))
    return findings


def show_table(role: str | None) -> list[Finding]:
    """A table for people; while it is made, the line below says how far it is."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    colours = {OK: "green", WARNING: "yellow", FAILURE: "red"}
    console = Console()
    table = Table("", "", "", box=None, pad_edge=False, show_header=False)
    findings = []
    with console.status("examining this machine") as status:
        for finding in examine(role):
            findings.append(finding)
            status.update(f"{len(findings)} checked, last {finding.name}")
            table.add_row(Text(finding.status, style=colours[finding.status]), finding.name, Text(finding.text))
    console.print(table)
    for finding in findings:
        if finding.way_out:
            # Not in the table and not wrapped, so that a command can be copied whole.
            console.print(Text(f"{finding.name} -> {finding.way_out}"), soft_wrap=True)
    console.print(summary(findings), highlight=False)
    return findings


def summary(findings: list[Finding]) -> str:
    """The last line."""
    failures = sum(finding.status == FAILURE for finding in findings)
    warnings = sum(finding.status == WARNING for finding in findings)
    if failures:
        return f"{failures} of {len(findings)} checks failed, {warnings} gave a warning."
    return f"nothing failed; {warnings} of {len(findings)} checks gave a warning." if warnings else "all is well."
