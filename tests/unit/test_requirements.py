"""setup.cfg and constraints.txt: what is required is what is tested."""

import configparser
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def pinned() -> dict[str, Version]:
    lines = (REPOSITORY / "constraints.txt").read_text().splitlines()
    return {name: Version(number) for name, _, number in (line.partition("==") for line in lines if "==" in line)}


def required(extra: str) -> dict[str, Requirement]:
    setup = configparser.ConfigParser()
    setup.read(REPOSITORY / "setup.cfg")
    lines = [line for line in setup["options.extras_require"][extra].splitlines() if line]
    return {made.name: made for made in map(Requirement, lines)}


@pytest.mark.parametrize("package", ["kubernetes", "urllib3"])
def test_the_client_of_kubernetes_is_of_the_line_that_is_tested(package: str, pinned: dict[str, Version]) -> None:
    """What hvdkit uses of both is younger than what most of their versions have."""
    ours, tests = required("cluster")[package], required("dev")[package]
    assert str(ours) == str(tests)
    (floor,) = (Version(one.version) for one in ours.specifier if one.operator == ">=")
    assert floor <= pinned[package] and floor.major == pinned[package].major


@pytest.mark.parametrize("extra", ["train", "cluster", "bench", "monarch", "dev"])
def test_what_is_tested_is_allowed(extra: str, pinned: dict[str, Version]) -> None:
    for name, requirement in required(extra).items():
        assert pinned[name] in requirement.specifier, str(requirement)
