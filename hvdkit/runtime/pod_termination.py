"""What a pod leaves behind: Kubernetes keeps the last 4096 bytes of a container's termination message.

The pod's log may be gone by the time somebody asks why a job failed; this stays as long as the pod's object.
"""

import contextlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

from hvdkit.errors import EXIT_RESTART_ME, HvdkitError
from hvdkit.local.supervisor import Outcome

MOST_BYTES = 4096
_LONGEST_LINE = 400  # characters; a longer line is cut, so that several fit
_VERSION = 1


class AskedToStop(Exception):
    """The pod was asked to stop before any rank ran: nothing is lost, it can be started again."""


def message(outcome: Outcome, *, host: str | None = None, out_of_memory: bool = False) -> bytes:
    """The outcome as JSON of at most 4096 bytes; of the last lines as many as fit."""
    facts = {
        "version": _VERSION,
        "exit_code": outcome.exit_code,
        "reason": _cut(outcome.reason, _LONGEST_LINE),
        "rank": outcome.rank,
        "host": host,
        "out_of_memory": out_of_memory,
    }
    tail = [_cut(line, _LONGEST_LINE) for line in outcome.tail]
    while True:
        text = json.dumps({**facts, "tail": tail}, ensure_ascii=False).encode(errors="replace")
        if len(text) <= MOST_BYTES:
            return text
        del tail[0]


def write(outcome: Outcome, *, host: str | None = None, out_of_memory: bool = False) -> None:
    """Write the termination message; outside a pod there is no file for it, and nothing is written."""
    given = os.environ.get("HVDKIT_TERMINATION_LOG")
    path = Path(given or "/dev/termination-log")
    if given or path.exists():
        with contextlib.suppress(OSError):  # the outcome itself matters more
            path.write_bytes(message(outcome, host=host, out_of_memory=out_of_memory))


def report(outcome: Outcome) -> None:
    """Say at the end of the log how the run ended."""
    if not outcome.reason:
        return
    print(f"hvdkit: {outcome.reason}; exit code {outcome.exit_code}", file=sys.stderr)
    if outcome.tail:
        whose = f" of rank {outcome.rank}" if outcome.rank is not None else ""
        print(f"hvdkit: the last lines{whose}:", *outcome.tail, sep="\n  ", file=sys.stderr)


def explained(work: Callable[[], int]) -> int:
    """Run a pod's main program; an error becomes a sentence, a termination message and an exit code."""
    try:
        return work()
    except HvdkitError as error:
        outcome = Outcome(exit_code=error.exit_code, reason=str(error))
        print(f"hvdkit: {error}", file=sys.stderr)
    except AskedToStop:
        outcome = Outcome(exit_code=EXIT_RESTART_ME, reason="asked to stop before the ranks had started")
        report(outcome)
    write(outcome)
    return outcome.exit_code


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
