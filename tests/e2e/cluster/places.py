"""Where things are: the cache, the folder of a running cluster, and the addresses inside it."""

import os
from dataclasses import dataclass
from pathlib import Path

GO_MODULES = Path(__file__).parent.parent / "go"
VARIABLE = "HVDKIT_E2E_CLUSTER"  # names the folder of the cluster that a process runs in

# One bridge carries everything. Node 1, the API server and the cluster's DNS share the bridge's own address.
BRIDGE = "pods0"
NETWORK = "10.244.0.0/16"
GATEWAY = "10.244.0.1"
SERVICES = "10.96.0.0/16"
FIRST_SERVICE = "10.96.0.1"  # the API server's, as pods see it
API = f"https://{GATEWAY}:6443"


def cache() -> Path:
    """What outlives a cluster: programs, images, and the folders of those that run now."""
    if own := os.environ.get("HVDKIT_CACHE_DIR"):
        return Path(own).expanduser().absolute() / "e2e"
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser().absolute() / "hvdkit/e2e"


@dataclass(frozen=True)
class Places:
    """The folder of one cluster. It lies in the cache, so that images come into it as hard links."""

    folder: Path

    @classmethod
    def of(cls, name: str) -> "Places":
        return cls(cache() / "running" / name)

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def lock(self) -> Path:
        """Locked as long as the cluster's supervisor lives; beside the folder, which comes and goes."""
        return self.folder.with_suffix(".lock")

    @property
    def programs(self) -> Path:
        return self.folder / "bin"

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    @property
    def keys(self) -> Path:
        return self.folder / "keys"

    @property
    def ready(self) -> Path:
        """There once the cluster is up."""
        return self.folder / "ready"

    @property
    def first_process(self) -> Path:
        """Holds the id, as the outside sees it, of the process whose namespaces these are."""
        return self.folder / "first-process"

    @property
    def supervisor(self) -> Path:
        return self.folder / "supervisor"

    def kubeconfig(self, user: str = "admin") -> Path:
        return self.folder / "kubeconfigs" / user

    def variables(self) -> dict[str, str]:
        """What a command in the cluster needs to know; the user's own ~/.kube is neither read nor written."""
        return {
            VARIABLE: str(self.folder),
            "KUBECONFIG": str(self.kubeconfig()),
            "KUBECACHEDIR": str(self.folder / "kubectl-cache"),
            "PATH": f"{self.programs}:{os.environ['PATH']}",
        }
