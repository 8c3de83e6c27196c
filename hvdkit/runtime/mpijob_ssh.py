"""SSH between the pods of an MPIJob, with the one key that mpi-operator mounts into all of them.

The key proves both who comes (the launcher) and who answers (a worker of this job), so that the launcher checks
the host key too and nothing has to be switched off.
"""

import os
import pwd
import socket
import tempfile
from pathlib import Path

from hvdkit.errors import EnvironmentProblem

PORT = 2222  # below 1024 needs a capability that the `restricted` Pod Security Standard takes away
SECONDS_TO_ANSWER = 3.0


def port() -> int:
    """The port that the workers' SSH servers listen on."""
    return int(os.environ.get("HVDKIT_SSH_PORT", PORT))


def key_folder() -> Path:
    """Where mpi-operator mounted the key (`sshAuthMountPath`): a `.ssh` folder at home, or root's."""
    places = [Path.home() / ".ssh", Path("/root/.ssh")]
    try:
        places.insert(1, Path(pwd.getpwuid(os.getuid()).pw_dir) / ".ssh")
    except KeyError:
        raise EnvironmentProblem(
            f"user {os.getuid()} is not in this image's /etc/passwd, and SSH serves nobody without a name; "
            "use an image with such a user, or set runAsUser to one that it has."
        ) from None
    if given := os.environ.get("HVDKIT_SSH_FOLDER"):
        places = [Path(given)]
    for place in places:
        if os.access(place / "id_rsa", os.R_OK):
            return place
    raise EnvironmentProblem(
        f"there is no readable SSH key id_rsa in {' or '.join(dict.fromkeys(map(str, places)))}; set the MPIJob's "
        "sshAuthMountPath to the .ssh folder in the user's home, and fsGroup to the user's group."
    )


def private_copy(folder: Path) -> Path:
    """The private key with permissions that SSH accepts; those of a mounted secret are often too open."""
    copy = folder / "id_rsa"
    copy.touch(mode=0o600)
    copy.write_bytes((key_folder() / "id_rsa").read_bytes())
    return copy


def new_folder() -> Path:
    """A folder of our own, readable by nobody else."""
    return Path(tempfile.mkdtemp(prefix="hvdkit-ssh-"))


def client_config(folder: Path) -> Path:
    """Write what `ssh -F` needs to reach the workers of this job, and only them."""
    key_type, key = (key_folder() / "id_rsa.pub").read_text().split()[:2]
    known_hosts = folder / "known_hosts"
    known_hosts.write_text(f"* {key_type} {key}\n")
    options = {
        "Port": port(),
        "IdentityFile": private_copy(folder),
        "IdentitiesOnly": "yes",
        "UserKnownHostsFile": known_hosts,
        "GlobalKnownHostsFile": "none",
        "StrictHostKeyChecking": "yes",
        "BatchMode": "yes",
        "ConnectTimeout": 20,
        "ConnectionAttempts": 5,
        "ControlPath": "none",
        "ServerAliveInterval": 5,
        "ServerAliveCountMax": 3,
        "LogLevel": "ERROR",
    }
    config = folder / "config"
    config.write_text("Host *\n" + "".join(f"    {name} {value}\n" for name, value in options.items()))
    return config


def problem_with(address: str) -> str:
    """Why no SSH server answers at this address; empty when one does."""
    number = port()
    try:
        with socket.create_connection((address, number), timeout=SECONDS_TO_ANSWER) as connection:
            banner = connection.recv(4)
    except TimeoutError:
        return f"port {number} does not answer"
    except OSError as error:
        return f"port {number}: {error.strerror}"
    return "" if banner == b"SSH-" else f"port {number} answers, but not as an SSH server"
