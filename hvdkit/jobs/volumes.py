"""The volumes of a job: what is mounted, and where. Pure data."""

from dataclasses import dataclass, fields

from hvdkit.errors import InputError
from hvdkit.jobs.rules import absolute_path, choice, dns_name, mount_path, quantity, relative_path, ruled, server, text

HOST_PATH_TYPES = ("Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket", "CharDevice", "BlockDevice")
NFS_MODES = ("auto", "inline", "pv")

NFS_MOUNT_OPTIONS = (
    "hard",  # a server that is away makes ranks wait and go on; soft would hand them I/O errors mid-epoch
    "nfsvers=4.1",  # one port, sessions that survive a reconnect; every server of the last ten years speaks it
    "noatime",  # a data set is read over and over: no need to keep a date for each read
    "rsize=1048576",  # the largest a client may ask for: fewer round trips for the big files of training
    "wsize=1048576",  # the same for checkpoints
)


@dataclass(frozen=True, kw_only=True)
class Nfs:
    """A folder of an NFS server."""

    server: str = ruled(server)
    """Host name or address of the server, as the nodes (not the pods) see it."""

    path: str = ruled(absolute_path)
    """The exported folder."""

    mount_options: tuple[str, ...] = ruled(text, NFS_MOUNT_OPTIONS)
    """Options of the mount. Only a PV can carry them, so that others than these need nfs_mode pv; an inline volume is
    mounted with the node's defaults."""

    def check(self, where: str) -> None:
        """Called by the spec."""
        for index, option in enumerate(self.mount_options):
            if not option or any(letter.isspace() or letter == "," for letter in option):
                raise InputError(f"{where}mount_options[{index}]: '{option}' is not one option; write them one by one.")

    @property
    def own_options(self) -> bool:
        """Whether the user chose options, which must not get lost; having none is what inline gives."""
        return self.mount_options not in ((), NFS_MOUNT_OPTIONS)


@dataclass(frozen=True, kw_only=True)
class HostPath:
    """A file or folder of the node; only security.level privileged allows it."""

    path: str = ruled(absolute_path)
    """Where it is on the node."""

    type: str | None = choice(HOST_PATH_TYPES, None)
    """What must be there; None does not look."""


@dataclass(frozen=True, kw_only=True)
class EmptyDir:
    """An empty folder that lives and dies with the pod."""

    size: str | None = ruled(quantity, None)
    """How much it may hold before the pod is evicted; None sets no limit."""

    memory: bool = False
    """Keep it in memory, where it counts as the pod's own."""


@dataclass(frozen=True, kw_only=True)
class Volume:
    """One volume, in every pod of the job at the same place; exactly one source is set."""

    mount: str = ruled(mount_path)
    """Where it appears in the containers."""

    nfs: Nfs | None = None
    """A folder of an NFS server."""

    pvc: str | None = ruled(dns_name, None)
    """A PersistentVolumeClaim of the namespace."""

    host_path: HostPath | None = None
    """A file or folder of the node."""

    empty_dir: EmptyDir | None = None
    """An empty folder for the pod's life."""

    config_map: str | None = ruled(dns_name, None)
    """A config map: each key is a file."""

    secret: str | None = ruled(dns_name, None)
    """A secret: each key is a file."""

    read_only: bool = False
    """Mount it without the right to write."""

    sub_path: str | None = ruled(relative_path, None)
    """Mount only this folder of the volume."""

    def check(self, where: str) -> None:
        """Called by the spec."""
        given = [name for name in SOURCES if getattr(self, name) is not None]
        if len(given) != 1:
            found = " and ".join(given) or "none"
            raise InputError(f"{where}mount: the volume at '{self.mount}' needs one source, not {found}: {_NAMED}.")

    @property
    def source(self) -> str:
        """Which of the sources is set."""
        return next(name for name in SOURCES if getattr(self, name) is not None)


SOURCES = tuple(part.name for part in fields(Volume) if part.name not in ("mount", "read_only", "sub_path"))
_NAMED = ", ".join(SOURCES[:-1]) + f" or {SOURCES[-1]}"
