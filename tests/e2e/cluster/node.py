"""A node: a containerd and a kubelet with folders, an address and a range of pod addresses of their own."""

import json
import subprocess
from pathlib import Path

from . import certificates, cgroups, images
from .containerd import ask_containerd, write_configuration
from .places import BRIDGE, GATEWAY, NETWORK, Places
from .processes import Processes, wait_until


class Node:
    """Node 1, 2 … of a cluster. They share the machine's kernel and, for its programs, one network."""

    def __init__(self, places: Places, number: int) -> None:
        self.places = places
        self.number = number
        self.name = f"node-{number}"
        self.folder = places.folder / self.name
        self.address = f"10.244.0.{number}"
        self.socket = Path(f"/run/{self.name}/containerd.sock")  # short: a socket's path has 107 characters

    @property
    def programs(self) -> list[str]:
        """The names of its two programs, for `Cluster.stop` and `Cluster.start`."""
        return [f"containerd-{self.number}", f"kubelet-{self.number}"]

    def start_containerd(self, processes: Processes) -> None:
        images.copy_for_node(self.folder / "containerd")
        networks = self.folder / "networks"
        networks.mkdir()
        (networks / "10-pods.conflist").write_text(json.dumps(self._network()))
        configuration = write_configuration(
            self.folder, root=self.folder / "containerd", socket=self.socket, networks=networks
        )
        processes.start(self.programs[0], ["containerd", "--config", str(configuration)])

    def start_kubelet(self, processes: Processes) -> None:
        """Needs an API server that answers."""
        answers = "containerd answers"
        wait_until(lambda: ask_containerd(self.socket, "version"), answers, processes, self.programs[:1])
        if self.address != GATEWAY:
            subprocess.run(["ip", "address", "add", f"{self.address}/32", "dev", BRIDGE], check=True)
        certificates.client(self.places, self.name, f"/O=system:nodes/CN=system:node:{self.name}")
        certificates.sign(self.places, f"{self.name}-server", f"/CN={self.name}", [self.name, self.address])
        configuration = self.folder / "kubelet.json"
        configuration.write_text(json.dumps(self._kubelet(), indent=1))
        flags = {
            "config": configuration,
            "kubeconfig": self.places.kubeconfig(self.name),
            "root-dir": self.folder / "kubelet",
            "hostname-override": self.name,
            "node-ip": self.address,
        }
        command = [str(self.places.programs / "kubelet"), *(f"--{name}={value}" for name, value in flags.items())]
        processes.start(self.programs[1], command)

    def _network(self) -> dict:
        addresses = {
            "subnet": NETWORK,
            "rangeStart": f"10.244.{self.number}.1",
            "rangeEnd": f"10.244.{self.number}.250",
            "gateway": GATEWAY,
        }
        bridge = {
            "type": "bridge",
            "bridge": BRIDGE,
            "isDefaultGateway": True,
            "hairpinMode": True,
            "ipam": {"type": "host-local", "dataDir": str(self.folder / "addresses"), "ranges": [[addresses]]},
        }
        return {"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge]}

    def _kubelet(self) -> dict:
        names = self.folder / "resolv.conf"
        names.write_text("")  # the machine's own name servers are out of reach
        keys = self.places.keys
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": self.address,
            "healthzBindAddress": self.address,
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": False},
                "x509": {"clientCAFile": str(keys / "ca.crt")},
            },
            "authorization": {"mode": "AlwaysAllow"},
            "tlsCertFile": str(keys / f"{self.name}-server.crt"),
            "tlsPrivateKeyFile": str(keys / f"{self.name}-server.key"),
            "containerRuntimeEndpoint": f"unix://{self.socket}",
            "podLogsDir": str(self.folder / "pod-logs"),
            "clusterDNS": [GATEWAY],
            "clusterDomain": "cluster.local",
            "resolvConf": str(names),
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": cgroups.create(self.places.name, self.name),
            "failCgroupV1": False,
            "failSwapOn": False,
            "enforceNodeAllocatable": [],
            # It goes on where a machine does not let it lower its score for the out-of-memory killer.
            "featureGates": {"KubeletInUserNamespace": True},
            # The disk is the machine's and may be quite full; no image can come back once it is removed.
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
            "evictionHard": {
                "memory.available": "50Mi",
                **dict.fromkeys(("nodefs.available", "nodefs.inodesFree"), "1%"),
                **dict.fromkeys(("imagefs.available", "imagefs.inodesFree"), "1%"),
            },
        }
