"""Keys, certificates and kubeconfigs of one cluster, made anew for each: a client is who its certificate says."""

import base64
import json
import subprocess
from pathlib import Path

from .places import API, FIRST_SERVICE, GATEWAY, Places

_DAYS = "30"


def create(places: Places) -> None:
    """The certificate authority, the API server's own certificates, and a kubeconfig for each client."""
    places.keys.mkdir(mode=0o700)
    _openssl("genpkey", *_KIND, "-out", str(places.keys / "ca.key"))
    authority = ("-subj", "/CN=hvdkit-e2e", "-days", _DAYS, "-out", str(places.keys / "ca.crt"))
    _openssl("req", "-x509", "-new", "-key", str(places.keys / "ca.key"), *authority)
    tokens = places.keys / "service-accounts"
    _openssl("genpkey", *_KIND, "-out", f"{tokens}.key")
    _openssl("pkey", "-in", f"{tokens}.key", "-pubout", "-out", f"{tokens}.pub")
    names = ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"]
    sign(places, "apiserver", "/CN=kube-apiserver", [*names, GATEWAY, FIRST_SERVICE, "127.0.0.1"])
    sign(places, "apiserver-to-kubelet", "/O=system:masters/CN=kube-apiserver")
    client(places, "admin", "/O=system:masters/CN=admin")
    client(places, "kube-controller-manager", "/CN=system:kube-controller-manager")
    client(places, "kube-scheduler", "/CN=system:kube-scheduler")
    client(places, "kube-proxy", "/CN=system:kube-proxy")
    client(places, "coredns", "/CN=coredns")


def client(places: Places, user: str, subject: str) -> None:
    """A kubeconfig whose user is the subject of a certificate: O is the group, CN the name."""
    sign(places, user, subject)
    certificate, key = places.keys / f"{user}.crt", places.keys / f"{user}.key"
    write_kubeconfig(places, user, {"client-certificate-data": _encoded(certificate), "client-key-data": _encoded(key)})


def write_kubeconfig(places: Places, user: str, credentials: dict[str, str], namespace: str = "default") -> Path:
    """A kubeconfig with these credentials; JSON is YAML."""
    cluster = {"server": API, "certificate-authority-data": _encoded(places.keys / "ca.crt")}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "e2e", "cluster": cluster}],
        "users": [{"name": user, "user": credentials}],
        "contexts": [{"name": "e2e", "context": {"cluster": "e2e", "user": user, "namespace": namespace}}],
        "current-context": "e2e",
    }
    file = places.kubeconfig(user)
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(content, indent=1))
    return file


def sign(places: Places, name: str, subject: str, hosts: list[str] | None = None) -> None:
    """NAME.key and NAME.crt: a server's certificate when it has hosts, else a client's."""
    file = places.keys / name
    usage = ["extendedKeyUsage=serverAuth" if hosts else "extendedKeyUsage=clientAuth"]
    if hosts:
        usage.append("subjectAltName=" + ",".join(f"{_host_kind(host)}:{host}" for host in hosts))
    file.with_suffix(".cnf").write_text("\n".join(usage))
    _openssl("genpkey", *_KIND, "-out", f"{file}.key")
    _openssl("req", "-new", "-key", f"{file}.key", "-subj", subject, "-out", f"{file}.csr")
    authority = ("-CA", str(places.keys / "ca.crt"), "-CAkey", str(places.keys / "ca.key"), "-CAcreateserial")
    extensions = ("-extfile", f"{file}.cnf", "-days", _DAYS)
    _openssl("x509", "-req", "-in", f"{file}.csr", *authority, *extensions, "-out", f"{file}.crt")


_KIND = ("-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256")  # made in a moment, where RSA takes a second


def _host_kind(host: str) -> str:
    return "IP" if host.replace(".", "").isdigit() else "DNS"


def _encoded(file: Path) -> str:
    return base64.b64encode(file.read_bytes()).decode()


def _openssl(*words: str) -> None:
    subprocess.run(["openssl", *words], check=True, capture_output=True)
