"""The NFS server of nfs/, started as its manifest says, and mounted by a real Linux client with the options of our PV.

The server runs with the user, the capabilities and the mounts of the StatefulSet and with the configuration of the
ConfigMap, in namespaces instead of a pod. The client is a whole kernel (User Mode Linux), because this machine's may
have no NFS client.
"""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from machines import interfaces, run

NFS = Path(__file__).parents[2] / "nfs"
NEEDED = ("cc", "ganesha.nfsd", "linux.uml", "modprobe", "mount.nfs", "setcap", "setpriv", "mkfs.ext4", "ss")
PACKAGES = "nfs-ganesha nfs-ganesha-vfs user-mode-linux kmod nfs-common libcap2-bin"
ADDRESS, CLIENT_ADDRESS = "10.77.0.1", "10.77.0.2"
LIMIT = 300  # seconds; a restarted server keeps clients waiting for up to 45 of them

# The first program of the client's machine. What it says and hears goes over its console.
BOOT = f"""#!/bin/sh
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc proc /proc && mount -t tmpfs tmpfs /run && stty -echo
mkdir -p /run/root/lib /run/data && ln -s /usr/lib/uml/modules /run/root/lib/modules
modprobe -d /run/root nfsv4
ip link set lo up && ip address add {CLIENT_ADDRESS}/24 dev eth0 && ip link set eth0 up
sh -eu %s && echo all is well
echo o > /proc/sysrq-trigger
sleep 60
"""


def statefulset() -> dict:
    return next(one for one in yaml.safe_load_all((NFS / "server.yaml").read_text()) if one["kind"] == "StatefulSet")


def mount_command(*, version: str | None = None) -> str:
    """What the kubelet runs for the PV of volume.yaml."""
    volume = next(yaml.safe_load_all((NFS / "volume.yaml").read_text()))["spec"]
    options = [option for option in volume["mountOptions"] if version is None or "nfsvers" not in option]
    options += [f"nfsvers={version}"] if version else []
    return f"mount -t nfs -o {','.join(options)} {ADDRESS}:{volume['nfs']['path']} /run/data"


class Server:
    """The pod of the StatefulSet: its init container's command, then the image's entry point."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder, folder / "server.log"
        pod = statefulset()["spec"]["template"]["spec"]
        (self.first,), (self.container,) = pod["initContainers"], pod["containers"]
        self.user, self.volumes = pod["securityContext"], {one["name"]: one for one in pod["volumes"]}
        dockerfile = (NFS / "Dockerfile").read_text()
        self.command = json.loads(re.search(r"^ENTRYPOINT (.*)$", dockerfile, re.MULTILINE)[1])
        # The image's program carries the capability in its file; here a copy does.
        self.program = folder / "ganesha.nfsd"
        shutil.copy(shutil.which("ganesha.nfsd"), self.program)
        run("setcap", re.search(r"setcap (\S+) /usr/bin/ganesha.nfsd", dockerfile)[1], str(self.program))
        (folder / "config").mkdir()
        shutil.copy(NFS / "ganesha.conf", folder / "config")

    def start(self) -> None:
        words = ["unshare", "--mount", "sh", "-euc", self.script()]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(words, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + LIMIT
        while self.listeners() != ["*:2049"]:
            assert self.process.poll() is None and time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.1)

    def script(self) -> str:
        """Mounts and then becomes the server, as a container runtime does it."""
        lines = ["mount -t tmpfs tmpfs /run"]  # takes the folders that are mounted over, so that none stays behind
        lines += [f"mount --bind {self.program} /usr/bin/ganesha.nfsd"]
        # Folders first: what they are made of may lie under one of the empty ones.
        for mount in sorted(self.container["volumeMounts"], key=self.is_empty):
            path = mount["mountPath"]
            if self.is_empty(mount):
                lines += [f"mkdir -p {path}", f"mount -t tmpfs -o mode=0777 tmpfs {path}"]
            else:
                lines += [f"mount --bind {self.folder / mount['name']} {path}"]
        lines += ["mount -o remount,bind,ro /"]
        lines += [self.as_user(self.first, self.first["command"])]
        lines += ["exec " + self.as_user(self.container, self.command)]
        return "\n".join(lines)

    def is_empty(self, mount: dict) -> bool:
        return "emptyDir" in self.volumes.get(mount["name"], {})

    def as_user(self, container: dict, command: list[str]) -> str:
        context = container["securityContext"]
        added = [f"+{name.lower()}" for name in context["capabilities"].get("add", [])]
        words = ["setpriv", f"--reuid={self.user['runAsUser']}", f"--regid={self.user['runAsGroup']}", "--clear-groups"]
        words += ["--inh-caps=-all", f"--bounding-set={','.join(['-all', *added])}"]
        words += [] if context["allowPrivilegeEscalation"] else ["--no-new-privs"]
        return shlex.join([*words, *command])

    def listeners(self) -> list[str]:
        """Every address on which this network listens, for TCP or UDP."""
        return [line.split()[4] for line in run("ss", "-Htuln").splitlines()]

    def status(self) -> dict[str, str]:
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(timeout=LIMIT)


class Client:
    """A machine of its own that mounts the server: a Linux kernel with this machine's files, read-only."""

    def __init__(self, folder: Path, script: str) -> None:
        boot, steps = folder / "boot.sh", folder / "steps.sh"
        boot.write_text(BOOT % steps)
        boot.chmod(0o755)
        steps.write_text(script)
        words = ["timeout", "--signal=KILL", str(LIMIT), "linux.uml", "mem=192M", "quiet", f"uml_dir={folder}"]
        words += ["root=/dev/root", "rootfstype=hostfs", "ro", f"init={boot}"]
        words += ["eth0=tuntap,tap0", "con=null", "con0=fd:0,fd:1"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        library = folder / "uml_ptrace.so"
        run("cc", "-shared", "-fPIC", "-o", str(library), str(Path(__file__).with_name("uml_ptrace.c")))
        environment = os.environ | {"TMPDIR": str(folder), "LD_PRELOAD": str(library)}
        self.process = subprocess.Popen(words, **pipes, text=True, env=environment)
        self.said: list[str] = []

    def wait_for(self, words: str) -> None:
        for line in self.process.stdout:
            self.said.append(line.rstrip())
            if words in line:
                return
        pytest.fail(f"the client ended without saying {words!r}:\n" + "\n".join(self.said))

    def go_on(self) -> None:
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self) -> list[str]:
        self.wait_for("all is well")
        self.process.communicate(timeout=LIMIT)
        return self.said


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    missing = [tool for tool in NEEDED if shutil.which(tool) is None]
    assert not missing, f"install {', '.join(missing)} (Debian: apt install --no-install-recommends {PACKAGES})"
    assert interfaces() == {"lo"}, "start these tests with `make e2e`, which gives them a network of their own"
    run("ip", "tuntap", "add", "dev", "tap0", "mode", "tap")
    run("ip", "address", "add", f"{ADDRESS}/24", "dev", "tap0")
    run("ip", "link", "set", "tap0", "up")
    disk, volume = tmp_path / "disk", tmp_path / "volume"
    disk.touch()
    os.truncate(disk, 256 << 20)
    run("mkfs.ext4", "-q", str(disk))
    volume.mkdir()
    run("mount", "-o", "loop", str(disk), str(volume))
    # What the kubelet makes of fsGroup.
    shutil.chown(volume, 0, statefulset()["spec"]["template"]["spec"]["securityContext"]["fsGroup"])
    volume.chmod(0o2775)
    tmp_path.chmod(0o755)
    made = Server(tmp_path)
    try:
        made.start()
        yield made
        assert made.stop() == 0, made.log.read_text()
    finally:
        made.process.kill()
        made.process.wait()
        run("umount", str(volume))
        run("ip", "link", "delete", "tap0")


def test_it_has_one_capability_and_one_port(server: Server) -> None:
    status = server.status()
    assert status["Name"] == "ganesha.nfsd"
    assert status["Uid"].split() == ["1000"] * 4
    assert {status[name] for name in ("CapEff", "CapPrm", "CapBnd")} == {f"{1 << 2:016x}"}  # CAP_DAC_READ_SEARCH
    assert server.listeners() == ["*:2049"]


def test_files_and_locks_outlive_a_killed_server(server: Server, tmp_path: Path) -> None:
    client = Client(
        tmp_path,
        f"""
        {mount_command()}
        grep /run/data /proc/mounts
        cd /run/data
        exec 3> log && flock --nonblock 3 && echo before >&3
        setpriv --reuid=2000 --regid=2000 --clear-groups sh -c 'echo of another user > other'
        echo written && read go_on
        echo after >&3  # an input/output error if the lock was not given back
        head -c 20000000 /dev/urandom > writing && mv writing checkpoint && sha256sum checkpoint
        exec 3>&-
        """,
    )
    client.wait_for("written")
    server.stop(signal.SIGKILL)
    server.start()
    client.go_on()
    said = client.end()
    (mounted,) = [line for line in said if "nfs4" in line]
    assert {"hard", "vers=4.1", "noatime", "rsize=1048576", "wsize=1048576"} <= set(mounted.split()[3].split(","))

    data = tmp_path / "volume" / "data"
    assert sorted(file.name for file in data.iterdir()) == ["checkpoint", "log", "other"]
    assert {(file.stat().st_uid, file.stat().st_gid) for file in data.iterdir()} == {(1000, 1000)}
    assert (data / "log").read_text() == "before\nafter\n"
    assert (data / "other").read_text() == "of another user\n"
    (line,) = [line for line in said if "checkpoint" in line]
    assert run("sha256sum", str(data / "checkpoint")).split()[0] == line.split()[0]

    assert server.stop() == 0
    server.start()
    another = Client(tmp_path, f"{mount_command()}\ncat /run/data/log\nsha256sum /run/data/checkpoint").end()
    assert "after" in another
    assert any(one.startswith(line.split()[0]) for one in another)


def test_versions_without_sessions_are_refused(server: Server, tmp_path: Path) -> None:
    tries = "\n".join(f"if {mount_command(version=version)}; then exit 1; fi" for version in ("4.0", "3"))
    said = Client(tmp_path, f"{tries}\n{mount_command(version='4.2')}\ngrep /run/data /proc/mounts").end()
    assert any("vers=4.2" in line for line in said)
