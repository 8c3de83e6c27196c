"""The programs that a cluster has once: etcd, API server, controllers, scheduler, Services and DNS."""

import os
import ssl
import subprocess
import urllib.request
from pathlib import Path

from .places import API, BRIDGE, GATEWAY, NETWORK, SERVICES, Places
from .processes import Processes, wait_until

_DNS_READY = f"http://{GATEWAY}:8181/ready"
_ETCD = "http://127.0.0.1:2379"
# What CoreDNS may see; it runs beside the cluster, as a user of its own.
_DNS_ROLE = """
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: coredns}
rules:
- {apiGroups: [""], resources: [namespaces, pods, services], verbs: [list, watch]}
- {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: coredns}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: coredns}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: coredns}]
"""


def make_network() -> None:
    """The bridge that joins everything; the machine's own network is not in this namespace."""
    for words in (
        f"link add {BRIDGE} type bridge",
        f"address add {GATEWAY}/16 dev {BRIDGE}",
        f"link set {BRIDGE} up",
        # iptables rewrites a Service's address, but only after the kernel has found any way to it at all.
        f"route add {SERVICES} dev {BRIDGE}",
    ):
        subprocess.run(["ip", *words.split()], check=True)
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")


def start_api(places: Places, processes: Processes) -> None:
    """etcd and the API server, until it answers."""
    peers = "http://127.0.0.1:2380"
    etcd = {
        "data-dir": places.folder / "etcd",
        "listen-client-urls": _ETCD,
        "advertise-client-urls": _ETCD,
        "listen-peer-urls": peers,
        "initial-advertise-peer-urls": peers,
        "initial-cluster": f"default={peers}",
        "unsafe-no-fsync": "true",  # nothing is read again after a crash
        "log-level": "warn",
    }
    processes.start("etcd", ["etcd", *_flags(etcd)])
    keys = places.keys
    apiserver = {
        "etcd-servers": _ETCD,
        "bind-address": GATEWAY,
        "advertise-address": GATEWAY,
        "secure-port": 6443,
        "tls-cert-file": keys / "apiserver.crt",
        "tls-private-key-file": keys / "apiserver.key",
        "client-ca-file": keys / "ca.crt",
        "service-account-issuer": "https://kubernetes.default.svc",
        "service-account-key-file": keys / "service-accounts.pub",
        "service-account-signing-key-file": keys / "service-accounts.key",
        "service-cluster-ip-range": SERVICES,
        "authorization-mode": "Node,RBAC",
        "allow-privileged": "true",
        "kubelet-client-certificate": keys / "apiserver-to-kubelet.crt",
        "kubelet-client-key": keys / "apiserver-to-kubelet.key",
        "kubelet-certificate-authority": keys / "ca.crt",
        "kubelet-preferred-address-types": "InternalIP",  # nodes' names are in no DNS
        # It makes a watch without a version wait until etcd says how far it is, which Debian's etcd 3.4 does not on
        # request: such a watch, as Python's client begins one, then ends with a 504.
        "feature-gates": "WatchList=false",
    }
    processes.start("kube-apiserver", [str(places.programs / "kube-apiserver"), *_flags(apiserver)])
    context = ssl.create_default_context(cafile=str(keys / "ca.crt"))
    context.load_cert_chain(keys / "admin.crt", keys / "admin.key")
    wait_until(
        lambda: _answers(f"{API}/readyz", context), "the API server is ready", processes, ["etcd", "kube-apiserver"]
    )


def start_controllers(places: Places, processes: Processes) -> None:
    """Controllers, scheduler, Services and DNS; they become ready on their own."""
    keys = places.keys
    alone = {"leader-elect": "false", "bind-address": "127.0.0.1"}
    controllers = {
        **_as_user(places, "kube-controller-manager"),
        **alone,
        "service-account-private-key-file": keys / "service-accounts.key",
        "root-ca-file": keys / "ca.crt",
        "cluster-signing-cert-file": keys / "ca.crt",
        "cluster-signing-key-file": keys / "ca.key",
        # Each controller as its own user: as one they lack the right to take a new node's taint away.
        "use-service-account-credentials": "true",
        "pvclaimbinder-sync-period": "1s",  # else a claim waits up to 15 s for its volume
    }
    _start_kube(places, processes, "kube-controller-manager", controllers)
    _start_kube(places, processes, "kube-scheduler", _as_user(places, "kube-scheduler") | alone)
    services = {
        "kubeconfig": places.kubeconfig("kube-proxy"),
        "proxy-mode": "iptables",
        "hostname-override": "node-1",
        "cluster-cidr": NETWORK,
        # Pods share a bridge: without it an answer goes back directly, from an address that nobody had asked.
        "masquerade-all": "true",
        "metrics-bind-address": "127.0.0.1:10249",
        "healthz-bind-address": "127.0.0.1:10256",
        **dict.fromkeys(("conntrack-max-per-core", "conntrack-min"), 0),  # the whole machine's settings
        **dict.fromkeys(("conntrack-tcp-timeout-established", "conntrack-tcp-timeout-close-wait"), "0s"),
    }
    _start_kube(places, processes, "kube-proxy", services)
    kubectl(places, "apply", "--filename=-", text=_DNS_ROLE)
    configuration = places.folder / "Corefile"
    # Any other name does not exist. Without an answer of its own it would count as a failure of the name server, and a
    # program that waits for a name can tell the two apart.
    configuration.write_text(f""".:53 {{
    bind {GATEWAY}
    ready {GATEWAY}:8181
    errors
    kubernetes cluster.local in-addr.arpa {{
        kubeconfig {places.kubeconfig("coredns")}
        ttl 5
    }}
    template ANY ANY {{
        rcode NXDOMAIN
    }}
}}
""")
    processes.start("coredns", [str(places.programs / "coredns"), "-conf", str(configuration)])


def wait_for_controllers(places: Places, processes: Processes) -> None:
    """Until names resolve and a pod can be created."""
    wait_until(lambda: _answers(_DNS_READY), "CoreDNS is ready", processes, ["coredns"])
    names = ["kube-controller-manager", "kube-apiserver"]
    created = ["get", "serviceaccount", "default", "--ignore-not-found", "--output=name"]
    wait_until(lambda: kubectl(places, *created), "the default service account exists", processes, names, pause=0.5)


def kubectl(places: Places, *words: str, text: str | None = None) -> str:
    """kubectl's output, as the cluster's administrator; CalledProcessError with its error as stderr."""
    command = [str(places.programs / "kubectl"), *words]
    environment = os.environ | places.variables()
    return subprocess.run(command, input=text, env=environment, check=True, capture_output=True, text=True).stdout


def _start_kube(places: Places, processes: Processes, name: str, flags: dict[str, object]) -> None:
    processes.start(name, [str(places.programs / name), *_flags(flags)])


def _as_user(places: Places, user: str) -> dict[str, object]:
    return dict.fromkeys(
        ("kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig"), places.kubeconfig(user)
    )


def _flags(flags: dict[str, object]) -> list[str]:
    return [f"--{name}={value}" for name, value in flags.items()]


def _answers(address: str, context: ssl.SSLContext | None = None) -> bool:
    try:
        with urllib.request.urlopen(address, context=context, timeout=2) as answer:
            return answer.status == 200
    except OSError:
        return False
