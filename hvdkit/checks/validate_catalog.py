"""Which schema belongs to which kind.

The files in `schemas/` are those of the releases that we support, unmodified (NOTICE there says which). They are read
when the first object of a kind turns up.
"""

import gzip
import json
from functools import cache
from pathlib import Path

from hvdkit.checks.validate_fields import Manifest
from hvdkit.checks.validate_finding import ERROR, WARNING, Problem
from hvdkit.checks.validate_schema import Schema, nearest

FOLDER = Path(__file__).with_name("schemas")
KUBERNETES = "1.35"
KUBERNETES_FILE = "kubernetes-v1.35.4-swagger.json.gz"
OBJECT_META = {"$ref": "#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"}

# A further custom kind is its definition in `schemas/` and a line here.
CUSTOM_KINDS = {
    ("kubeflow.org", "MPIJob"): "kubeflow.org_mpijobs.yaml",
    ("kubeflow.org", "PyTorchJob"): "kubeflow.org_pytorchjobs.yaml",
    ("monarch.pytorch.org", "MonarchMesh"): "monarch.pytorch.org_monarchmeshes.yaml",
    ("monitoring.coreos.com", "PodMonitor"): "monitoring.coreos.com_podmonitors.yaml",
    ("scheduling.x-k8s.io", "PodGroup"): "scheduling.x-k8s.io_podgroups.yaml",
    ("scheduling.volcano.sh", "PodGroup"): "scheduling.volcano.sh_podgroups.yaml",
    ("kueue.x-k8s.io", "ClusterQueue"): "kueue.x-k8s.io_clusterqueues.yaml",
    ("kueue.x-k8s.io", "LocalQueue"): "kueue.x-k8s.io_localqueues.yaml",
    ("kueue.x-k8s.io", "ResourceFlavor"): "kueue.x-k8s.io_resourceflavors.yaml",
    ("kueue.x-k8s.io", "WorkloadPriorityClass"): "kueue.x-k8s.io_workloadpriorityclasses.yaml",
}


def schema_problems(manifest: Manifest) -> list[Problem]:
    """The object against the schema of its kind, or why there is none to compare it with."""
    root = manifest.root
    for key, example in (("apiVersion", "batch/v1"), ("kind", "Job")):
        if not root[key].text:
            return [root[key].error("is missing", f"every object names its {key}, as in '{key}: {example}'")]
    schema = schema_of(manifest.api_version, manifest.kind)
    if schema is None:
        return [unknown_kind(manifest)]
    return schema.problems(root.value, root.path)


@cache
def schema_of(api_version: str, kind: str) -> Schema | None:
    """The schema of a kind, None when we have none."""
    group, _, version = api_version.rpartition("/")
    definitions, index = kubernetes()
    if (api_version, kind) in index:
        return Schema(definitions[index[api_version, kind]], definitions, custom=False)
    if (group, kind) in CUSTOM_KINDS:
        top = custom_versions(CUSTOM_KINDS[group, kind]).get(version)
        if top:
            # A definition says no more of metadata than that it is there: the API server knows the rest.
            properties = {**top["properties"], "metadata": OBJECT_META}
            return Schema({**top, "properties": properties}, definitions, custom=True)
    return None


@cache
def kubernetes() -> tuple[dict, dict[tuple[str, str], str]]:
    """Kubernetes' definitions, and which of them is the one of an API version and kind."""
    document = json.loads(gzip.decompress((FOLDER / KUBERNETES_FILE).read_bytes()))
    definitions = document["definitions"]
    index = {}
    for name, definition in definitions.items():
        for served in definition.get("x-kubernetes-group-version-kind", ()):
            api_version = "/".join(part for part in (served["group"], served["version"]) if part)
            index[api_version, served["kind"]] = name
    return definitions, index


@cache
def custom_versions(file: str) -> dict[str, dict]:
    """The schemas of a custom resource definition, by version."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    definition = yaml.load((FOLDER / file).read_bytes(), Loader=loader)
    return {version["name"]: version["schema"]["openAPIV3Schema"] for version in definition["spec"]["versions"]}


def unknown_kind(manifest: Manifest) -> Problem:
    """Why an object has no schema: a slip of the pen, an API that is gone, or a kind that we do not know."""
    api_version, kind, group = manifest.api_version, manifest.kind, manifest.group
    _, index = kubernetes()
    kind_path, version_path = manifest.root["kind"].path, manifest.root["apiVersion"].path
    if (group, kind) in CUSTOM_KINDS:
        served = ", ".join(f"{group}/{version}" for version in custom_versions(CUSTOM_KINDS[group, kind]))
        return Problem(ERROR, version_path, f"{kind} is not served as {api_version}", f"write {served}")
    # Groups with a dot are somebody's custom kinds, which may well be called like one of Kubernetes' own.
    of_kubernetes = "." not in group or group.endswith(".k8s.io")
    served = sorted(version for version, name in index if name == kind)
    if served and of_kubernetes:
        sentence = f"Kubernetes {KUBERNETES} does not serve {kind} as {api_version}"
        return Problem(ERROR, version_path, sentence, f"write {', '.join(served[-2:])}")
    near = nearest(kind, [name for version, name in index if version == api_version])
    near = near or nearest(kind, [name for of_group, name in CUSTOM_KINDS if of_group == group])
    if near:
        return Problem(ERROR, kind_path, f"{api_version} has no kind '{kind}'; did you mean '{near}'?", f"write {near}")
    if any(version == api_version for version, _ in index):
        near = nearest(kind, sorted(name for _, name in index))
        way_out = f"write 'apiVersion: {max(v for v, name in index if name == near)}', 'kind: {near}'" if near else ""
        sentence = f"{api_version} has no kind '{kind}'" + (f"; did you mean '{near}'?" if near else "")
        return Problem(ERROR, kind_path, sentence, way_out or "'kubectl api-resources' lists the kinds of a cluster")
    sentence = f"not checked: hvdkit has no schema of {kind} ({api_version})"
    return Problem(WARNING, kind_path, sentence, "'kubectl apply --dry-run=server' asks the cluster")
