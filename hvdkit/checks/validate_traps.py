"""Which traps are looked for in which objects, and those that concern any object or several together."""

from collections.abc import Iterable, Iterator
from decimal import Decimal

from hvdkit.checks.validate_catalog import schema_of
from hvdkit.checks.validate_fields import Field, Manifest, pods
from hvdkit.checks.validate_finding import NOTE, Problem, shown
from hvdkit.checks.validate_names import label_1035, label_key, label_value, subdomain
from hvdkit.checks.validate_quantity import quantity
from hvdkit.checks.validate_traps_jobs import JOB_TRAPS, MESH_TRAPS
from hvdkit.checks.validate_traps_mpijob import API_VERSION, MPIJOB_TRAPS, old_api
from hvdkit.checks.validate_traps_pods import POD_TRAPS, nfs_source
from hvdkit.checks.validate_traps_pytorchjob import PYTORCHJOB_TRAPS

KIND_TRAPS = {
    ("kubeflow.org", "MPIJob"): MPIJOB_TRAPS,
    ("kubeflow.org", "PyTorchJob"): PYTORCHJOB_TRAPS,
    ("monarch.pytorch.org", "MonarchMesh"): MESH_TRAPS,
    ("batch", "Job"): JOB_TRAPS,
}

# The names of these are paths, not DNS names: system:node and the like.
FREE_NAMES = {"Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"}
JOB_LABELS = ("job-name", "batch.kubernetes.io/job-name")


def object_problems(manifest: Manifest) -> Iterator[Problem]:
    """Every trap in one object."""
    if is_old_mpijob(manifest):
        yield from old_api(manifest)
        return
    if has_name(manifest):
        yield from names(manifest)
    yield from labels(manifest.root["metadata"]["labels"])
    if manifest.kind == "PersistentVolume":
        yield from nfs_source(manifest.root["spec"]["nfs"])
    for pod in pods(manifest):
        for trap in POD_TRAPS:
            yield from trap(pod)
        if pod.labels.path != ("metadata", "labels"):
            yield from labels(pod.labels)
    for trap in KIND_TRAPS.get((manifest.group, manifest.kind), ()):
        yield from trap(manifest)


def is_old_mpijob(manifest: Manifest) -> bool:
    """Then its schema is another one and nothing else is worth saying."""
    return manifest.kind == "MPIJob" and manifest.group == "kubeflow.org" and manifest.api_version != API_VERSION


def has_name(manifest: Manifest) -> bool:
    """Reviews are questions, not objects; and of a kind that we do not know we cannot say."""
    return not manifest.kind.endswith("Review") and schema_of(manifest.api_version, manifest.kind) is not None


def names(manifest: Manifest) -> Iterator[Problem]:
    """Every object needs a name, and most names are parts of DNS names."""
    metadata = manifest.root["metadata"]
    name = metadata["name"]
    if not name.given or name.text == "":
        if not metadata["generateName"].text:
            yield name.error("is missing", "every object needs a name")
        else:
            sentence = "no name but generateName, which 'kubectl apply' refuses"
            yield Problem(NOTE, metadata["generateName"].path, sentence, "use 'kubectl create'")
    elif name.text is not None and manifest.kind not in FREE_NAMES:
        reason = (label_1035 if manifest.kind == "Service" else subdomain)(name.text)
        if reason and manifest.kind not in ("MPIJob", "PyTorchJob", "MonarchMesh"):  # they have rules of their own
            yield name.error(f"{shown(name.text, 90)} {reason}", "choose another name")


def labels(field: Field) -> Iterator[Problem]:
    """Labels are short words: a command line or a date with colons does not fit."""
    for key, value in field.entries():
        reason = label_key(key)
        if reason:
            yield value.error(f"the key {reason}", "shorten or rename it; annotations may hold any text as value")
        reason = label_value(value.text) if value.text is not None else None
        if reason:
            yield value.error(f"{shown(value.text, 90)} {reason}", "use an annotation for it")


class Known:
    """Objects of the input by name. A folder may hold variants: then the one in the same file is meant."""

    def __init__(self, manifests: Iterable[Manifest]):
        self.found: dict[tuple[str, ...], Manifest] = {}
        for manifest in manifests:
            if manifest.name:
                self.found[manifest.namespace, manifest.name] = manifest
                self.found[manifest.file, manifest.namespace, manifest.name] = manifest

    def find(self, beside: Manifest, namespace: str, name: str | None) -> Manifest | None:
        if not name:
            return None
        return self.found.get((beside.file, namespace, name)) or self.found.get((namespace, name))


def input_problems(manifests: list[Manifest]) -> Iterator[tuple[Manifest, Problem]]:
    """Traps between objects."""
    yield from same_object_twice(manifests)
    yield from headless_services(manifests)
    yield from claims_of_volumes(manifests)


def same_object_twice(manifests: list[Manifest]) -> Iterator[tuple[Manifest, Problem]]:
    """Of two objects with one name the later one wins, in silence. The same object twice does no harm."""
    seen: dict[tuple[str, str, str, str], tuple[int, Manifest]] = {}
    for number, manifest in enumerate(manifests, 1):
        if not manifest.name:
            continue
        identity = (manifest.group, manifest.kind, manifest.namespace, manifest.name)
        first_number, first = seen.setdefault(identity, (number, manifest))
        if first.root.value == manifest.root.value:
            continue
        field = manifest.root["metadata"]["name"]
        same_file = first.file == manifest.file
        line = first.line_of(first.root["metadata"]["name"].path)
        place = f"line {line}" if same_file else f"{first.file}:{line}"
        place = place if first.file else f"object {first_number}"
        sentence = f"{manifest.title} is already defined, differently, in {place}; the later one replaces it"
        # A folder may hold variants of a thing, of which only one is meant to be applied.
        problem = field.error if same_file else field.warning
        yield manifest, problem(sentence, "give one of them another name")


def headless_services(manifests: list[Manifest]) -> Iterator[tuple[Manifest, Problem]]:
    """A subdomain gives pods names only through a headless Service of that name that selects them.

    It also has to publish pods that are not ready: pods of one world look each other up before they are.
    """
    services = Known(each for each in manifests if each.kind == "Service")
    for manifest in manifests:
        for pod in pods(manifest):
            subdomain_field = pod.spec["subdomain"]
            if not subdomain_field.text:
                continue
            service = services.find(manifest, manifest.namespace, subdomain_field.text)
            if service is None:
                sentence = f"there is no Service '{subdomain_field.text}' in this input, so the pods may have no names"
                way_out = "add it with 'clusterIP: None', or make sure that it exists"
                yield manifest, subdomain_field.warning(sentence, way_out)
                continue
            yield from ((service, problem) for problem in headless(service))
            selector = dict(service.root["spec"]["selector"].entries())
            labels = {key: value.value for key, value in pod.labels.entries()}
            if manifest.kind == "Job":  # the Job controller adds these
                labels.update(dict.fromkeys(JOB_LABELS, manifest.name))
            unmet = [key for key, value in selector.items() if labels.get(key) != value.value]
            if unmet:
                wanted = f"{unmet[0]}={selector[unmet[0]].value}"
                sentence = f"selects pods by {wanted}, which those of {manifest.title} do not have"
                yield service, service.root["spec"]["selector"].error(sentence, "make selector and pod labels equal")


def headless(service: Manifest) -> Iterator[Problem]:
    spec = service.root["spec"]
    if spec["clusterIP"].text != "None":
        sentence = "not headless, so the pods behind it get no names"
        yield spec["clusterIP"].error(sentence, "write 'clusterIP: None'")
    elif spec["publishNotReadyAddresses"].value is not True:
        sentence = "names of pods that are not ready are held back, but pods look each other up before they are"
        yield spec["publishNotReadyAddresses"].warning(sentence, "write 'publishNotReadyAddresses: true'")


def claims_of_volumes(manifests: list[Manifest]) -> Iterator[tuple[Manifest, Problem]]:
    """A claim binds to the volume that it names only if class, access and size agree; else it waits for ever."""
    volumes = Known(each for each in manifests if each.kind == "PersistentVolume")
    for manifest in manifests:
        spec = manifest.root["spec"]
        volume = volumes.find(manifest, "", spec["volumeName"].text)
        if manifest.kind != "PersistentVolumeClaim" or volume is None:
            continue
        offered = volume.root["spec"]
        wanted, given = spec["storageClassName"], offered["storageClassName"].text or ""
        if wanted.value is None or (wanted.text or "") != given:
            said = f"{shown(wanted.text)}" if wanted.given else "not given, so the cluster's default class"
            sentence = f"{said}, but the volume {volume.name} has {shown(given)}: the claim stays Pending"
            yield manifest, wanted.error(sentence, f"write 'storageClassName: {shown(given)}'")
        modes = [mode.text for mode in offered["accessModes"]]
        for mode in spec["accessModes"]:
            if mode.text and modes and mode.text not in modes:
                sentence = f"{mode.text} is not offered by the volume {volume.name}: the claim stays Pending"
                yield manifest, mode.error(sentence, f"write one of {', '.join(filter(None, modes))}")
        asked = quantity(spec["resources"]["requests"]["storage"])
        size = quantity(offered["capacity"]["storage"])
        if (asked or Decimal(0)) > (size if size is not None else asked or Decimal(0)):
            sentence = f"more than the volume {volume.name} has: the claim stays Pending"
            yield manifest, spec["resources"]["requests"]["storage"].error(sentence, "ask for less")
