"""The schema walk against a second opinion: jsonschema on the same schemas, translated."""

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from test_validate_soup import EVERYTHING_ONCE, disturbed

from hvdkit.checks.validate_catalog import CUSTOM_KINDS, custom_versions, kubernetes, schema_of
from hvdkit.checks.validate_finding import ERROR
from hvdkit.checks.validate_schema import INTEGER_BITS, QUANTITY, QUANTITY_DEFINITION, Schema, compiled

CHECKED = {
    *("type", "properties", "required", "items", "additionalProperties", "enum", "pattern", "format", "default"),
    *("$ref", "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "maxProperties"),
    *("x-kubernetes-int-or-string", "x-kubernetes-list-type", "x-kubernetes-list-map-keys"),
}
# anyOf stands only beside int-or-string and says the same; the rest says how objects are merged or explained.
OTHERWISE = {
    *("description", "anyOf", "x-kubernetes-validations", "x-kubernetes-map-type", "x-kubernetes-group-version-kind"),
    *("x-kubernetes-patch-strategy", "x-kubernetes-patch-merge-key", "x-kubernetes-unions"),
}

# What both dialects say in the same words.
SAME = (
    *("type", "enum", "pattern", "minimum", "maximum", "minLength", "maxLength"),
    *("minItems", "maxItems", "maxProperties"),
)


def parts(schema: dict):
    """A schema and everything inside it."""
    yield schema
    inner = [*schema.get("properties", {}).values(), schema.get("items"), schema.get("additionalProperties")]
    for each in inner:
        if isinstance(each, dict):
            yield from parts(each)


def all_schemas() -> list[dict]:
    custom = [schema for file in CUSTOM_KINDS.values() for schema in custom_versions(file).values()]
    return [*kubernetes()[0].values(), *custom]


def test_no_schema_uses_a_word_that_the_walk_does_not_know() -> None:
    used = {word for schema in all_schemas() for part in parts(schema) for word in part}
    assert used <= CHECKED | OTHERWISE
    assert {"$ref", "enum", "x-kubernetes-int-or-string", "maxProperties"} <= used


def test_any_of_stands_beside_int_or_string_only() -> None:
    either = [part for schema in all_schemas() for part in parts(schema) if "anyOf" in part]
    assert either and all(part.get("x-kubernetes-int-or-string") for part in either)


def test_every_pattern_is_one_for_python_too() -> None:
    patterns = {part["pattern"] for schema in all_schemas() for part in parts(schema) if "pattern" in part}
    assert QUANTITY in patterns and all(compiled(pattern) for pattern in patterns)


def test_a_pattern_ends_where_the_text_ends() -> None:
    assert compiled("^a$").search("a") and not compiled("^a$").search("a\n")


def translated(schema: dict) -> dict:
    """A structural schema in the words of JSON Schema, for the strict check."""
    if "$ref" in schema:
        return {"$ref": schema["$ref"]}
    if schema.get("x-kubernetes-int-or-string") or schema.get("format") == "int-or-string":
        return {"type": ["integer", "string"], "pattern": schema.get("pattern", "")}
    result = {key: schema[key] for key in SAME if key in schema}
    if schema.get("format") in INTEGER_BITS:
        bits = INTEGER_BITS[schema["format"]]
        result["allOf"] = [{"minimum": -(2**bits), "maximum": 2**bits - 1}]
    properties = schema.get("properties")
    if properties:
        result["properties"] = {key: or_null(translated(each)) for key, each in properties.items()}
        result["additionalProperties"] = False
        needed = [key for key in schema.get("required", ()) if "default" not in properties.get(key, {})]
        result["allOf"] = [{"required": needed, "properties": {key: {"not": {"type": "null"}} for key in needed}}]
    if isinstance(schema.get("additionalProperties"), dict):
        result["additionalProperties"] = or_null(translated(schema["additionalProperties"]))
    if "items" in schema:
        result["items"] = translated(schema["items"])
    return result


def or_null(schema: dict) -> dict:
    return {"anyOf": [{"type": "null"}, schema]}


@pytest.fixture(scope="module")
def second_opinion():
    """A function: is this object valid, by jsonschema."""
    definitions = {name: translated(schema) for name, schema in kubernetes()[0].items()}
    definitions[QUANTITY_DEFINITION] = {"type": ["number", "string"], "pattern": QUANTITY}
    whole = jsonschema.Draft7Validator.TYPE_CHECKER.redefine(
        "integer", lambda _, value: isinstance(value, int) and not isinstance(value, bool)
    )
    strict = jsonschema.validators.extend(jsonschema.Draft7Validator, type_checker=whole)
    validators = {}

    def is_valid(thing: dict, schema: Schema) -> bool:
        key = id(schema)
        if key not in validators:
            validators[key] = strict(translated(schema.top) | {"definitions": definitions})
        return validators[key].is_valid(thing)

    return is_valid


def by_the_walk(thing: dict, schema: Schema) -> bool:
    problems = schema.problems(thing)
    # jsonschema knows neither lists that are keyed nor base64.
    beyond = ("stands here a second time", "is not base64")
    return not any(each.severity == ERROR and not any(words in each.sentence for words in beyond) for each in problems)


@pytest.mark.parametrize("number", range(len(EVERYTHING_ONCE)))
def test_both_find_correct_objects_valid(number: int, second_opinion) -> None:
    thing = EVERYTHING_ONCE[number]
    schema = schema_of(thing["apiVersion"], thing["kind"])
    assert schema and by_the_walk(thing, schema) and second_opinion(thing, schema)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(pair=disturbed())
def test_both_agree_on_disturbed_objects(pair: tuple, second_opinion) -> None:
    original, thing = pair
    schema = schema_of(original["apiVersion"], original["kind"])
    assert by_the_walk(thing, schema) == second_opinion(thing, schema)
