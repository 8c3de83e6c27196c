"""The JSON Schema of hvdkit.yaml says what the reader does."""

import json
from dataclasses import fields
from pathlib import Path

import jsonschema
import pytest
import yaml
from click.testing import CliRunner
from golden_specs import GOLDEN

from hvdkit.cli.config import command, plain
from hvdkit.config.schema import schema
from hvdkit.jobs.spec import JobSpec

VALIDATOR = jsonschema.Draft202012Validator(schema())
SPECS = sorted((Path(__file__).parents[2] / "manifests" / "specs").iterdir())


def test_it_is_a_schema_and_the_command_prints_it() -> None:
    VALIDATOR.check_schema(VALIDATOR.schema)
    assert json.loads(CliRunner().invoke(command, ["schema"], standalone_mode=False).output) == VALIDATOR.schema


def test_every_field_is_in_it_with_its_explanation() -> None:
    properties = VALIDATOR.schema["properties"]
    assert {field.name for field in fields(JobSpec)} | {"version", "profiles"} == set(properties)
    assert properties["slots"]["description"] == "Ranks in a worker."
    assert properties["nfs_mode"]["enum"] == ["auto", "inline", "pv"]
    parts = [part["properties"] for part in VALIDATOR.schema["$defs"].values()]
    assert all(field["description"] for part in [properties, *parts] for field in part.values())


@pytest.mark.parametrize("name", GOLDEN)
def test_it_accepts_every_spec(name: str) -> None:
    VALIDATOR.validate(json.loads(json.dumps({"version": 1, **plain(GOLDEN[name])})))


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.stem)
def test_it_accepts_the_shipped_specs(spec: Path) -> None:
    VALIDATOR.validate(yaml.safe_load(spec.read_text()))


@pytest.mark.parametrize(
    "wrong",
    [
        {"workers": 2},
        {"version": 1, "worker": 2},
        {"version": 1, "workers": "two"},
        {"version": 1, "backend": "mpi-job"},
        {"version": 1, "resources": {"gpu": 1}},
        {"version": 1, "volumes": [{"pvc": "data"}]},
        {"version": 1, "profiles": {"gpu": {"slot": 8}}},
    ],
)
def test_it_refuses_mistakes(wrong: dict) -> None:
    assert not VALIDATOR.is_valid(wrong)
