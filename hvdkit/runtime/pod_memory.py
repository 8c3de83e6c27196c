"""Was a process of this pod killed for lack of memory? The kernel counts it in the pod's cgroup."""

import contextlib
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
_MEBIBYTE = 1 << 20


def oom_kills() -> int:
    """How many processes the kernel has killed in this cgroup for lack of memory; 0 where it does not say."""
    for name in ("memory.events", "memory.oom_control"):  # cgroup v2, v1
        for line in _read(name).splitlines():
            key, _, value = line.partition(" ")
            if key == "oom_kill" and value.isdecimal():
                return int(value)
    return 0


def memory_limit() -> int | None:
    """The cgroup's limit in bytes; None when there is none."""
    text = (_read("memory.max") or _read("memory.limit_in_bytes")).strip()
    # Without a limit v2 says "max", v1 the largest number that pages can count.
    return int(text) if text.isdecimal() and int(text) < 1 << 60 else None


def limit_in_words() -> str:
    """For a sentence: the limit, as people write it."""
    limit = memory_limit()
    return f"the limit is {limit // _MEBIBYTE:,} MiB" if limit is not None else "there is no limit: the node was full"


def _read(name: str) -> str:
    for folder in _folders():
        with contextlib.suppress(OSError):
            return (folder / name).read_text()
    return ""


def _folders() -> list[Path]:
    """Where this process' memory cgroup can be; a container mostly sees its own at the top."""
    folders = []
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            folders.append(_CGROUPS / path.lstrip("/"))
        elif "memory" in controllers.split(","):
            folders += [_CGROUPS / "memory" / path.lstrip("/"), _CGROUPS / "memory"]
    return [*folders, _CGROUPS]
