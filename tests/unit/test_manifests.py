"""The files in `manifests/` are what the generator gives, and what a cluster accepts.

After a change that is meant to change them: HVDKIT_WRITE_GOLDEN=1 python -m pytest tests/unit/test_manifests.py,
then read the difference that git shows. This fails all the same, so that nobody leaves the variable set.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from hvdkit.checks.validate import ERROR, NOTE, validate_files, validate_objects
from hvdkit.cli.render import manifest
from hvdkit.cluster.kinds import JOB_KINDS, MADE, MESH, POD, SHARED, VOLUME
from hvdkit.config.file import read_file

FOLDER = Path(__file__).parents[2] / "manifests"
SPECS = sorted((FOLDER / "specs").iterdir(), key=lambda spec: spec.stem)
NAMES = ["indexed-job", "job", "monarch-ddp", "mpijob", "mpijob-gpu", "pytorchjob-cpu", "pytorchjob-gpu"]


def expected(spec: Path) -> str:
    """The header, with the spec's own first line, and the objects."""
    about = spec.read_text().splitlines()[0]
    made = f"# Made from specs/{spec.name}; change that file, not this one:\n"
    way = f"#   hvdkit render --config specs/{spec.name}\n"
    return f"{made}{way}{about}\n{manifest(read_file(spec, None))}"


def test_each_manifest_has_its_spec() -> None:
    assert [spec.stem for spec in SPECS] == NAMES
    assert sorted(file.name for file in FOLDER.glob("*.yaml")) == sorted(
        [*(f"{name}.yaml" for name in NAMES), "kustomization.yaml", "rbac.yaml"]
    )


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.stem)
def test_a_manifest_is_what_render_gives(spec: Path) -> None:
    file = FOLDER / spec.name
    if os.environ.get("HVDKIT_WRITE_GOLDEN"):
        file.write_text(expected(spec))
        pytest.fail(f"{file.name} was written; unset HVDKIT_WRITE_GOLDEN")
    assert spec.read_text().startswith("# ")
    assert file.read_text() == expected(spec)


def test_the_folder_is_valid() -> None:
    report = validate_files([str(FOLDER)])
    assert report.objects >= len(NAMES)
    assert [finding for finding in report.findings if finding.severity != NOTE] == []


def test_a_namespace_that_enforces_restricted_takes_them() -> None:
    """Warnings may stay: what the training operator adds to a PyTorchJob is not ours to mend."""
    report = validate_files([str(FOLDER)], pod_security="restricted")
    assert [finding for finding in report.findings if finding.severity == ERROR] == []


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_the_kustomization_sets_image_namespace_and_nfs_server() -> None:
    built = subprocess.run(["kubectl", "kustomize", str(FOLDER)], capture_output=True, text=True, timeout=60)
    assert built.returncode == 0, built.stderr
    (job,) = yaml.safe_load_all(built.stdout)
    assert validate_objects([job]) == []
    assert job["metadata"]["namespace"] == "default"
    for replica in job["spec"]["mpiReplicaSpecs"].values():
        pod = replica["template"]["spec"]
        (container,) = pod["containers"]
        assert container["image"] == "registry.example.com/team/hvdkit-worker:latest"
        assert {"name": "data", "nfs": {"server": "nfs.example.com", "path": "/exports/data"}} in pod["volumes"]
        assert {"name": "data", "mountPath": "/data"} in container["volumeMounts"]


def test_the_role_has_every_right_that_a_launch_uses() -> None:
    """To make objects, hand them over, look on, and to see whose an object is when its name is taken."""
    role = next(one for one in yaml.safe_load_all((FOLDER / "rbac.yaml").read_text()) if one["kind"] == "Role")
    given = {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    used = {(POD, "list"), (POD, "watch")}
    for kind in MADE:
        used |= {(kind, verb) for verb in ("get", "create")} if kind is not VOLUME else set()
        used |= {(kind, verb) for verb in ("list", "patch", "delete")} if kind not in SHARED else set()
    used |= {(kind, "watch") for kind in (*JOB_KINDS, MESH)}
    assert {(kind.group, kind.plural, verb) for kind, verb in used} <= given
