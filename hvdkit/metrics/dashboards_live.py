"""The dashboard Live job: one training while it runs."""

from typing import Any

from hvdkit.metrics import queries
from hvdkit.metrics.dashboards_panels import BAD, DOUBTFUL, GOOD, RATE, Query, lines, page, rows, value, variable

_JOB = 'hvdkit_job="$job"'


def live_job() -> Any:
    """Loss, speed, and what each rank does with its time."""
    own = queries.own_seconds(_JOB, RATE)
    return page(
        "hvdkit-live-job",
        "hvdkit / Live job",
        "One training while it runs; its ranks serve metrics with --metrics-port.",
        [variable("job", "Job", "label_values(hvdkit_info, hvdkit_job)")],
        [
            value("Loss", "Mean training loss of the last interval.", _world("hvdkit_loss"), unit="short", decimals=4),
            value(
                "Images a second",
                "Of all ranks, in the last interval.",
                _world("hvdkit_images_per_second"),
                unit="short",
            ),
            value(
                "Progress",
                "Steps done of all that are planned, also before a restart.",
                Query(expression=f"max(hvdkit_current_step{{{_JOB}}}) / max(hvdkit_planned_steps{{{_JOB}}})"),
                unit="percentunit",
                decimals=1,
            ),
            value(
                "Ranks",
                "Ranks that Prometheus reaches.",
                Query(expression=f"count(hvdkit_info{{{_JOB}}})"),
                unit="short",
            ),
            value(
                "Restarts",
                "Starts of this training before the present one.",
                _world("hvdkit_restarts_total"),
                unit="short",
                thresholds=((None, GOOD), (1, DOUBTFUL), (3, BAD)),
            ),
            value(
                "Checkpoint age",
                "What a failure now would lose.",
                Query(expression=queries.checkpoint_age_seconds(_JOB), legend="age"),
                unit="s",
                thresholds=((None, GOOD), (1800, DOUBTFUL), (3600, BAD)),
            ),
            lines(
                "Loss",
                "Training loss by interval, and on the test images.",
                _world("hvdkit_loss", "training"),
                _world("hvdkit_test_loss", "test"),
                unit="short",
            ),
            lines(
                "Accuracy",
                "Share of images got right.",
                _world("hvdkit_accuracy_ratio", "training"),
                _world("hvdkit_test_accuracy_ratio", "test"),
                unit="percentunit",
                low=0,
                high=1,
            ),
            lines(
                "Images a second",
                "Of all ranks: as rank 0 reports it, and as the sum over ranks that Prometheus sees.",
                _world("hvdkit_images_per_second", "reported"),
                Query(
                    expression=f"sum({queries.per_second('hvdkit_images_total', _JOB, RATE)})", legend="sum over ranks"
                ),
                unit="short",
                low=0,
            ),
            lines(
                "Step time by rank",
                "Mean step of each rank; ranks wait for each other, so these are nearly the same.",
                Query(expression=queries.step_seconds(_JOB, RATE), legend="rank {{rank}}"),
                unit="s",
                low=0,
            ),
            lines(
                "Own work by rank",
                "A step without the wait for other ranks: the line on top is the rank that all wait for.",
                Query(expression=own, legend="rank {{rank}}"),
                unit="s",
                low=0,
            ),
            lines(
                "Slowest rank against the median",
                "Own work of the slowest rank relative to the median; above 120 % an alert comes.",
                Query(expression=queries.straggling_ratio(_JOB, RATE), legend="slowest / median"),
                unit="percentunit",
                low=1,
                soft_high=1.25,
                alarm=1.2,
            ),
            lines(
                "Wait for data by rank",
                "Share of its time that a rank waits for the data loader.",
                Query(expression=queries.wait_ratio("data", _JOB, RATE), legend="rank {{rank}}"),
                unit="percentunit",
                low=0,
            ),
            lines(
                "Wait for allreduce by rank",
                "Share of its time that a rank waits for gradients; the rank with the least is the slowest. Empty with "
                "DDP, which cannot tell.",
                Query(expression=queries.wait_ratio("allreduce", _JOB, RATE), legend="rank {{rank}}"),
                unit="percentunit",
                low=0,
            ),
            lines(
                "Quantiles of the step time",
                "Half, 90 % and 99 % of the steps of all ranks took no longer; the buckets are coarse.",
                *[_quantile(share) for share in (0.5, 0.9, 0.99)],
                unit="s",
                low=0,
            ),
            lines("Learning rate", "Of the last step.", _world("hvdkit_learning_rate", "learning rate"), unit="short"),
            rows(
                "Slowest ranks",
                "Where to look first: own work a step, and the host.",
                [
                    (
                        "Own work",
                        f"max by (rank, host, library) (topk(5, {own}) "
                        f"* on (hvdkit_job, rank) group_left (host, library) hvdkit_info{{{_JOB}}})",
                        "s",
                    )
                ],
                labels=("rank", "host", "library"),
                height=7,
            ),
        ],
        refresh="10s",
    )


def _world(metric: str, legend: str = "") -> Query:
    return Query(expression=f"max({metric}{{{_JOB}}})", legend=legend)


def _quantile(share: float) -> Query:
    buckets = queries.per_second("hvdkit_step_seconds_bucket", _JOB, RATE)
    return Query(expression=f"histogram_quantile({share}, sum by (le) ({buckets}))", legend=f"{share:.0%}")
