"""Checks of what is elsewhere: the cluster and its operators, the Pushgateway."""

import functools
import os
import urllib.error
import urllib.request

from hvdkit.checks.doctor_finding import FAILURE, OK, WARNING, Finding
from hvdkit.cluster.probe import ClusterProbe, probe

CLUSTER_SECONDS = 5.0
PUSHGATEWAY_SECONDS = 5.0

# Pinned: the versions that hvdkit is tested with.
INSTALL_MPI_OPERATOR = (
    "kubectl apply --server-side -f "
    "https://raw.githubusercontent.com/kubeflow/mpi-operator/v0.8.2/deploy/v2beta1/mpi-operator.yaml"
)
INSTALL_TRAINING_OPERATOR = (
    "kubectl apply --server-side -k "
    '"github.com/kubeflow/training-operator.git/manifests/overlays/standalone?ref=v1.9.3"'
)


def check_cluster() -> Finding:
    """Whether a Kubernetes cluster is configured and answers."""
    cluster = _probe()
    if not cluster.configured:
        return Finding("cluster", OK, "no cluster configured: launches run on this machine")
    if cluster.client_missing:
        text = "a cluster is configured, but the Kubernetes client for Python is not installed"
        return Finding("cluster", WARNING, text, "pip install 'hvdkit[cluster]'")
    where = f"{cluster.context} at {cluster.server}" if cluster.server else "the configured cluster"
    if not cluster.reachable:
        way_out = "see what 'kubectl version' says and mend it, or launch with --backend local"
        return Finding("cluster", FAILURE, f"{where} does not serve us: {cluster.error}", way_out)
    return Finding("cluster", OK, f"{where}, Kubernetes {cluster.version}")


def check_mpi_operator() -> Finding | None:
    """Whether the cluster serves MPIJob v2beta1."""
    return _check_kind("mpijobs.kubeflow.org", "kubeflow.org/v2beta1/MPIJob", "mpijob", INSTALL_MPI_OPERATOR)


def check_training_operator() -> Finding | None:
    """Whether the cluster serves PyTorchJob v1."""
    return _check_kind(
        "pytorchjobs.kubeflow.org", "kubeflow.org/v1/PyTorchJob", "pytorchjob", INSTALL_TRAINING_OPERATOR
    )


def _check_kind(name: str, kind: str, backend: str, install: str) -> Finding | None:
    cluster = _probe()
    if not cluster.reachable:
        return None  # check_cluster has said what there is to say
    version = kind.split("/")[1]
    if kind in cluster.served_kinds:
        return Finding(name, OK, f"{version} is served")
    return Finding(name, WARNING, f"{version} is not served: --backend {backend} cannot be used", install)


@functools.lru_cache(maxsize=1)
def _probe() -> ClusterProbe:
    return probe(CLUSTER_SECONDS)


def check_pushgateway() -> Finding | None:
    """Whether the Pushgateway that HVDKIT_PUSHGATEWAY names is ready; nothing when none is named."""
    address = os.environ.get("HVDKIT_PUSHGATEWAY")
    if not address:
        return None
    url = (address if "://" in address else f"http://{address}").rstrip("/") + "/-/ready"
    way_out = "start it, or correct HVDKIT_PUSHGATEWAY (host:9091); training goes on without it"
    try:
        with urllib.request.urlopen(url, timeout=PUSHGATEWAY_SECONDS) as answer:
            return Finding("Pushgateway", OK, f"{url} answers {answer.status}")
    except urllib.error.HTTPError as error:
        return Finding("Pushgateway", FAILURE, f"{url} answers {error.code} {error.reason}", way_out)
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        return Finding("Pushgateway", FAILURE, f"{url} does not answer: {reason}", way_out)
