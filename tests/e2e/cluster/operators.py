"""mpi-operator and training-operator as a cluster has them: upstream's manifests, roles included, and our binaries."""

import json
import shutil

from .build import manifests
from .control_plane import kubectl
from .images import BUSYBOX, MPI_OPERATOR, TRAINING_OPERATOR
from .places import Places
from .problem import Problem

_NAMESPACES = {"mpi-operator": "mpi-operator", "training-operator": "kubeflow"}
_CONTAINER = "/spec/template/spec/containers/0"


def install(places: Places) -> None:
    """Apply both operators; their pods start once there is a node."""
    _apply(places, "mpi-operator", "mpioperator/mpi-operator", MPI_OPERATOR, [])
    arguments = ["--enable-scheme=pytorchjob", f"--pytorch-init-container-image={BUSYBOX}"]
    # Upstream looks for the first time after 10 s, then every 15.
    often = {"httpGet": {"path": "/readyz", "port": 8081}, "periodSeconds": 1}
    changes = [
        {"op": "add", "path": f"{_CONTAINER}/args", "value": arguments},
        {"op": "replace", "path": f"{_CONTAINER}/readinessProbe", "value": often},
    ]
    # It brings an older MPIJob under the name that mpi-operator's has.
    older = {
        "$patch": "delete",
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "mpijobs.kubeflow.org"},
    }
    image = "ghcr.io/kubeflow/training-v1/training-operator"
    _apply(places, "training-operator", image, TRAINING_OPERATOR, changes, [{"patch": json.dumps(older)}])


def wait(places: Places) -> None:
    """Until both are at work."""
    for name, namespace in _NAMESPACES.items():
        kubectl(places, "rollout", "status", f"deployment/{name}", f"--namespace={namespace}", "--timeout=180s")


def _apply(
    places: Places, name: str, image: str, ours: str, changes: list[dict], patches: list[dict] | None = None
) -> None:
    folder = places.folder / name
    shutil.copytree(manifests(name), folder / "upstream")
    new_name, _, new_tag = ours.rpartition(":")
    deployment = {"target": {"kind": "Deployment", "name": name}, "patch": json.dumps(changes)}
    overlay = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": ["upstream/overlays/standalone"],
        "images": [{"name": image, "newName": new_name, "newTag": new_tag}],
        "patches": [*(patches or []), *([deployment] if changes else [])],
    }
    (folder / "kustomization.yaml").write_text(json.dumps(overlay, indent=1))
    rendered = kubectl(places, "kustomize", str(folder))
    if ours not in rendered:
        raise Problem(f"the manifests of {name} do not name the image {image} any more: see tests/e2e/cluster")
    kubectl(places, "apply", "--server-side", "--filename=-", text=rendered)
