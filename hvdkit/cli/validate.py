"""`hvdkit validate`: are these manifests right, before a cluster sees them."""

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from hvdkit.checks.validate import Report

COLOURS = {"error": "red", "warning": "yellow", "note": "cyan"}

EXAMPLES = """\b
Examples:
  hvdkit validate mpijob.yaml                          one file
  hvdkit validate manifests/ nfs/                      every *.yaml, *.yml and *.json below
  kustomize build . | hvdkit validate -                standard input
  hvdkit validate --pod-security restricted job.yaml   as in a namespace that enforces it
"""


@click.command(epilog=EXAMPLES)
@click.argument("paths", nargs=-1, required=True, metavar="FILE|FOLDER|-...")
@click.option(
    "--pod-security",
    type=click.Choice(["privileged", "baseline", "restricted"]),
    help="What the namespaces enforce, where no Namespace in the input says it.",
)
@click.option("--strict", is_flag=True, help="Warnings fail, too.")
@click.option("--json", "as_json", is_flag=True, help="The findings as JSON.")
def command(paths: tuple[str, ...], pod_security: str | None, strict: bool, as_json: bool) -> int:
    """Check manifests against the schemas of Kubernetes 1.35, MPIJob, PyTorchJob, MonarchMesh, PodGroup, PodMonitor
    and Kueue's kinds, unknown fields included, and against the traps that no schema knows.

    Nothing is sent to a cluster. Exit code 0 when all is well, 1 when there are errors, 2 when a file cannot be read.
    """
    from hvdkit.checks.validate import ERROR, WARNING, validate_files

    report = validate_files(list(paths), pod_security=pod_security)
    click.echo(to_json(report)) if as_json else show(report)
    return int(report.count(ERROR) > 0 or (strict and report.count(WARNING) > 0))


def show(report: "Report") -> None:
    """A line a finding, the way out below it, and a summary."""
    for finding in report.findings:
        place = f"{finding.file}:{finding.line}" if finding.line else finding.file
        severity = click.style(finding.severity, fg=COLOURS[finding.severity])
        subject = f"{finding.object}: " if finding.object else ""
        click.echo(f"{place}: {severity}: {subject}{finding}")
        if finding.way_out:
            click.echo(f"  -> {finding.way_out}")
    click.echo(summary(report))


def summary(report: "Report") -> str:
    """The last line."""
    checked = f"{counted(report.objects, 'object')} in {counted(report.files, 'file')}"
    return f"{checked}: {counted(report.count('error'), 'error')}, {counted(report.count('warning'), 'warning')}."


def counted(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"


def to_json(report: "Report") -> str:
    """All findings, with counts."""
    import json
    from dataclasses import asdict

    document = {
        "version": 1,
        "files": report.files,
        "objects": report.objects,
        "errors": report.count("error"),
        "warnings": report.count("warning"),
        "findings": [asdict(finding) for finding in report.findings],
    }
    return json.dumps(document, indent=2)
