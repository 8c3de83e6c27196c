"""What the pods of a job may do: the settings of the Pod Security Standards. Pure data."""

import re
from dataclasses import dataclass

from hvdkit.errors import InputError
from hvdkit.jobs.rules import choice, not_negative, ruled

LEVELS = ("restricted", "baseline", "privileged")  # from the strictest to the laxest

# What baseline lets root add; everything else needs privileged.
_BASELINE_CAPABILITIES = {
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
}


def _capability(name: str, value: str) -> None:
    if not re.fullmatch(r"[A-Z][A-Z0-9_]*", value) or value.startswith("CAP_") or value == "ALL":
        raise InputError(f"{name}: '{value}' is not a capability; write it as in IPC_LOCK, without CAP_.")


@dataclass(frozen=True, kw_only=True)
class Security:
    """What the pods may do."""

    level: str = choice(LEVELS, "restricted")
    """The Pod Security Standard that the settings below must keep; what it forbids is an error."""

    enforced: str | None = choice(LEVELS, None)
    """What the namespace enforces, where it is known; `hvdkit launch` reads it from the namespace."""

    user: int = ruled(not_negative, 1000)
    """User id of every process; 0, root, needs level baseline."""

    group: int = ruled(not_negative, 1000)
    """Group id of every process, and of the files on volumes that can be handed over."""

    read_only_root: bool = True
    """Make the image's own files read-only; /tmp and mounted volumes stay writable."""

    capabilities: tuple[str, ...] = ruled(_capability, ())
    """Capabilities that containers of root (user 0) get back after all were dropped, such as IPC_LOCK for RDMA."""

    def check(self, where: str) -> None:
        """Called by the spec."""
        if self.enforced is not None and LEVELS.index(self.level) > LEVELS.index(self.enforced):
            raise InputError(
                f"{where}level: the namespace enforces {self.enforced} and would refuse {self.level} pods; "
                "use another namespace."
            )
        if self.user == 0:
            self.require("baseline", f"{where}user", "root (0)", "use another user, such as 1000")
        for index, name in enumerate(self.capabilities):
            if self.user != 0:
                raise InputError(
                    f"{where}capabilities[{index}]: {name} has no effect for user {self.user}, only root's processes "
                    "get it; for RDMA let the nodes' container runtime set memlock to unlimited, or give the program "
                    "a file capability in the image and set allowPrivilegeEscalation in the rendered manifest."
                )
            needed = "baseline" if name in _BASELINE_CAPABILITIES else "privileged"
            self.require(needed, f"{where}capabilities[{index}]", name, "leave it out")

    def require(self, needed: str, field: str, what: str, otherwise: str) -> None:
        """An error when the level is stricter than `needed`."""
        if LEVELS.index(self.level) >= LEVELS.index(needed):
            return
        raise InputError(
            f"{field}: {what} is forbidden by the Pod Security Standard '{self.level}'; set security.level to "
            f"{needed} (in a namespace that allows it), or {otherwise}."
        )
