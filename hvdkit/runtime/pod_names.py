"""Names in a cluster come into DNS late: wait for them, not for ever, and say whom we wait for."""

import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from ipaddress import IPv4Address
from pathlib import Path

from hvdkit.errors import EnvironmentProblem
from hvdkit.runtime.pod_termination import AskedToStop

SECONDS_BETWEEN_WORDS = 10.0
_MOST_NAMED = 5


class NotThereInTime(EnvironmentProblem):
    """Somebody was waited for and did not come."""


def addresses_of(name: str) -> list[str]:
    """The IPv4 addresses of a name, in order; empty while it does not resolve."""
    return sorted(_resolve(name, socket.AF_INET), key=IPv4Address)


def only_ipv6(name: str) -> str:
    """Why `addresses_of` finds nothing though the name resolves; empty when it does not."""
    found = sorted(_resolve(name, socket.AF_INET6))
    return f"{name} has an IPv6 address only, {found[0]}, and ranks meet over IPv4" if found else ""


def _resolve(name: str, family: socket.AddressFamily) -> set[str]:
    found = {address for address in _from_file(name) if (":" in address) == (family == socket.AF_INET6)}
    if not found:
        with contextlib.suppress(OSError):
            found = {entry[4][0] for entry in socket.getaddrinfo(name, None, family, socket.SOCK_STREAM)}
    return found


def _from_file(name: str) -> set[str]:
    """From the file that HVDKIT_NAMES names, with lines as in /etc/hosts: for networks without DNS, as in tests."""
    file = os.environ.get("HVDKIT_NAMES")
    lines = (line.split() for line in Path(file).read_text().splitlines()) if file else ()
    return {address for address, *names in filter(None, lines) if name in names}


def stop_when_asked() -> None:
    """From now on SIGTERM raises AskedToStop. The first process of a container ignores it otherwise."""

    def leave(signum: int, frame: object) -> None:
        raise AskedToStop

    signal.signal(signal.SIGTERM, leave)


def wait_until_none_is_missing(
    look: Callable[[], Mapping[str, str]], seconds: float, what: str, longest_pause: float = 1.0
) -> None:
    """Call `look` until it finds nobody missing (a name and why); NotThereInTime after so many seconds.

    Says every ten seconds who is missing, so that a log shows what a pod waits for.
    """
    begin = time.monotonic()
    next_word = begin + SECONDS_BETWEEN_WORDS
    pause = min(longest_pause, 0.05)
    while missing := look():
        now = time.monotonic()
        if now - begin > seconds:
            raise NotThereInTime(f"these {what} were not there within {seconds:g} s: {in_words(missing)}.")
        if now > next_word:
            next_word = now + SECONDS_BETWEEN_WORDS
            print(f"hvdkit: waiting for {what}: {in_words(missing)}", file=sys.stderr, flush=True)
        time.sleep(pause)
        pause = min(longest_pause, 1.5 * pause)


def in_words(missing: Mapping[str, str]) -> str:
    """`a (why), b (why) and 3 more`."""
    named = [f"{name} ({why})" if why else name for name, why in list(missing.items())[:_MOST_NAMED]]
    rest = len(missing) - len(named)
    return ", ".join(named) + (f" and {rest} more" if rest > 0 else "")


def first_label(name: str) -> str:
    """The pod's own name in `pod.service.namespace.svc`; an address stays as it is."""
    return name if name.replace(".", "").isdecimal() else name.partition(".")[0]
