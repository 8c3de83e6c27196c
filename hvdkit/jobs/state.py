"""Where a job stands, in the same words for every backend. Pure data."""

from dataclasses import dataclass

PENDING, STARTING, RUNNING, RESTARTING = "Pending", "Starting", "Running", "Restarting"
SUSPENDED, SUCCEEDED, FAILED = "Suspended", "Succeeded", "Failed"
PHASES = (PENDING, STARTING, RUNNING, RESTARTING, SUSPENDED, SUCCEEDED, FAILED)


@dataclass(frozen=True, kw_only=True)
class JobState:
    """Where a job stands."""

    phase: str
    """One of PHASES."""

    ready: int = 0
    """Workers that are ready, and were at the end those that had succeeded."""

    workers: int = 0
    """Workers that the job has."""

    reason: str = ""
    """One word of Kubernetes' for it, such as BackoffLimitExceeded or ImagePullBackOff."""

    message: str = ""
    """More about it."""

    exit_code: int | None = None
    """Of the launcher, or of the pod that failed first; None while there is none."""

    started: str | None = None
    """When the job started, as RFC 3339."""

    ended: str | None = None
    """When it ended."""

    @property
    def finished(self) -> bool:
        """Whether nothing more will happen."""
        return self.phase in (SUCCEEDED, FAILED)
