"""Machines for tests: network and host-name namespaces on a bridge, each with its own real sshd.

They share this machine's files and processes, as a cluster with a shared file system shares its home folders.
`make e2e` runs the tests in namespaces of their own, so that the kernel removes all of this when they end.
"""

import os
import shutil
import subprocess
import time
from pathlib import Path

NEEDED = ("ip", "unshare", "sshd", "ssh", "ssh-keygen", "mount")


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


class Machines:
    """Hosts `a`, `b` … at 10.77.0.2, 10.77.0.3 …; this process is at 10.77.0.1."""

    def __init__(self, names: list[str], folder: Path) -> None:
        missing = [tool for tool in NEEDED if shutil.which(tool) is None]
        assert not missing, f"install {', '.join(missing)} (Debian: apt install iproute2 openssh-server openssh-client)"
        assert os.geteuid() == 0, "namespaces need root"
        assert interfaces() == {"lo"}, "start these tests with `make e2e`, which gives them a network of their own"
        self.names = names
        self.folder = folder
        self.servers: list[subprocess.Popen] = []
        self._make_keys()
        self._make_network()
        for number, name in enumerate(names):
            self._start(name, f"10.77.0.{number + 2}")

    def stop(self) -> None:
        for server in self.servers:
            server.terminate()
            server.wait()
        for name in self.names:
            run("ip", "link", "delete", f"to-{name}")  # at once; with its namespace it would go some time later
            run("ip", "netns", "delete", name)
        run("ip", "link", "delete", "bridge0")
        run("umount", str(Path.home() / ".ssh"))
        run("umount", "/etc/hosts")

    def _make_keys(self) -> None:
        # Mounted over the user's own for these tests only: both ssh and mpirun look there.
        keys = self.folder / "ssh"
        keys.mkdir(mode=0o700)
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(keys / "id_ed25519"))
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(keys / "host_key"))
        shutil.copy(keys / "id_ed25519.pub", keys / "authorized_keys")
        host_key = (keys / "host_key.pub").read_text()
        (keys / "known_hosts").write_text("".join(f"{name} {host_key}" for name in self.names))
        home = Path.home() / ".ssh"
        home.mkdir(exist_ok=True)
        run("mount", "--bind", str(keys), str(home))

    def _make_network(self) -> None:
        run("ip", "link", "set", "lo", "up")
        run("ip", "link", "add", "bridge0", "type", "bridge")
        run("ip", "address", "add", "10.77.0.1/24", "dev", "bridge0")
        run("ip", "link", "set", "bridge0", "up")
        lines = [f"10.77.0.{number + 2} {name}" for number, name in enumerate(self.names)]
        hosts = self.folder / "hosts"
        # As Debian does it: a machine's own name points to 127.0.1.1, where no other machine can come.
        own = f"127.0.1.1 {os.uname().nodename}"
        hosts.write_text("\n".join(["127.0.0.1 localhost", own, *lines, ""]))
        run("mount", "--bind", str(hosts), "/etc/hosts")

    def _start(self, name: str, address: str) -> None:
        run("ip", "netns", "add", name)
        run("ip", "link", "add", f"to-{name}", "type", "veth", "peer", "name", "eth0", "netns", name)
        run("ip", "link", "set", f"to-{name}", "master", "bridge0", "up")
        inside = ("ip", "netns", "exec", name)
        run(*inside, "ip", "address", "add", f"{address}/24", "dev", "eth0")
        run(*inside, "ip", "link", "set", "eth0", "up")
        run(*inside, "ip", "link", "set", "lo", "up")
        keys = Path.home() / ".ssh"
        Path("/run/sshd").mkdir(exist_ok=True)  # sshd refuses to start without it
        options = {
            "HostKey": keys / "host_key",
            "AuthorizedKeysFile": keys / "authorized_keys",
            "StrictModes": "no",
            "UsePAM": "no",
            "PidFile": "none",
            "PermitRootLogin": "yes",
        }
        words = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
        sshd = f"hostname {name} && exec {shutil.which('sshd')} -D -e -f /dev/null {' '.join(words)}"
        log = (self.folder / f"sshd-{name}.log").open("wb")
        self.servers.append(subprocess.Popen([*inside, "unshare", "--uts", "sh", "-c", sshd], stdout=log, stderr=log))
        self._wait_until_reachable(name)

    def _wait_until_reachable(self, name: str) -> None:
        deadline = time.monotonic() + 60
        while True:
            answer = subprocess.run(["ssh", "-o", "BatchMode=yes", name, "hostname"], capture_output=True, text=True)
            if answer.stdout.strip() == name:
                return
            log = (self.folder / f"sshd-{name}.log").read_text()
            assert time.monotonic() < deadline, f"sshd of {name} does not answer: {answer.stderr}\n{log}"
            time.sleep(0.1)


def interfaces() -> set[str]:
    """Of the network that this process is in; /sys may show another one's."""
    return {line.split(":")[1].strip().split("@")[0] for line in run("ip", "-o", "link").splitlines()}
