"""A processor that claims AMX: whether it works is tried in another process."""

from pathlib import Path

import pytest

from hvdkit.runtime import amx

DIES = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"


@pytest.fixture
def claims_amx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv(amx.LIMIT, raising=False)
    file = tmp_path / "cpuinfo"
    file.write_text("flags\t: fpu avx512_bf16 amx_bf16 amx_tile amx_int8\n")
    return file


def test_one_that_dies_of_it(claims_amx: Path) -> None:
    assert amx.is_broken(claims_amx, DIES)


@pytest.mark.parametrize("product", ["pass", "raise SystemExit(1)"])
def test_one_that_works_and_a_torch_that_does_not_load(claims_amx: Path, product: str) -> None:
    assert not amx.is_broken(claims_amx, product)


def test_without_the_claim_nothing_is_tried(claims_amx: Path) -> None:
    claims_amx.write_text("flags\t: fpu avx2\n")
    assert not amx.is_broken(claims_amx, DIES)


def test_who_has_set_the_limit_is_left_alone(claims_amx: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(amx.LIMIT, "AVX2")
    assert not amx.is_broken(claims_amx, DIES)

