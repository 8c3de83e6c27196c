"""Which cluster, as whom and in which namespace: decided as kubectl does it.

KUBECONFIG may list several files, `--context` chooses among their contexts, and inside a pod without any of them its
ServiceAccount counts.
"""

import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvdkit.errors import EnvironmentProblem, InputError

IN_CLUSTER = "in-cluster"
_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
# A connection whose other end has vanished is noticed after half a minute, not when a watch happens to end.
_KEEPALIVE = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *(
        (socket.IPPROTO_TCP, getattr(socket, option), seconds)
        for option, seconds in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
        if hasattr(socket, option)
    ),
]


@dataclass(frozen=True, kw_only=True)
class Login:
    """How to reach the cluster."""

    configuration: Any
    """The client's Configuration: address, certificates, credentials."""

    context: str
    """Of the kubeconfig, or 'in-cluster'."""

    namespace: str
    """The context's namespace."""


def kubeconfig_files() -> list[Path]:
    """The kubeconfig files that kubectl would read."""
    return [path for path in _named() or [Path("~/.kube/config").expanduser()] if path.is_file()]


def check_named() -> None:
    """EnvironmentProblem where KUBECONFIG means a cluster, and no part of it is a file; /dev/null means none."""
    named = _named()
    if named and not any(path.exists() and not path.is_dir() for path in named):
        raise EnvironmentProblem(
            f"KUBECONFIG: '{os.environ['KUBECONFIG']}' names no file; correct it, or unset it to run on this machine."
        )


def _named() -> list[Path]:
    return [Path(part).expanduser() for part in os.environ.get("KUBECONFIG", "").split(os.pathsep) if part]


def in_pod() -> bool:
    """Whether this runs in a pod that may talk to its cluster."""
    return bool(os.environ.get("KUBERNETES_SERVICE_HOST")) and (_ACCOUNT / "token").exists()


def configured_in() -> str:
    """Where kubectl would find a cluster: a file, or the pod's ServiceAccount; empty where it would find none."""
    files = kubeconfig_files()
    return str(files[0]) if files else "this pod's ServiceAccount" if in_pod() else ""


def configured() -> bool:
    """Whether kubectl would find a cluster."""
    return bool(configured_in())


def log_in(context: str | None = None) -> Login:
    """Read the configuration; nobody is asked yet."""
    try:
        from kubernetes import client, config
    except ImportError:
        raise EnvironmentProblem(
            "the Python client of Kubernetes is not installed; install it with pip install 'hvdkit[cluster]'."
        ) from None
    files = kubeconfig_files()
    if context and not files:
        raise InputError(f"--context: there is no kubeconfig file that could hold '{context}'; set KUBECONFIG.")
    if not files and not in_pod():
        check_named()
        raise EnvironmentProblem("no cluster is configured; set KUBECONFIG, or add --backend local to run it here.")
    configuration = client.Configuration()
    configuration.socket_options = _KEEPALIVE
    configuration.connection_pool_maxsize = 64  # a stream each for watches and logs
    if not files:
        config.load_incluster_config(client_configuration=configuration)
        return Login(configuration=configuration, context=IN_CLUSTER, namespace=_own_namespace())
    joined = os.pathsep.join(map(str, files))
    chosen = _choose(config, files, context)
    try:
        config.load_kube_config(
            joined, context=chosen["name"], client_configuration=configuration, persist_config=False
        )
    except Exception as error:  # whatever a login plugin or a YAML reader raises
        reason = _first_line(error)
        raise EnvironmentProblem(f"context '{chosen['name']}' in {joined} cannot be used: {reason}.") from None
    namespace = chosen["context"].get("namespace") or "default"
    return Login(configuration=configuration, context=chosen["name"], namespace=namespace)


def _choose(config: Any, files: list[Path], context: str | None) -> dict[str, Any]:
    """The context to use."""
    joined = os.pathsep.join(map(str, files))
    try:
        merged = config.kube_config.KubeConfigMerger(joined).config
        known = {one["name"]: one for one in (part.value for part in merged["contexts"])}
        current = _current_context(files)
    except Exception as error:  # broken YAML, or something else than a kubeconfig
        raise EnvironmentProblem(f"{joined} cannot be read as a kubeconfig: {_first_line(error)}.") from None
    names = ", ".join(known) or "none"
    if context is None and current is None:
        raise EnvironmentProblem(f"{joined} names no current context; choose one with --context ({names}).")
    if context is None and current not in known:
        raise EnvironmentProblem(f"{joined} lacks '{current}', its current context; choose with --context ({names}).")
    if context is not None and context not in known:
        raise InputError(f"--context: there is no context '{context}' in {joined}; it has {names}.")
    return known[context or current]


def _current_context(files: list[Path]) -> str | None:
    """The current context of the first file that names one, as kubectl has it; the Python client takes the last."""
    import yaml

    named = ((yaml.safe_load(path.read_text()) or {}).get("current-context") for path in files)
    return next((name for name in named if name), None)


def _own_namespace() -> str:
    try:
        return (_ACCOUNT / "namespace").read_text().strip() or "default"
    except OSError:
        return "default"


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__).rstrip(".")
