"""Alert rules as code; `hvdkit metrics alerts` prints them for Prometheus or for its operator."""

from typing import Any

from hvdkit.metrics import queries

GROUP = "hvdkit"
WHERE = "Job {{ $labels.hvdkit_job }}"  # filled in by Prometheus


def rules() -> list[dict[str, Any]]:
    """All alerts. An ended job has no metrics any more, so that none of these outlives it."""
    return [
        _alert(
            "HvdkitJobStalled",
            f"{queries.steps_of_job('', '5m')} == 0",
            wait="10m",
            severity="critical",
            summary=f"{WHERE} has made no step for 15 minutes.",
            description="A rank hangs, or waits for data or for a rank that has gone. Ctrl-\\ at `hvdkit launch` (or "
            "kill -QUIT of it) prints the stacks of all ranks; `hvdkit why` explains lost pods.",
        ),
        _alert(
            "HvdkitRankMissing",
            f"{queries.missing_ranks('')} > 0",
            wait="5m",
            severity="warning",
            summary=WHERE + " has {{ $value }} ranks that Prometheus does not reach.",
            description="The pods are gone, or a NetworkPolicy keeps Prometheus from their metrics ports.",
        ),
        _alert(
            "HvdkitStraggler",
            f"{queries.straggling_ratio('', '5m')} > 1.2",
            wait="10m",
            severity="warning",
            summary=WHERE + ": the slowest rank works {{ $value | humanizePercentage }} as long as the median one.",
            description="All ranks wait for it in every step. The dashboard Live job names the rank and its host; look "
            "for another process on that machine, a throttled GPU or a slow disk.",
        ),
        _alert(
            "HvdkitLossNotFinite",
            queries.loss_not_finite(""),
            wait="0m",
            severity="critical",
            summary=f"{WHERE} has a loss that is not finite.",
            description="Training has diverged: a lower learning rate, a longer warm-up, or --clip.",
        ),
        _alert(
            "HvdkitCheckpointTooOld",
            f"{queries.checkpoint_age_seconds('')} > 3600",
            wait="5m",
            severity="warning",
            summary=WHERE + " saved its newest checkpoint {{ $value | humanizeDuration }} ago.",
            description="A failure now would lose that much work. Is the disk full, or --checkpoint-every too large?",
        ),
        _alert(
            "HvdkitInputBound",
            f"{queries.data_wait_ratio_of_job('', '5m')} > 0.2",
            wait="15m",
            severity="warning",
            summary=WHERE + " waits for data {{ $value | humanizePercentage }} of its time.",
            description="More loader workers, --cache-dir on a local disk, or faster storage would speed it up.",
        ),
        _alert(
            "HvdkitRestartsOften",
            f"{queries.restarts_within('', '1h')} >= 3",
            wait="0m",
            severity="warning",
            summary=WHERE + " was restarted {{ $value }} times within an hour.",
            description="`hvdkit why` tells the cause: out of memory, preemption, a node that fails.",
        ),
    ]


def rule_file() -> dict[str, Any]:
    """For Prometheus' rule_files."""
    return {"groups": [{"name": GROUP, "rules": rules()}]}


def prometheus_rule() -> dict[str, Any]:
    """The same for the Prometheus operator."""
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "hvdkit", "labels": {"app.kubernetes.io/managed-by": "hvdkit"}},
        "spec": rule_file(),
    }


def _alert(name: str, expression: str, *, wait: str, severity: str, summary: str, description: str) -> dict[str, Any]:
    return {
        "alert": name,
        "expr": expression,
        "for": wait,
        "labels": {"severity": severity},
        "annotations": {"summary": summary, "description": description},
    }
