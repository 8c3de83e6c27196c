"""`mount.nfs SERVER:/FOLDER TARGET -o OPTIONS`, as mount(8) starts it: returns once the folder is there."""

import argparse
import ctypes
import os
import secrets
import sys

from .files import Files
from .fuse import FileSystem
from .session import LARGEST, NfsError, Session

_FAILED = 32  # as mount(8) has it
_LOG = "HVDKIT_NFS_CLIENT_LOG"
_FLAGS = {"ro": 1, "noatime": 1 << 10}  # of mount(2)
_VERSIONS = ("4.1", "4")
# What the answers here are like anyway.
_UNDERSTOOD = {"rw", "hard", "proto", "rsize", "wsize", "nfsvers", "vers", *_FLAGS}


def main() -> int:
    parser = argparse.ArgumentParser(prog="mount.nfs", description=__doc__)
    parser.add_argument("source")
    parser.add_argument("target")
    parser.add_argument("-o", dest="options", default="rw")
    parser.add_argument("-v", "-n", "-s", action="store_true", help="as mount(8) passes them on; no effect")
    arguments = parser.parse_args()
    options = dict(part.partition("=")[::2] for part in arguments.options.split(","))
    server, _, path = arguments.source.rpartition(":")
    if unknown := set(options) - _UNDERSTOOD:
        return fail(f"options that this client does not have: {', '.join(sorted(unknown))}")
    if options.get("nfsvers", options.get("vers", "4.1")) not in _VERSIONS:
        return fail("this client speaks NFS 4.1 only")
    session = Session(server, f"hvdkit {os.uname().nodename} {secrets.token_hex(8)}".encode(), secrets.token_bytes(8))
    try:
        session.open()
        files = Files(session, path)
    except (OSError, NfsError) as error:
        return fail(f"{arguments.source}: {error}")
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    flags = sum(number for name, number in _FLAGS.items() if name in options)
    try:
        mount(arguments.source, arguments.target, device, flags)
    except OSError as error:
        return fail(f"{arguments.target}: {error.strerror}")
    if os.fork():
        return 0
    stay_behind()
    FileSystem(files).serve(device)
    return 0


def mount(source: str, target: str, device: int, flags: int) -> None:
    """Make the kernel ask us; for every user, and without checks of its own, which are the server's."""
    data = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other,max_read={LARGEST}"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(source.encode(), target.encode(), b"fuse.nfs", ctypes.c_ulong(flags), data.encode()):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def stay_behind() -> None:
    """Let go of everything that mount(8) and its caller wait for."""
    os.setsid()
    os.chdir("/")
    log = os.open(os.environ.get(_LOG, os.devnull), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, stream in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(number, stream)


def fail(message: str) -> int:
    print(f"mount.nfs: {message}", file=sys.stderr)
    return _FAILED


if __name__ == "__main__":
    sys.exit(main())
