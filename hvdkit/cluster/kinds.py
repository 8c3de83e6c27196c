"""The kinds of objects that hvdkit makes and reads, and where the API keeps them. Pure.

A table instead of the API's own discovery: that would cost several requests at the start of every command.
"""

from dataclasses import dataclass
from typing import Any

from hvdkit.errors import InputError

Object = dict[str, Any]


@dataclass(frozen=True)
class Kind:
    """One kind of object."""

    api_version: str
    kind: str
    plural: str
    namespaced: bool = True

    @property
    def group(self) -> str:
        """The API group; empty for the core."""
        return self.api_version.rpartition("/")[0]

    def path(self, namespace: str | None, name: str = "", part: str = "") -> str:
        """Path of the list of these objects, of one of them, or of a part of one such as its log."""
        root = f"/apis/{self.api_version}" if self.group else f"/api/{self.api_version}"
        inside = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        return f"{root}{inside}/{self.plural}" + (f"/{name}" if name else "") + (f"/{part}" if part else "")


JOB = Kind("batch/v1", "Job", "jobs")
MPIJOB = Kind("kubeflow.org/v2beta1", "MPIJob", "mpijobs")
PYTORCHJOB = Kind("kubeflow.org/v1", "PyTorchJob", "pytorchjobs")
MESH = Kind("monarch.pytorch.org/v1alpha1", "MonarchMesh", "monarchmeshes")
POD = Kind("v1", "Pod", "pods")
EVENT = Kind("v1", "Event", "events")
NODE = Kind("v1", "Node", "nodes", namespaced=False)
NAMESPACE = Kind("v1", "Namespace", "namespaces", namespaced=False)
QUOTA = Kind("v1", "ResourceQuota", "resourcequotas")
SERVICE = Kind("v1", "Service", "services")
NETWORK_POLICY = Kind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies")
ACCESS_REVIEW = Kind("authorization.k8s.io/v1", "SelfSubjectAccessReview", "selfsubjectaccessreviews", namespaced=False)
SERVICE_ACCOUNT = Kind("v1", "ServiceAccount", "serviceaccounts")
ROLE = Kind("rbac.authorization.k8s.io/v1", "Role", "roles")
ROLE_BINDING = Kind("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings")
VOLUME = Kind("v1", "PersistentVolume", "persistentvolumes", namespaced=False)
CLAIM = Kind("v1", "PersistentVolumeClaim", "persistentvolumeclaims")

# What a job is made of. The last three come from operators that a cluster may lack.
MADE = (
    *(JOB, MPIJOB, PYTORCHJOB, MESH, SERVICE, NETWORK_POLICY, SERVICE_ACCOUNT, ROLE, ROLE_BINDING, VOLUME, CLAIM),
    Kind("monitoring.coreos.com/v1", "PodMonitor", "podmonitors"),
    Kind("scheduling.volcano.sh/v1beta1", "PodGroup", "podgroups"),
    Kind("scheduling.x-k8s.io/v1alpha1", "PodGroup", "podgroups"),
)
_BY_NAME = {(kind.api_version, kind.kind): kind for kind in MADE}
# Groups that every cluster serves.
BUILT_IN = frozenset({"", "batch", "networking.k8s.io", "rbac.authorization.k8s.io"})

# Of an NFS folder: the same for every job, so that they belong to none and stay.
SHARED = (VOLUME, CLAIM)

# The object that is the job: everything else made for it belongs to this one and goes with it.
JOB_KINDS = (MPIJOB, JOB, PYTORCHJOB)
MAIN = {"mpijob": MPIJOB, "indexed-job": JOB, "job": JOB, "pytorchjob": PYTORCHJOB, "monarch": JOB}


def kind_of(made: Object) -> Kind:
    """The kind of an object that hvdkit rendered."""
    found = _BY_NAME.get((made.get("apiVersion", ""), made.get("kind", "")))
    if found is None:
        raise InputError(f"hvdkit does not know how to send a {made.get('apiVersion')} {made.get('kind')}.")
    return found


def name_of(made: Object) -> str:
    """The object's name."""
    return (made.get("metadata") or {}).get("name") or ""


def uid_of(made: Object) -> str:
    """What tells the object from another one that had or gets its name; empty before it is made."""
    return (made.get("metadata") or {}).get("uid") or ""


def labels_of(made: Object) -> dict[str, str]:
    """The object's labels."""
    return (made.get("metadata") or {}).get("labels") or {}
