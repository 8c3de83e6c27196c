"""Any spec renders to valid objects or is refused by our own error; what goes in comes out exactly.

HVDKIT_SPEC_CASES is the number of specs that are tried (`make soak`: 10,000).
"""

import json
import os
from typing import Any

import pytest
import yaml
from golden_specs import GOLDEN, spec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from spec_strategies import NASTY, fields, words
from test_jobs_golden import kept_level

from hvdkit.checks.validate import validate_objects
from hvdkit.checks.validate_finding import ERROR
from hvdkit.errors import InputError
from hvdkit.jobs import CLUSTER_BACKENDS, render
from hvdkit.jobs.metadata import BACKEND_LABEL, JOB_LABEL
from hvdkit.jobs.pods import escape
from hvdkit.jobs.spec import JobSpec
from hvdkit.jobs.tuning import TUNED
from hvdkit.jobs.yaml_text import to_json, to_yaml

CASES = int(os.environ.get("HVDKIT_SPEC_CASES", "100"))
SHARED_KINDS = ("PersistentVolume", "PersistentVolumeClaim")  # of all jobs that mount the same NFS folder


def expand(text: str, variables: dict[str, str]) -> str:
    """What Kubernetes makes of a word of a command or a value in env: $(NAME) is a variable, $$ a dollar."""
    found, place = "", 0
    while place < len(text):
        following = text[place + 1 : place + 2]
        if text[place] != "$" or following not in ("$", "("):
            found += text[place]
            place += 1
        elif following == "$":
            found += "$"
            place += 2
        else:
            end = text.find(")", place)
            if end < 0:
                found += "$("
                place += 2
            else:
                name = text[place + 2 : end]
                found += variables.get(name, f"$({name})")
                place = end + 1
    return found


def containers(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every container in the objects, wherever its pod template is."""
    found: list[dict[str, Any]] = []

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            found.extend(value.get("containers", []))
            value = list(value.values())
        if isinstance(value, list):
            for member in value:
                walk(member)

    walk(objects)
    return found


@settings(max_examples=CASES, deadline=None, suppress_health_check=list(HealthCheck))
@given(fields())
def test_any_spec_renders_to_valid_objects_or_is_refused_by_our_error(given_fields: dict[str, Any]) -> None:
    try:
        made = JobSpec(**given_fields)
        objects = render(made)
    except InputError as error:
        assert ": " in str(error) and "\n" not in str(error).partition(": ")[0]
        return
    text = to_yaml(objects)
    assert list(yaml.safe_load_all(text)) == objects
    assert json.loads(to_json(objects))["items"] == objects
    assert to_yaml(render(JobSpec(**given_fields))) == text
    errors = [one for one in validate_objects(objects, pod_security=kept_level(made)) if one.severity == ERROR]
    assert errors == []
    check_words_and_variables(made, objects)
    for one in objects:
        if one["kind"] not in SHARED_KINDS:
            labels = one["metadata"]["labels"]
            assert (labels[JOB_LABEL], labels[BACKEND_LABEL]) == (made.name, made.backend)


def check_words_and_variables(made: JobSpec, objects: list[dict[str, Any]]) -> None:
    found = containers(objects)
    ends = [tuple(one["command"][-len(made.command) :]) for one in found]
    world = dict.fromkeys(["HOME", "WHO", "A"], "wrong")
    assert made.command in [tuple(expand(word, world) for word in end) for end in ends]
    for container in found:
        values = {one["name"]: one.get("value") for one in container["env"]}
        assert len(values) == len(container["env"]), "a variable is given twice"
        for name, value in made.env.items():
            assert expand(values[name], world) == value
        assert {name for name in made.env_from if values[name] is not None} == set()


@pytest.mark.parametrize("backend", ["mpijob", "indexed-job"])
def test_pods_leave_out_what_horovod_shall_tune(backend: str) -> None:
    """On CPUs; with GPUs hvdkit sets neither anyway."""

    def variables(**fields: Any) -> list[set[str]]:
        made = containers(render(spec(backend, **fields)))
        return [{variable["name"] for variable in container["env"]} for container in made]

    assert all("HOROVOD_CYCLE_TIME" in names for names in variables())
    for asked in ({"autotune": True}, {"env": {"HOROVOD_AUTOTUNE": "1"}}):
        assert all("HOROVOD_AUTOTUNE" in names and not names & set(TUNED) for names in variables(**asked))


@pytest.mark.parametrize("backend", CLUSTER_BACKENDS)
def test_nasty_words_and_values_arrive_exactly(backend: str) -> None:
    variables = {f"V{number}": value for number, value in enumerate(NASTY)}
    made = spec(backend, command=("echo", *NASTY), env=variables, annotations={"example.com/x": "yes"})
    read_back = list(yaml.safe_load_all(to_yaml(render(made))))
    check_words_and_variables(made, read_back)


@given(st.text("$()A", max_size=12) | words)
def test_escaping_undoes_what_kubernetes_does(text: str) -> None:
    assert expand(escape(text), {"": "wrong", "A": "wrong", "AA": "wrong", "HOME": "wrong"}) == text


@given(st.text(max_size=30) | st.sampled_from(NASTY))
def test_any_text_survives_yaml(text: str) -> None:
    objects = [{"key": text, "list": [text, {"deep": text}]}]
    assert list(yaml.safe_load_all(to_yaml(objects))) == objects
    assert "- *" not in to_yaml(objects)


@pytest.mark.parametrize(
    "text",
    ["1e3", "0o17", "y", "N", "yes", "off", "0x1f", "1_000", "12:30", "~", "null", ".inf", "2001-01-01", "<<", "="],
)
def test_what_some_reader_takes_for_more_than_text_is_quoted(text: str) -> None:
    assert to_yaml([{"key": text}]) in (f"key: '{text}'\n", f'key: "{text}"\n')


def test_unicode_stays_readable() -> None:
    assert to_yaml([{"key": "grüße 日本 😀"}]) == "key: 'grüße 日本 😀'\n"


@pytest.mark.parametrize("name", GOLDEN)
def test_rendering_twice_gives_the_same_bytes(name: str) -> None:
    assert to_yaml(render(GOLDEN[name])) == to_yaml(render(GOLDEN[name]))


@pytest.mark.parametrize(("workers", "fusion"), [(1, "0"), (2, str(1 << 20))])
def test_ranks_that_are_all_in_one_pod_reduce_through_its_memory(workers: int, fusion: str) -> None:
    made = render(spec("mpijob", workers=workers, slots=2))
    job = next(one for one in made if one["kind"] == "MPIJob")
    (container,) = job["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    assert {"name": "HOROVOD_FUSION_THRESHOLD", "value": fusion} in container["env"]
