"""Looks through a Pushgateway and removes old groups: it forgets nothing by itself."""

import json
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hvdkit.errors import EnvironmentProblem

SECONDS = 10.0
OURS = "hvdkit_"  # every metric that we push begins so


@dataclass(frozen=True, kw_only=True)
class Group:
    """What was pushed under one key."""

    labels: dict[str, str]
    """The key, `job` among them."""

    pushed_at: float
    """Unix time of the last push that succeeded."""

    ours: bool
    """Whether hvdkit pushed it: others may use the same gateway."""

    def __str__(self) -> str:
        return ", ".join(
            f"{name}={value}" for name, value in sorted(self.labels.items(), key=lambda one: one[0] != "job")
        )


def list_groups(url: str) -> list[Group]:
    """All groups of a gateway; EnvironmentProblem when it does not answer."""
    answer = _get(f"{url}/api/v1/metrics")
    try:
        return [read_group(entry) for entry in json.loads(answer)["data"]]
    except (ValueError, KeyError, TypeError) as error:
        raise EnvironmentProblem(
            f"--pushgateway {url} answered something that is no Pushgateway's list of groups ({error!r})."
        ) from error


def read_group(entry: dict[str, Any]) -> Group:
    """One group of the gateway's own list."""
    metrics = {name for name in entry if name not in ("labels", "last_push_successful")}
    times = entry["push_time_seconds"]["metrics"]
    pushed = metrics - {"push_time_seconds", "push_failure_time_seconds"}
    return Group(
        labels=dict(entry["labels"]),
        pushed_at=float(times[0]["value"]),
        ours=bool(pushed) and all(name.startswith(OURS) for name in pushed),
    )


def old_groups(groups: Sequence[Group], *, now: float, older_than: float, job: str | None = None) -> list[Group]:
    """Those of hvdkit that were pushed more than `older_than` seconds ago, of one job name if it is given."""
    return [
        group
        for group in groups
        if group.ours and now - group.pushed_at > older_than and job in (None, group.labels.get("job"))
    ]


def delete_group(url: str, group: Group) -> None:
    """Remove one group; EnvironmentProblem when the gateway refuses."""
    from prometheus_client import delete_from_gateway

    others = {name: value for name, value in group.labels.items() if name != "job"}
    try:
        delete_from_gateway(url, group.labels["job"], others, timeout=SECONDS)
    except OSError as error:
        raise EnvironmentProblem(f"the Pushgateway at {url} did not remove {group}: {error}.") from error


def _get(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=SECONDS) as answer:
            return answer.read()
    except urllib.error.HTTPError as error:
        raise EnvironmentProblem(f"--pushgateway: {url} answered {error.code} ({error.reason}).") from error
    except OSError as error:
        reason = getattr(error, "reason", None) or error
        raise EnvironmentProblem(f"--pushgateway: {url} does not answer ({reason}).") from error
