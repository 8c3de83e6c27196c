"""Pods made of containers: podman runs what a manifest says, with the rights that a manifest leaves it.

Each has a network namespace of its own on a bridge. `make e2e` runs the tests in namespaces of their own, so that the
kernel removes all of this when they end.
"""

import json
import subprocess
import time
from pathlib import Path

from image_store import builder_words, run

PODMAN = ("podman", "--runtime=runc", "--cgroup-manager=cgroupfs", "--events-backend=file")
LIMITS = [word for word in builder_words() if word.startswith("--ulimit")]


class Network:
    """Names at 10.78.0.2, 10.78.0.3 …, which every container finds in its /etc/hosts."""

    def __init__(self, names: list[str], folder: Path) -> None:
        self.names = names
        self.hosts = folder / "hosts"
        lines = [f"10.78.0.{number} {name} {name}.job.team.svc" for number, name in enumerate(names, start=2)]
        self.hosts.write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))
        run("ip", "link", "add", "pods0", "type", "bridge")
        run("ip", "address", "add", "10.78.0.1/24", "dev", "pods0")
        run("ip", "link", "set", "pods0", "up")
        for number, name in enumerate(names, start=2):
            self._add(name, number)

    def _add(self, name: str, number: int) -> None:
        run("ip", "netns", "add", name)
        run("ip", "link", "add", f"pod{number}", "type", "veth", "peer", "name", "eth0", "netns", name)
        run("ip", "link", "set", f"pod{number}", "master", "pods0", "up")
        inside = ("ip", "netns", "exec", name, "ip")
        run(*inside, "address", "add", f"10.78.0.{number}/24", "dev", "eth0")
        run(*inside, "link", "set", "eth0", "up")
        run(*inside, "link", "set", "lo", "up")

    def stop(self) -> None:
        for number, name in enumerate(self.names, start=2):
            run("ip", "link", "delete", f"pod{number}")
            run("ip", "netns", "delete", name)
        run("ip", "link", "delete", "pods0")


class Container:
    """A pod's container, as its manifest describes it; `mounts` are what the cluster would mount beside."""

    def __init__(self, name: str, pod: dict, network: Network, mounts: dict[str, Path], folder: Path) -> None:
        self.name, self.log = name, folder / f"{name}.log"
        words = podman_run(name, pod, network, mounts)
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def wait(self, limit: float = 600) -> int:
        """The exit code of its first process."""
        try:
            return self.process.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} did not end within {limit} s:\n{self.output()}") from None

    def inside(self, *command: str) -> str:
        """What a command prints in the running container."""
        return run(*PODMAN, "exec", self.name, *command)

    def wait_until_running(self, limit: float = 120) -> None:
        deadline = time.monotonic() + limit
        while subprocess.run([*PODMAN, "exec", self.name, "true"], capture_output=True).returncode != 0:
            assert self.process.poll() is None, f"{self.name} ended with {self.process.returncode}:\n{self.output()}"
            assert time.monotonic() < deadline, f"{self.name} does not run:\n{self.output()}"
            time.sleep(0.2)

    def stop(self) -> None:
        if self.process.poll() is None:
            run(*PODMAN, "rm", "--force", "--time=0", self.name)
            self.process.wait(timeout=60)


def podman_run(name: str, pod: dict, network: Network, mounts: dict[str, Path]) -> list[str]:
    """The words that give a container what the kubelet would: nothing that the manifest does not ask for."""
    container, rights = pod["containers"][0], pod["securityContext"]
    assert rights["seccompProfile"]["type"] == "RuntimeDefault"  # podman's default too
    words = [*PODMAN, "run", "--rm", "--replace", f"--name={name}", f"--hostname={name}", "--no-hosts", *LIMITS]
    words += [f"--network=ns:/run/netns/{name}", f"--user={rights['runAsUser']}:{rights['runAsGroup']}"]
    words += [f"--volume={network.hosts}:/etc/hosts:ro"]
    words += restrictions(container["securityContext"])
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    for mount in container["volumeMounts"]:
        assert "emptyDir" in volumes[mount["name"]]
        words.append(f"--tmpfs={mount['mountPath']}:rw,exec,mode=1777")
    words += [f"--volume={source}:{place}:ro" for place, source in mounts.items()]
    words += [f"--env={variable['name']}={value_of(variable)}" for variable in container["env"]]
    # As in a pod, `command` takes the place of the image's entry point.
    return [*words, f"--entrypoint={json.dumps(container['command'])}", container["image"]]


def value_of(variable: dict) -> str:
    """What the kubelet would fill in."""
    if "value" in variable:
        return variable["value"]
    return {"spec.nodeName": "node"}[variable["valueFrom"]["fieldRef"]["fieldPath"]]


def restrictions(rights: dict) -> list[str]:
    """A container's securityContext, and an error for one that is weaker than `restricted`."""
    assert rights["capabilities"] == {"drop": ["ALL"]}
    assert rights["allowPrivilegeEscalation"] is False
    assert rights["readOnlyRootFilesystem"] is True
    return ["--cap-drop=all", "--security-opt=no-new-privileges", "--read-only", "--read-only-tmpfs=false"]


RESTRICTED = restrictions(
    {"capabilities": {"drop": ["ALL"]}, "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True}
)


def run_in(image: str, *command: str, network: str = "none", further: tuple[str, ...] = ()) -> str:
    """What a command prints in a new container with a pod's rights."""
    words = [*PODMAN, "run", "--rm", f"--network={network}", *LIMITS, *RESTRICTED]
    return run(*words, "--tmpfs=/tmp:rw,exec,mode=1777", *further, image, *command)
