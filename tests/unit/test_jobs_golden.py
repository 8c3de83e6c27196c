"""Whole manifests, compared with the files in `golden/` byte for byte.

After a change that is meant to change them: HVDKIT_WRITE_GOLDEN=1 python -m pytest tests/unit/test_jobs_golden.py,
then read the difference that git shows. This fails all the same, so that nobody leaves the variable set.
"""

import os
from pathlib import Path

import pytest
import yaml
from golden_specs import GOLDEN, spec

from hvdkit.checks.validate import validate_objects
from hvdkit.checks.validate_finding import ERROR
from hvdkit.errors import InputError
from hvdkit.jobs import CLUSTER_BACKENDS, render
from hvdkit.jobs.policy import Elastic
from hvdkit.jobs.spec import JobSpec
from hvdkit.jobs.storage import nfs_through_pv
from hvdkit.jobs.yaml_text import to_yaml

FOLDER = Path(__file__).with_name("golden")


@pytest.mark.parametrize("name", GOLDEN)
def test_manifest(name: str) -> None:
    file = FOLDER / f"{name}.yaml"
    rendered = to_yaml(render(GOLDEN[name]))
    if os.environ.get("HVDKIT_WRITE_GOLDEN"):
        file.write_text(rendered)
        pytest.fail(f"{file.name} was written; unset HVDKIT_WRITE_GOLDEN")
    assert rendered == file.read_text()


@pytest.mark.parametrize("name", GOLDEN)
def test_the_schemas_accept_it(name: str) -> None:
    spec = GOLDEN[name]
    documents = list(yaml.safe_load_all((FOLDER / f"{name}.yaml").read_text()))
    findings = validate_objects(documents, pod_security=kept_level(spec))
    assert [finding for finding in findings if finding.severity == ERROR] == []


def kept_level(spec: JobSpec) -> str:
    """The Pod Security Standard that the pods keep: inline NFS is all that `restricted` settings may still break."""
    inline_nfs = any(volume.nfs for volume in spec.volumes) and not nfs_through_pv(spec)
    return "baseline" if inline_nfs and spec.security.level == "restricted" else spec.security.level


def test_every_file_belongs_to_a_spec() -> None:
    assert {file.stem for file in FOLDER.iterdir()} == set(GOLDEN)


@pytest.mark.parametrize("backend", CLUSTER_BACKENDS)
def test_every_backend_is_seen_in_every_important_shape(backend: str) -> None:
    shapes = [name.removeprefix(f"{backend}-") for name, spec in GOLDEN.items() if spec.backend == backend]
    assert any("cpu" in shape for shape in shapes) and any("gpu" in shape for shape in shapes)
    assert any("pvc" in shape for shape in shapes)
    assert {"restricted", "everything", "nfs-inline", "nfs-pv"} <= set(shapes)
    try:
        render(spec(backend, elastic=Elastic(min_workers=1, max_workers=3)))
    except InputError:
        return  # it cannot
    assert "elastic" in shapes
