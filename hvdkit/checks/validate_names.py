"""The forms of names that Kubernetes asks for."""

import re
from collections.abc import Iterator

from hvdkit.checks.validate_fields import Manifest
from hvdkit.checks.validate_finding import Problem, shown

LABEL_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
LABEL_1123 = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
QUALIFIED = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")


def label_1035(name: str) -> str | None:
    """What is wrong with a DNS label that must begin with a letter (a Service, a worker); None when it is good."""
    return judged(name, LABEL_1035, 63, "is no DNS label (small letters, digits and '-', a letter first)")


def label_1123(name: str) -> str | None:
    """What is wrong with a DNS label."""
    return judged(name, LABEL_1123, 63, "is no DNS label (small letters, digits and '-')")


def subdomain(name: str) -> str | None:
    """What is wrong with the name of an object."""
    return judged(name, SUBDOMAIN, 253, "is no valid name (small letters, digits, '-' and '.')")


def label_value(value: str) -> str | None:
    """What is wrong with the value of a label; the empty one is fine."""
    form = "is no label value (letters, digits, '-', '_' and '.', a letter or digit at both ends)"
    return judged(value, QUALIFIED, 63, form) if value else None


def label_key(key: str) -> str | None:
    """What is wrong with the key of a label or annotation: an optional domain, a slash, a short name."""
    domain, slash, name = key.rpartition("/")
    if slash and subdomain(domain):
        return "has a prefix that is no domain name"
    return judged(name, QUALIFIED, 63, "is no label key (letters, digits, '-', '_' and '.', perhaps after 'domain/')")


def judged(text: str, form: re.Pattern, longest: int, complaint: str) -> str | None:
    if len(text) > longest:
        return f"has {len(text)} characters, more than {longest}"
    return None if form.fullmatch(text) else complaint


def last_worker(manifest: Manifest, workers: int) -> Iterator[Problem]:
    """A job of workers whose names become DNS names: the last one has the longest."""
    metadata = manifest.root["metadata"]
    field = metadata["name"] if manifest.name else metadata["generateName"]
    if not field.text:
        return
    added = "" if manifest.name else "xxxxx"  # what the API server puts after generateName
    suffix = f"{added}-worker-{max(workers, 1) - 1}"
    reason = label_1035(field.text + suffix)
    if reason:
        sentence = f"the last worker would be called {shown(field.text + suffix, 90)}, which {reason}"
        way_out = f"use at most {63 - len(suffix)} characters: small letters, digits and '-', a letter first"
        yield field.error(sentence, way_out)
