"""Whatever comes in, `validate` answers with findings and never with a traceback."""

import json

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_validate import CORRECT, UPSTREAM

from hvdkit.checks.validate import ERROR, Finding, validate_objects, validate_sources
from hvdkit.checks.validate_input import Source

EVERYTHING_ONCE = [
    document
    for file in [*CORRECT, *UPSTREAM]
    for document in yaml.safe_load_all(file.read_text())
    for document in (document["items"] if document["kind"] == "List" else [document])
]
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["mpirun -np 4 'x", "4Gi", "0.5", "1e999", "-1", "a" * 70, "Worker", "None", "/", "Indexed"]),
)


def keys_of(value: object) -> set[str]:
    if isinstance(value, dict):
        return set(value).union(*map(keys_of, value.values()), {"nfs", "hostPath", "env", "subdomain", "generateName"})
    return set().union(*map(keys_of, value)) if isinstance(value, list) else set()


KEYS = st.one_of(st.sampled_from(sorted(set().union(*map(keys_of, EVERYTHING_ONCE)))), st.text(max_size=4))
SOUP = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=4)),
    max_leaves=12,
)


@st.composite
def disturbed(draw: st.DrawFn) -> tuple[dict, dict]:
    """A correct object, and the same with something, somewhere, replaced by soup."""
    original = draw(st.sampled_from(EVERYTHING_ONCE))
    thing = json.loads(json.dumps(original))
    for _ in range(draw(st.integers(1, 3))):
        place = thing
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            if isinstance(place[key], dict | list) and place[key] and draw(st.integers(0, 9)):
                place = place[key]
                continue
            if isinstance(place, dict) and draw(st.booleans()):
                key = draw(KEYS)
            place[key] = draw(SOUP)
            break
    return original, thing


def is_sound(findings: list[Finding]) -> bool:
    texts = [text for each in findings for text in (each.object, str(each), each.way_out)]
    return all(text.isprintable() for text in texts) and all(each.sentence for each in findings)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(disturbed(), disturbed(), st.sampled_from([None, "baseline", "restricted"]))
def test_disturbed_objects(first: tuple, second: tuple, level: str | None) -> None:
    assert is_sound(validate_objects([first[1], second[1]], pod_security=level))


@settings(max_examples=100, deadline=None)
@given(st.lists(SOUP, max_size=3))
def test_any_objects(objects: list) -> None:
    findings = validate_objects(objects)
    assert is_sound(findings)
    # Soup is never silently fine; an empty List is the only thing in it that may be.
    assert findings or all(isinstance(each, dict) and str(each.get("kind")).endswith("List") for each in objects)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(disturbed(), st.booleans(), st.data())
def test_disturbed_texts(pair: tuple, as_json: bool, data: st.DataObject) -> None:
    text = json.dumps(pair[1], indent=2) if as_json else yaml.dump(pair[1], allow_unicode=True)
    place = data.draw(st.integers(0, len(text)))
    text = text[:place] + data.draw(st.text(alphabet="{}[]:,-#&*!|>'\"%@`\t\n\\ a0\0é😀", max_size=5)) + text[place:]
    assert is_sound(validate_sources([Source("a", text.encode())]).findings)


@settings(max_examples=200, deadline=None)
@given(st.one_of(st.binary(max_size=60), st.text(max_size=60).map(lambda text: text.encode("utf-8", "surrogatepass"))))
def test_any_bytes(content: bytes) -> None:
    findings = validate_sources([Source("a", content)]).findings
    assert is_sound(findings) and any(each.severity == ERROR for each in findings)


@pytest.mark.parametrize("text", ['{"a": "\\ud83d\\ude00"}', "{\n\t\"a\":\t1\n}", '{"a": "\\/"}'])
def test_json_that_is_no_yaml_is_read_all_the_same(text: str) -> None:
    (finding, *_) = validate_sources([Source("a", text.encode())]).findings
    assert str(finding) == "apiVersion: is missing"


def test_deep_nesting() -> None:
    deep: dict = {}
    for _ in range(100_000):
        deep = {"a": deep}
    (finding,) = validate_objects([deep])
    assert finding.sentence == "is nested too deep"
    text = '{"a":' * 5000 + "1" + "}" * 5000
    (finding,) = validate_sources([Source("a", text.encode())]).findings
    assert finding.severity == ERROR
