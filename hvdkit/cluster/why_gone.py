"""What `why` says of a job whose own object is gone: only events tell how it ended, if they do. Pure."""

from dataclasses import replace

from hvdkit.cluster.kinds import JOB_KINDS, Object
from hvdkit.cluster.why_facts import Answer, Facts, event_lines, reason_of, said_in, short

_KINDS = [kind.kind for kind in JOB_KINDS]
_SUCCEEDED = ("Completed", "MPIJobSucceeded", "PyTorchJobSucceeded")
# mpi-operator adds the reason of the last pod: BackoffLimitExceeded/Evicted.
_FAILED = ("BackoffLimitExceeded", "DeadlineExceeded", "FailedIndexes", "MaxFailedIndexesExceeded", "PodFailurePolicy")
_FAILED += ("MPIJobFailed", "PyTorchJobFailed")
_PODS_ONLY = "pod created failed"  # mpi-operator calls it MPIJobFailed, too, and tries again


def explain_gone(facts: Facts, found: Answer | None) -> Answer:
    """The answer, where `found` is what the rules make of what is left."""
    last = next((one for one in reversed(facts.events) if _ended(one)), None)
    if last is not None and reason_of(last) in _SUCCEEDED:
        return Answer(
            cause=f"nothing is wrong: the job '{facts.name}' succeeded, and was removed since.",
            evidence=event_lines([last]),
        )
    if last is None:
        before = f"; before that, {found.cause}" if found else "."
        return Answer(
            trouble=found.trouble if found else "gone",
            cause=f"the job is gone, and what is left of it does not say how it ended{before}",
            evidence=found.evidence if found else event_lines(facts.events),
            what_to_do="somebody deleted it, or its ttl passed; `hvdkit launch --save-logs DIR` keeps the logs of one.",
        )
    if found is not None:
        cause = f"the job failed, and was removed since: {found.cause}"
        return replace(found, cause=cause, evidence=[*found.evidence, *event_lines([last])])
    return Answer(
        trouble="failed",
        cause=f"the job failed, and was removed since: {short(said_in(last) or reason_of(last))}.",
        evidence=event_lines([one for one in facts.events if one.get("type") == "Warning"]),
        what_to_do="its pods are gone; launch it again with --save-logs DIR, which keeps their logs.",
    )


def _ended(event: Object) -> bool:
    """Whether the event says that the job has ended, well or badly."""
    if (event.get("involvedObject") or {}).get("kind") not in _KINDS or _PODS_ONLY in said_in(event):
        return False
    return reason_of(event).partition("/")[0] in (*_SUCCEEDED, *_FAILED)
