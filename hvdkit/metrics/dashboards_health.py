"""The dashboard Job health: all trainings at a glance, and what is wrong with them."""

from typing import Any

from hvdkit.metrics import queries
from hvdkit.metrics.dashboards_panels import BAD, DOUBTFUL, GOOD, Query, lines, page, rows, value

_BY = queries.JOB
_WINDOW = "5m"  # as in the alerts: a shorter one would call every evaluation a stall
_OF_JOB = "{{hvdkit_job}}"


def job_health() -> Any:
    """Which jobs run, which stall, restart, lose ranks or do not save."""
    return page(
        "hvdkit-job-health",
        "hvdkit / Job health",
        "All jobs that Prometheus sees, and the alerts of manifests/monitoring.",
        [],
        [
            value(
                "Jobs",
                "That serve metrics now.",
                Query(expression=f"count(count by ({_BY}) (hvdkit_info))"),
                unit="short",
            ),
            value("Ranks", "Of all jobs.", Query(expression="count(hvdkit_info)"), unit="short"),
            value(
                "Alerts",
                "Of hvdkit that fire now.",
                Query(expression='count(ALERTS{alertname=~"Hvdkit.+", alertstate="firing"}) or vector(0)'),
                unit="short",
                thresholds=((None, GOOD), (1, BAD)),
            ),
            value(
                "Ranks missing",
                "Of jobs that have others: their pods are gone or cannot be reached.",
                Query(expression=f"sum({queries.missing_ranks('')})"),
                unit="short",
                thresholds=((None, GOOD), (1, BAD)),
            ),
            value(
                "Restarts in an hour",
                "Of all jobs.",
                Query(expression=f"sum({queries.restarts_within('', '1h')})"),
                unit="short",
                thresholds=((None, GOOD), (1, DOUBTFUL), (3, BAD)),
            ),
            value(
                "Oldest checkpoint",
                "Of jobs that save any.",
                Query(expression=f"max({queries.checkpoint_age_seconds('')})"),
                unit="s",
                thresholds=((None, GOOD), (1800, DOUBTFUL), (3600, BAD)),
            ),
            rows(
                "Jobs",
                "Steps a second near 0 mean a stall; slowest against median above 120 % a straggler.",
                [
                    ("Ranks", f"count by ({_BY}) (hvdkit_info)", "short"),
                    ("Missing", queries.missing_ranks(""), "short"),
                    (
                        "Steps/s a rank",
                        f"avg by ({_BY}) ({queries.per_second('hvdkit_steps_total', '', _WINDOW)})",
                        "short",
                    ),
                    ("Images/s", f"max by ({_BY}) (hvdkit_images_per_second)", "locale"),
                    ("Loss", f"max by ({_BY}) (hvdkit_loss)", "short"),
                    ("Waits for data", queries.data_wait_ratio_of_job("", _WINDOW), "percentunit"),
                    ("Slowest / median", queries.straggling_ratio("", _WINDOW), "percentunit"),
                    ("Checkpoint age", queries.checkpoint_age_seconds(""), "s"),
                    ("Restarts", f"max by ({_BY}) (hvdkit_restarts_total)", "short"),
                ],
                labels=("namespace", "hvdkit_job"),
                alarms={
                    "Missing": 1,
                    "Waits for data": 0.2,
                    "Slowest / median": 1.2,
                    "Checkpoint age": 3600,
                    "Restarts": 3,
                },
                height=8,
            ),
            lines(
                "Steps a second",
                "Mean over the ranks of each job.",
                Query(
                    expression=f"avg by ({_BY}) ({queries.per_second('hvdkit_steps_total', '', _WINDOW)})",
                    legend=_OF_JOB,
                ),
                unit="short",
                low=0,
            ),
            lines(
                "Ranks reached",
                "A line that falls is a job that loses ranks or ends.",
                Query(expression=f"count by ({_BY}) (hvdkit_info)", legend=_OF_JOB),
                unit="short",
                low=0,
            ),
            lines(
                "Wait for data",
                "Share of the ranks' time.",
                Query(expression=queries.data_wait_ratio_of_job("", _WINDOW), legend=_OF_JOB),
                unit="percentunit",
                low=0,
                soft_high=0.25,
                alarm=0.2,
            ),
            lines(
                "Checkpoint age",
                "A saw tooth is healthy; a line that only rises is not.",
                Query(expression=queries.checkpoint_age_seconds(""), legend=_OF_JOB),
                unit="s",
                low=0,
                alarm=3600,
            ),
        ],
    )
