"""What the machine must have: root, some programs, some features of the kernel. What is missing is said by name."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .places import cache
from .problem import Problem

# Program → Debian's package. Packaged services are not used: the cluster starts its own.
_PACKAGES = {
    "etcd": "etcd-server",
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "iptables": "iptables",
    "ip": "iproute2",
    "openssl": "openssl",
    "unshare": "util-linux",
    "setpriv": "util-linux",
}
_SERVICES = ("containerd.service", "etcd.service")

_FEATURES = {
    "namespaces of processes, network and mounts": "true",
    "network bridges and veth pairs": """
        ip link add bridge9 type bridge
        ip link add veth9 type veth peer name veth8
        ip link set veth9 master bridge9""",
    "iptables with NAT, comments and marks, for Services": """
        iptables -t nat -N PROBE
        iptables -t nat -A PROBE -m comment --comment probe -m mark --mark 0x4000/0x4000 -j MASQUERADE
        iptables -t nat -A PROBE -m statistic --mode random --probability 0.5 -j RETURN
        iptables -A FORWARD -m conntrack --ctstate INVALID -j DROP""",
    "overlayfs in {cache}, for images (another file system: set HVDKIT_CACHE_DIR)": """
        mount -t tmpfs none /mnt
        mkdir -p {cache}/probe/upper {cache}/probe/work {cache}/probe/lower /mnt/merged
        mount -t overlay none -o lowerdir={cache}/probe/lower,upperdir={cache}/probe/upper,workdir={cache}/probe/work \
            /mnt/merged""",
}


def check() -> None:
    """Problem unless a cluster can run here. Installs what Debian packages; needs the network only then."""
    if os.geteuid() != 0:
        raise Problem("a cluster makes namespaces, bridges and mounts, and needs root: run it with sudo")
    _install_missing()
    for feature, probe in _FEATURES.items():
        script = "set -e\n" + probe.format(cache=cache())
        cache().mkdir(parents=True, exist_ok=True)
        words = ["unshare", "--fork", "--pid", "--net", "--mount", "sh", "-c", script]
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode:
            lacking = feature.format(cache=cache())
            raise Problem(f"this kernel does not give a cluster {lacking}: {done.stderr.strip() or done.returncode}")
    shutil.rmtree(cache() / "probe", ignore_errors=True)


def _install_missing() -> None:
    packages = _missing()
    if not packages:
        return
    if shutil.which("apt-get") is None:
        raise Problem(f"programs are missing: install what Debian calls {', '.join(packages)}")
    print(f"cluster: installing {', '.join(packages)}", file=sys.stderr, flush=True)
    apt = ["apt-get", "-o", "DPkg::Lock::Timeout=300", "-qq"]
    install = [*apt, "install", "--yes", "--no-install-recommends", *packages]
    quiet = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    with _services_stay_off():
        done = subprocess.run(install, env=quiet, capture_output=True, text=True)
        if done.returncode:  # the machine's list of packages may be old, or not there yet
            subprocess.run([*apt, "update"], env=quiet, capture_output=True)
            done = subprocess.run(install, env=quiet, capture_output=True, text=True)
    if done.returncode or _missing():
        raise Problem(f"`apt-get install {' '.join(packages)}` failed: {done.stderr.strip()}")


def _missing() -> list[str]:
    missing = {package for program, package in _PACKAGES.items() if shutil.which(program) is None}
    if not any(Path(folder, "bridge").exists() for folder in ("/usr/lib/cni", "/opt/cni/bin")):
        missing.add("containernetworking-plugins")
    busybox = shutil.which("busybox")
    # The one that needs the C library cannot run in an image that holds nothing else.
    if busybox is None or b"/ld-linux" in Path(busybox).read_bytes():
        missing.add("busybox-static")
    return sorted(missing)


@contextmanager
def _services_stay_off() -> Iterator[None]:
    """Debian starts and enables a service as it installs it; nobody here asked for one."""
    policy = Path("/usr/sbin/policy-rc.d")
    ours = not policy.exists()
    there = [service for service in _SERVICES if _unit(service)]
    if ours:
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
    try:
        yield
    finally:
        if ours:
            policy.unlink()
        new = [service for service in _SERVICES if _unit(service) and service not in there]
        if new and shutil.which("systemctl"):
            subprocess.run(["systemctl", "disable", "--quiet", *new], capture_output=True)


def _unit(service: str) -> bool:
    return any(Path(folder, service).exists() for folder in ("/lib/systemd/system", "/usr/lib/systemd/system"))
