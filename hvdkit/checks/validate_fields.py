"""A manifest and its fields, read so that no shape of input can break a check.

A check asks `pod["containers"][0]["image"].text` of anything: where the shape is another one the answer is None, and
the schema is what complains. So each check reads like the happy path, and hand-written input cannot crash it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from hvdkit.checks.validate_finding import ERROR, WARNING, Path, Problem


@dataclass(frozen=True)
class Field:
    """A value and where it stands."""

    value: object
    path: Path = ()

    def __getitem__(self, key: str | int) -> "Field":
        child = None
        if isinstance(self.value, dict):
            child = self.value.get(key)
        elif isinstance(self.value, list) and isinstance(key, int) and key < len(self.value):
            child = self.value[key]
        return Field(child, (*self.path, key))

    def __iter__(self) -> Iterator["Field"]:
        """The members of a list; of anything else, none."""
        if isinstance(self.value, list):
            for index in range(len(self.value)):
                yield self[index]

    def entries(self) -> Iterator[tuple[str, "Field"]]:
        """The members of a mapping; of anything else, none."""
        if isinstance(self.value, dict):
            for key in self.value:
                if isinstance(key, str):
                    yield key, self[key]

    @property
    def given(self) -> bool:
        """Whether there is a value; null counts as none, as it does for Kubernetes."""
        return self.value is not None

    @property
    def text(self) -> str | None:
        return self.value if isinstance(self.value, str) else None

    @property
    def integer(self) -> int | None:
        return self.value if isinstance(self.value, int) and not isinstance(self.value, bool) else None

    def error(self, sentence: str, way_out: str) -> Problem:
        return Problem(ERROR, self.path, sentence, way_out)

    def warning(self, sentence: str, way_out: str) -> Problem:
        return Problem(WARNING, self.path, sentence, way_out)


@dataclass(frozen=True)
class Manifest:
    """One object of the input."""

    root: Field
    file: str = ""
    document: int = 1
    lines: dict[int, dict] = field(default_factory=dict, repr=False)
    """For each mapping and list of the document, by id: the line of each key or index."""

    document_value: object = field(default=None, repr=False)
    first_line: int | None = None

    @property
    def api_version(self) -> str:
        return self.root["apiVersion"].text or ""

    @property
    def kind(self) -> str:
        return self.root["kind"].text or ""

    @property
    def name(self) -> str:
        return self.root["metadata"]["name"].text or ""

    @property
    def namespace(self) -> str:
        """Empty when the object leaves it to whoever applies it."""
        return self.root["metadata"]["namespace"].text or ""

    @property
    def group(self) -> str:
        return self.api_version.rpartition("/")[0]

    @property
    def title(self) -> str:
        """Kind, namespace and name, as far as they are there."""
        metadata = self.root["metadata"]
        name = self.name or (f"{metadata['generateName'].text}…" if metadata["generateName"].text else "")
        place = f"{self.namespace}/{name}" if self.namespace and name else name
        return " ".join(part for part in (self.kind, place) if part)

    def line_of(self, path: Path) -> int | None:
        """The line of a field, or of the nearest thing around it that is in the file."""
        value, line = self.document_value, self.first_line
        for key in path:
            line = self.lines.get(id(value), {}).get(key, line)
            try:
                value = value[key]
            except (KeyError, IndexError, TypeError):
                break
        return line


@dataclass(frozen=True)
class Pod:
    """A pod, or a template of pods, inside a manifest."""

    spec: Field
    labels: Field
    role: str
    """What the object calls these pods (Launcher, Worker, Master), or its kind."""

    claims: Field = Field(None)
    """The claims that a StatefulSet makes for each pod; a pod mounts them like volumes."""

    @property
    def containers(self) -> list[Field]:
        return list(self.spec["containers"])

    @property
    def all_containers(self) -> list[Field]:
        return [*self.spec["initContainers"], *self.containers]


REPLICA_SPECS = {"MPIJob": "mpiReplicaSpecs", "PyTorchJob": "pytorchReplicaSpecs"}
TEMPLATES = {
    "Job": ("spec", "template"),
    "CronJob": ("spec", "jobTemplate", "spec", "template"),
    "Deployment": ("spec", "template"),
    "ReplicaSet": ("spec", "template"),
    "ReplicationController": ("spec", "template"),
    "StatefulSet": ("spec", "template"),
    "DaemonSet": ("spec", "template"),
    "PodTemplate": ("template",),
    "MonarchMesh": ("spec", "podTemplate"),
}


def pods(manifest: Manifest) -> list[Pod]:
    """The pods that an object makes."""
    kind, root = manifest.kind, manifest.root
    if kind == "Pod":
        return [Pod(root["spec"], root["metadata"]["labels"], kind)]
    if kind in REPLICA_SPECS:
        replicas = root["spec"][REPLICA_SPECS[kind]].entries()
        return [template_pod(replica["template"], role) for role, replica in replicas]
    if kind in TEMPLATES:
        template = root
        for key in TEMPLATES[kind]:
            template = template[key]
        return [replace(template_pod(template, kind), claims=root["spec"]["volumeClaimTemplates"])]
    return []


def template_pod(template: Field, role: str) -> Pod:
    """The pod of a pod template."""
    return Pod(template["spec"], template["metadata"]["labels"], role)


def words(container: Field) -> list[str]:
    """A container's command line as words; scripts handed to a shell are taken apart too."""
    import shlex

    found = []
    for key in ("command", "args"):
        for word in container[key]:
            text = word.text or ""
            if any(character.isspace() for character in text):
                try:
                    found += shlex.split(text, comments=True)
                except ValueError:  # half a quotation: a script that is no single command line
                    found += text.split()
            else:
                found.append(text)
    return found
