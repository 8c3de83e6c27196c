"""Configuration of containerd: what it must be told to run where systemd, AppArmor and a registry may be missing."""

import subprocess
from pathlib import Path

from .problem import Problem

_PLUGIN_FOLDERS = ("/usr/lib/cni", "/opt/cni/bin")


def write_configuration(folder: Path, *, root: Path, socket: Path, networks: Path | None = None) -> Path:
    """containerd's configuration file; `networks` holds the pods' network, without it there are no pods."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "containerd.toml"
    lines = [
        "version = 2",
        f'root = "{root}"',
        f'state = "{socket.parent}/containerd"',  # mounts and sockets, in a /run that goes with the cluster
        "[grpc]",
        f'address = "{socket}"',
        '[plugins."io.containerd.internal.v1.opt"]',
        f'path = "{folder}/opt"',
    ]
    if networks is None:
        lines[1:1] = ['disabled_plugins = ["io.containerd.grpc.v1.cri"]']
    else:
        kubernetes = 'plugins."io.containerd.grpc.v1.cri"'
        lines += [
            f"[{kubernetes}]",
            'sandbox_image = "localhost/pause:1"',
            "restrict_oom_score_adj = true",  # not every machine lets even root lower the score
            "disable_apparmor = true",
            f"[{kubernetes}.containerd]",
            'snapshotter = "overlayfs"',
            f"[{kubernetes}.containerd.runtimes.runc]",
            'runtime_type = "io.containerd.runc.v2"',
            f"[{kubernetes}.containerd.runtimes.runc.options]",
            "SystemdCgroup = false",
            f"[{kubernetes}.cni]",
            f'bin_dir = "{network_plugins()}"',
            f'conf_dir = "{networks}"',
        ]
    file.write_text("\n".join([*lines, ""]))
    return file


def network_plugins() -> Path:
    """The folder of the CNI plugins."""
    for folder in map(Path, _PLUGIN_FOLDERS):
        if (folder / "bridge").exists():
            return folder
    raise Problem("the CNI plugins are missing (Debian: apt install containernetworking-plugins)")


def ask_containerd(socket: Path, *words: str) -> bool:
    """Whether a containerd answers this request of ctr."""
    return not subprocess.run(["ctr", "--address", str(socket), *words], capture_output=True).returncode
