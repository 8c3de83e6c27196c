"""`hvdkit metrics`: which groups are old, and what the commands print. A real Pushgateway is in tests/e2e."""

import json
from typing import Any

import pytest
from click.testing import CliRunner

from hvdkit.cli.metrics import command, seconds_of
from hvdkit.errors import EnvironmentProblem, InputError
from hvdkit.metrics.pushgateway_admin import Group, list_groups, old_groups, read_group


def entry(pushed_at: float, *metrics: str, **labels: str) -> dict[str, Any]:
    """As a Pushgateway 1.5 lists it."""
    time = {"type": "GAUGE", "metrics": [{"labels": labels, "value": str(pushed_at)}]}
    return {
        "labels": labels,
        "last_push_successful": True,
        "push_time_seconds": time,
        "push_failure_time_seconds": {"type": "GAUGE", "metrics": [{"labels": labels, "value": "0"}]},
        **{name: {"type": "GAUGE", "metrics": []} for name in metrics},
    }


def group(age: float, ours: bool = True, **labels: str) -> Group:
    return Group(labels={"job": "train", **labels}, pushed_at=1000.0 - age, ours=ours)


def test_a_group_is_ours_when_all_its_metrics_are() -> None:
    ours = read_group(entry(1.7e9, "hvdkit_result_seconds", "hvdkit_result_info", job="train", workers="2"))
    assert ours == Group(labels={"job": "train", "workers": "2"}, pushed_at=1.7e9, ours=True)
    assert not read_group(entry(1, "hvdkit_result_seconds", "backup_seconds", job="train")).ours
    assert not read_group(entry(1, job="empty")).ours


def test_only_old_groups_of_ours_go() -> None:
    groups = [group(10), group(50), group(70, job="other"), group(80, ours=False)]
    assert old_groups(groups, now=1000.0, older_than=30) == [groups[1], groups[2]]
    assert old_groups(groups, now=1000.0, older_than=30, job="other") == [groups[2]]
    assert old_groups(groups, now=1000.0, older_than=100) == []


def test_a_group_is_printed_with_its_job_first() -> None:
    assert str(Group(labels={"a": "1", "job": "train"}, pushed_at=0, ours=True)) == "job=train, a=1"


@pytest.mark.parametrize(
    ("text", "seconds"), [("45m", 2700), ("0s", 0), ("1.5h", 5400), ("7d", 604800), ("2w", 1209600)]
)
def test_ages(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "7", "d", "-1d", "7 days", "1y"])
def test_what_is_no_age_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="--older-than"):
        seconds_of(text)


def test_a_gateway_that_does_not_answer_is_an_environment_problem() -> None:
    with pytest.raises(EnvironmentProblem, match=r"127\.0\.0\.1:9/api/v1/metrics does not answer"):
        list_groups("http://127.0.0.1:9")


def test_targets_of_a_local_run() -> None:
    result = CliRunner().invoke(command, ["targets", "--port", "9400", "--ranks", "2"], catch_exceptions=False)
    assert json.loads(result.output) == [
        {"targets": ["127.0.0.1:9400", "127.0.0.1:9401"], "labels": {"namespace": "local"}}
    ]
    with pytest.raises(InputError, match="--port 65535 and 2 ranks"):
        CliRunner().invoke(command, ["targets", "--port", "65535", "--ranks", "2"], catch_exceptions=False)
