"""The termination message: JSON that fits into what Kubernetes keeps, and errors as sentences."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdkit.errors import EnvironmentProblem
from hvdkit.local.supervisor import Outcome
from hvdkit.runtime import pod_termination


@given(
    code=st.integers(0, 255),
    reason=st.text(max_size=2000),
    host=st.none() | st.text(max_size=63),
    tail=st.lists(st.text(max_size=3000), max_size=20),
)
def test_it_always_fits_and_reads_back(code: int, reason: str, host: str | None, tail: list[str]) -> None:
    text = pod_termination.message(Outcome(exit_code=code, reason=reason, rank=3, tail=tail), host=host)
    assert len(text) <= 4096
    found = json.loads(text)
    assert (found["exit_code"], found["rank"], found["out_of_memory"]) == (code, 3, False)
    assert len(found["tail"]) <= len(tail)


def test_the_last_lines_are_the_ones_that_stay() -> None:
    tail = [f"line {number} " + "x" * 390 for number in range(20)]
    found = json.loads(pod_termination.message(Outcome(exit_code=1, reason="it failed", tail=tail)))
    assert found["reason"] == "it failed"
    assert 5 < len(found["tail"]) < 20
    assert found["tail"][-1].startswith("line 19 ")


def test_an_error_is_a_sentence_and_a_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> int:
        raise EnvironmentProblem("there is no sshd in this image.")

    monkeypatch.setenv("HVDKIT_TERMINATION_LOG", str(tmp_path / "message"))
    assert pod_termination.explained(fail) == 3
    assert capsys.readouterr().err == "hvdkit: there is no sshd in this image.\n"
    found = json.loads((tmp_path / "message").read_text())
    assert (found["exit_code"], found["reason"]) == (3, "there is no sshd in this image.")


def test_outside_a_pod_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HVDKIT_TERMINATION_LOG", raising=False)
    there = Path("/dev/termination-log").exists()
    pod_termination.write(Outcome(exit_code=1, reason="it failed"))
    assert Path("/dev/termination-log").exists() == there
