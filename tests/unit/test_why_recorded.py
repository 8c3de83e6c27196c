"""`hvdkit why` over what a real cluster (Kubernetes 1.35) said about jobs that failed: objects, events, last lines."""

import json
from pathlib import Path

import pytest

from hvdkit.cluster.job import read_state
from hvdkit.cluster.why import explain
from hvdkit.cluster.why_facts import Facts
from hvdkit.jobs.live import pods_of

FOLDER = Path(__file__).parent / "recorded_failures"
CAUSES = {
    "container": '"python-that-is-not-there": executable file not found',
    "deadline": "its --deadline passed",
    "image": "the image localhost/nothing:1 cannot be pulled.",
    "mount": "the volume nfs-0 of pod unmounted-",
    "out-of-memory": "used up its memory of 32Mi",
    "program": "ended with exit code 7.",
    "quota": "the quota small of namespace recorded has no room",
    "scheduling": "there is not enough nvidia.com/gpu.",
}


def recorded(trouble: str) -> Facts:
    known = json.loads((FOLDER / f"{trouble}.json").read_text())
    return Facts(**{**known, "state": read_state(known["backend"], known["objects"])})


def test_every_record_is_read() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(CAUSES)


@pytest.mark.parametrize("trouble", CAUSES)
def test_the_cause_is_found(trouble: str) -> None:
    answer = explain(recorded(trouble))
    assert answer.trouble == trouble and CAUSES[trouble] in answer.cause
    assert answer.evidence and answer.what_to_do


@pytest.mark.parametrize("trouble", ["deadline", "mount", "quota", "scheduling"])
def test_what_the_api_still_knows_is_enough_after_the_pods_are_gone(trouble: str) -> None:
    facts = recorded(trouble)
    without = [one for one in facts.objects if one not in pods_of(facts.objects)]
    left = Facts(
        name=facts.name,
        backend=facts.backend,
        namespace=facts.namespace,
        state=read_state(facts.backend, without),
        objects=without,
        events=facts.events,
    )
    assert explain(left).trouble == trouble
