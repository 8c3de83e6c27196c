"""`hvdkit validate`: manifests against the real schemas, and the traps that no schema knows."""

from collections.abc import Iterable
from dataclasses import dataclass

from hvdkit.checks.validate_catalog import schema_problems
from hvdkit.checks.validate_fields import Field, Manifest
from hvdkit.checks.validate_finding import ERROR, NOTE, WARNING, Finding, Problem, written
from hvdkit.checks.validate_input import KUSTOMIZATION, Source, objects, parse, read_sources, too_deep
from hvdkit.checks.validate_traps import input_problems, is_old_mpijob, object_problems
from hvdkit.checks.validate_traps_security import enforced, security


@dataclass(frozen=True)
class Report:
    """Everything that was found, and how much was looked at."""

    findings: list[Finding]
    files: int
    objects: int

    def count(self, severity: str) -> int:
        return sum(finding.severity == severity for finding in self.findings)


def validate_files(arguments: list[str], *, pod_security: str | None = None) -> Report:
    """Check files, folders and - (standard input). Raises InputError for what cannot be read."""
    return validate_sources(read_sources(arguments), pod_security=pod_security)


def validate_sources(sources: list[Source], *, pod_security: str | None = None) -> Report:
    """Check texts that are already read, as one input."""
    manifests, findings = [], []
    for source in sources:
        of_source, problems = parse(source)
        manifests += of_source
        findings += problems
    findings += check(manifests, pod_security)
    order = {source.name: place for place, source in enumerate(sources)}
    findings.sort(key=lambda finding: (order[finding.file], finding.line or 0, finding.document))
    return Report(findings, len(sources), len(manifests))


def validate_objects(objects_: list[dict], *, pod_security: str | None = None) -> list[Finding]:
    """Check objects that come from no file, as one input; `document` is an object's place in the list, from 1.

    `pod_security` is the level of the Pod Security Standards (baseline, restricted) that the objects' namespaces
    enforce; a Namespace in the list that says otherwise counts more.
    """
    manifests, findings = [], []
    for number, value in enumerate(objects_, 1):
        if too_deep(value):
            findings.append(Finding(ERROR, "", number, None, "", "", "is nested too deep", "no manifest needs that"))
            continue
        for field in objects(Field(value)):
            manifests.append(Manifest(field, document=number, document_value=value))
    return findings + check(manifests, pod_security)


def check(manifests: list[Manifest], pod_security: str | None) -> list[Finding]:
    """Schemas, traps of each object, traps between objects."""
    levels = enforced(manifests)
    findings = []
    for manifest in manifests:
        if manifest.group == "kustomize.config.k8s.io":
            findings += placed(manifest, [Problem(NOTE, (), *KUSTOMIZATION)])
            continue
        traps = list(object_problems(manifest))
        level = levels.get(manifest.namespace, pod_security)
        if level:
            traps += security(manifest, level)
        by_schema = [] if is_old_mpijob(manifest) else schema_problems(manifest)
        # Where a trap has something to say of a field it knows better than the schema.
        known = {problem.path for problem in traps}
        problems = [problem for problem in by_schema if problem.path not in known] + traps
        findings += placed(manifest, problems)
    for manifest, problem in input_problems(manifests):
        findings += placed(manifest, [problem])
    return list(dict.fromkeys(findings))


def placed(manifest: Manifest, problems: Iterable[Problem]) -> list[Finding]:
    """Problems with the file and line of their object."""
    return [
        Finding(
            severity=problem.severity,
            file=manifest.file,
            document=manifest.document,
            line=manifest.line_of(problem.path),
            object=manifest.title,
            path=written(problem.path),
            sentence=problem.sentence,
            way_out=problem.way_out,
        )
        for problem in problems
    ]


__all__ = ["ERROR", "NOTE", "WARNING", "Finding", "Report", "validate_files", "validate_objects", "validate_sources"]
