"""The manifests in nfs/: valid, and alike where they must be; tests/e2e/test_nfs_server.py starts the server."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from hvdkit.checks.validate import ERROR, NOTE, validate_files, validate_objects
from hvdkit.jobs.security import Security
from hvdkit.jobs.volumes import NFS_MOUNT_OPTIONS

ROOT = Path(__file__).parents[2]
NFS = ROOT / "nfs"
VOLUMES = ("volume.yaml", "existing-server.yaml")


def load(name: str) -> list[dict]:
    return list(yaml.safe_load_all((NFS / name).read_text()))


def server() -> dict:
    """The pod of the StatefulSet."""
    return load("server.yaml")[-1]["spec"]["template"]["spec"]


def test_all_that_can_be_applied_is_valid() -> None:
    report = validate_files([str(ROOT / "manifests"), str(NFS)])
    assert [finding for finding in report.findings if finding.severity != NOTE] == []


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_what_kustomize_makes_is_valid_and_whole() -> None:
    built = subprocess.run(["kubectl", "kustomize", str(NFS)], capture_output=True, text=True, timeout=60)
    assert built.returncode == 0, built.stderr
    objects = list(yaml.safe_load_all(built.stdout))
    assert validate_objects(objects) == []
    found = {one["kind"]: one for one in objects}
    assert sorted(found) == ["ConfigMap", "Namespace", "Service", "StatefulSet"]
    pod = found["StatefulSet"]["spec"]["template"]["spec"]
    images = {container["image"] for container in pod["initContainers"] + pod["containers"]}
    assert images == {"registry.example.com/team/hvdkit-nfs:latest"}
    assert {"name": "config", "configMap": {"name": found["ConfigMap"]["metadata"]["name"]}} in pod["volumes"]
    assert found["ConfigMap"]["data"]["ganesha.conf"] == (NFS / "ganesha.conf").read_text()


def test_the_pod_keeps_the_restricted_standard_but_for_its_capability() -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "nfs"}, "spec": server()}
    pod["spec"]["volumes"].append({"name": "volume", "persistentVolumeClaim": {"claimName": "volume-nfs-0"}})
    found = {
        finding.path for finding in validate_objects([pod], pod_security="restricted") if finding.severity == ERROR
    }
    context = "spec.containers[0].securityContext"
    assert found == {context, f"{context}.capabilities.add[0]"}  # the first: allowPrivilegeEscalation


def test_a_mount_that_neither_a_volume_nor_a_claim_template_has_is_an_error() -> None:
    broken = load("server.yaml")[-1]
    broken["spec"]["volumeClaimTemplates"][0]["metadata"]["name"] = "other"
    findings = validate_objects([broken])
    assert {finding.sentence for finding in findings} == {"there is no volume 'volume' in this pod"}
    assert {finding.way_out.rpartition(": ")[2] for finding in findings} == {"config, other, run, tmp"}


def test_server_and_jobs_agree_on_the_user() -> None:
    config = (NFS / "ganesha.conf").read_text()
    anonymous = {int(number) for number in re.findall(r"Anonymous_[ug]id = (\d+);", config)}
    context = server()["securityContext"]
    assert anonymous == {Security().user} == {context[key] for key in ("runAsUser", "runAsGroup", "fsGroup")}
    assert f"USER {context['runAsUser']}:{context['runAsGroup']}" in (NFS / "Dockerfile").read_text()


@pytest.mark.parametrize("name", VOLUMES)
def test_volumes_are_mounted_as_those_that_hvdkit_makes(name: str) -> None:
    volume, claim = load(name)
    assert tuple(volume["spec"]["mountOptions"]) == NFS_MOUNT_OPTIONS
    identity = {key: claim["metadata"][key] for key in ("namespace", "name")}
    assert volume["spec"]["claimRef"] == identity
    assert claim["spec"]["volumeName"] == volume["metadata"]["name"]


def test_the_volume_is_on_the_server() -> None:
    _, service, _ = load("server.yaml")
    name, namespace = service["metadata"]["name"], service["metadata"]["namespace"]
    config = (NFS / "ganesha.conf").read_text()
    exported = re.search(r"Pseudo = (\S+);", config)[1]
    assert load("volume.yaml")[0]["spec"]["nfs"] == {
        "server": f"{name}.{namespace}.svc.cluster.local",
        "path": exported,
    }


def test_the_readme_gives_a_reason_for_each_option() -> None:
    rows = re.findall(r"^\| `([^`]+)` \| (.+) \|$", (NFS / "README.md").read_text(), re.MULTILINE)
    reasons = dict(rows)
    assert set(NFS_MOUNT_OPTIONS) <= reasons.keys()


def test_the_readmes_command_puts_the_address_in() -> None:
    """The second command of the README, with the address in place of the question to the cluster."""
    readme = (NFS / "README.md").read_text()
    (pattern,) = re.findall(r'sed "s/(\S+)/\$ADDRESS/"', readme)
    text, count = re.subn(pattern, "10.96.0.49", (NFS / "volume.yaml").read_text())
    assert count == 1
    assert next(yaml.safe_load_all(text))["spec"]["nfs"]["server"] == "10.96.0.49"
