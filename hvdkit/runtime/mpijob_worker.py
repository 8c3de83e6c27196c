"""The main program of an MPIJob's worker pod: `python -m hvdkit.runtime.mpijob_worker`.

Runs an SSH server as an ordinary user and passes on to the ranks what Kubernetes says to the pod: a bare sshd
would take a SIGTERM for itself, and the ranks would be killed without having saved anything.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from hvdkit.errors import EnvironmentProblem
from hvdkit.runtime import mpijob_ssh
from hvdkit.runtime.pod_termination import explained
from hvdkit.runtime.pod_worker import serve, start_child

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OF_THE_SESSION = {"HOME", "USER", "LOGNAME", "SHELL", "PWD", "OLDPWD", "SHLVL", "TERM", "_"}


def main() -> int:
    """Serve until asked to stop; then let the ranks save and leave."""
    return serve(start_server, what="the SSH server")


def start_server() -> subprocess.Popen:
    """Start sshd as this user, with a configuration of our own."""
    program = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin:/usr/local/sbin")
    if program is None:
        raise EnvironmentProblem("there is no sshd in this image; install openssh-server, or use hvdkit's image.")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # root's sshd refuses to start without it
    folder = mpijob_ssh.new_folder()
    environment = folder / "environment"
    environment.touch(mode=0o600)
    environment.write_text(session_environment(os.environ | {"HVDKIT_WORKER_PID": str(os.getpid())}))
    config = folder / "sshd_config"
    # From OpenSSH 9.8 on, clients that only look whether we answer, as probes do, would be shut out for a while.
    config.write_text(server_config(folder) + "PerSourcePenalties no\n")
    if subprocess.run([program, "-t", "-f", config], capture_output=True).returncode != 0:
        config.write_text(server_config(folder))
    try:
        return start_child([program, "-D", "-e", "-f", str(config)])
    except PermissionError as error:
        raise EnvironmentProblem(
            f"{program} may not be run ({error.strerror}): the image gives it a file capability, which the "
            "`restricted` Pod Security Standard forbids; build the image without it (setcap -r)."
        ) from error


def server_config(folder: Path) -> str:
    """For sshd as an ordinary user: the mounted key opens and proves, and a session can only run commands."""
    options = {
        "Port": mpijob_ssh.port(),
        "HostKey": mpijob_ssh.private_copy(folder),
        "AuthorizedKeysFile": mpijob_ssh.key_folder() / "authorized_keys",
        "PidFile": "none",
        "UsePAM": "no",  # needs root
        "StrictModes": "no",  # a mounted secret belongs to root, and its folder is a link
        "AuthenticationMethods": "publickey",
        "PasswordAuthentication": "no",
        "KbdInteractiveAuthentication": "no",
        "PermitRootLogin": "prohibit-password",
        "DisableForwarding": "yes",
        "PermitTTY": "no",
        "PermitUserRC": "no",
        "UseDNS": "no",
        "MaxStartups": 1000,  # with Gloo every rank has a session; by default some above 10 are dropped at random
        "LoginGraceTime": 60,
        "ClientAliveInterval": 5,
        "ClientAliveCountMax": 3,
        "LogLevel": "ERROR",
        # A session starts without the container's variables; the ranks need them (secrets, NCCL, CUDA).
        "ForceCommand": f'. {shlex.quote(str(folder))}/environment && exec /bin/sh -c "$SSH_ORIGINAL_COMMAND"',
    }
    return "".join(f"{name} {value}\n" for name, value in options.items())


def session_environment(environ: Mapping[str, str]) -> str:
    """The container's variables as a shell reads them."""
    kept = {name: value for name, value in environ.items() if name not in _OF_THE_SESSION}
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in kept.items() if _VARIABLE.fullmatch(name))


if __name__ == "__main__":
    sys.exit(explained(main))
