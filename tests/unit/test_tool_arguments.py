"""Checks of arguments: each mismatch is named, and no schema makes a check take long."""

import asyncio
from typing import Any

import pytest

from khala.domain.tools import ToolSpec
from khala.tools.port import ToolError
from khala.tools.validation import process_pool
from khala.tools.validation.arguments import MAX_ARGS_BYTES, MAX_ARGS_DEPTH, check, schema_problem
from khala.tools.validation.validator import MAX_PROBLEM_LENGTH, MAX_PROBLEMS

TOO_LONG = "bad_arguments: The arguments take too long to check."
FILE = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "maxLength": 10},
        "lines": {"type": "integer", "minimum": 1, "default": 10},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["path"],
    "additionalProperties": False,
}


def problem(parameters: dict[str, Any], args: dict[str, Any]) -> str | None:
    try:
        asyncio.run(check(ToolSpec(name="tool", description="", parameters=parameters), args))
    except ToolError as error:
        return f"{error.code}: {error.message}"
    return None


def test_a_missing_argument_is_an_error_and_never_filled_in() -> None:
    args: dict[str, Any] = {"lines": 1}
    assert problem(FILE, args) == "bad_arguments: The arguments don't match the schema: path: required."
    assert args == {"lines": 1}
    args = {"path": "a"}
    assert problem(FILE, args) is None
    assert args == {"path": "a"}


@pytest.mark.parametrize(
    ("args", "named"),
    [
        ({"path": 1}, 'path: 1 is not of type "string"'),
        ({"path": "a", "lines": "1"}, 'lines: "1" is not of type "integer"'),
        ({"path": "a", "lines": True}, 'lines: true is not of type "integer"'),
        ({"path": "a", "lines": 0}, "lines: 0 is less than the minimum of 1"),
        ({"path": "a", "tags": ["x", 2]}, 'tags.1: 2 is not of type "string"'),
        ({"path": "a", "paht": "b"}, "paht: unknown argument"),
        ({"path": None}, 'path: null is not of type "string"'),
    ],
)
def test_a_mismatch_is_named_with_its_place(args: dict[str, Any], named: str) -> None:
    assert problem(FILE, args) == f"bad_arguments: The arguments don't match the schema: {named}."


def test_the_message_for_many_or_large_mistakes_is_bounded() -> None:
    many = problem(FILE, {"path": "a", "tags": [1] * 1000}) or ""
    assert many.count("not of type") == MAX_PROBLEMS
    assert "and more" in many
    assert len(problem(FILE, {"path": "a" * 100_000, "b" * 10_000: 1}) or "") < 1000


def test_references_outside_of_the_schema_are_refused() -> None:
    within = {"type": "object", "properties": {"a": {"$ref": "#/$defs/n"}}, "$defs": {"n": {"type": "integer"}}}
    assert schema_problem(within) is None
    assert problem(within, {"a": 1}) is None
    assert 'a: "x" is not of type "integer"' in (problem(within, {"a": "x"}) or "")
    for target in ("http://127.0.0.1:1/schema", "file:///etc/passwd", "other.json", "https://json-schema.org/schema"):
        remote = {"type": "object", "properties": {"a": {"$ref": target}}}
        assert "refer only to itself" in (schema_problem(remote) or "")
        assert "refer only to itself" in (problem(remote, {"a": 1}) or "")
    named_so = {"type": "object", "properties": {"$ref": {"type": "string"}}, "additionalProperties": False}
    assert schema_problem(named_so) is None
    assert problem(named_so, {"$ref": "http://example.com"}) is None


def doubling(depth: int) -> dict[str, Any]:
    inner = {f"d{at}": {"allOf": [{"$ref": f"#/$defs/d{at + 1}"}] * 2} for at in range(depth)}
    return {"type": "object", "$defs": {**inner, f"d{depth}": {}}, "$ref": "#/$defs/d0"}


@pytest.mark.parametrize("depth", [25, 30, 60])
def test_references_that_double_are_refused(depth: int) -> None:
    assert "expand to more than 1,000 references" in (schema_problem(doubling(depth)) or "")
    assert "bad_arguments" in (problem(doubling(depth), {}) or "")
    assert schema_problem(doubling(5)) is None


@pytest.mark.parametrize(
    "parameters",
    [
        {"type": "object", "$ref": "#"},
        {"type": "object", "anyOf": [{"type": "null"}, {"$ref": "#"}]},
        {"type": "object", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"not": {"$ref": "#/$defs/a"}}}},
        {"type": "object", "$dynamicAnchor": "me", "dependentSchemas": {"a": {"$dynamicRef": "#me"}}},
    ],
)
def test_a_schema_that_applies_itself_to_the_same_value_is_refused(parameters: dict[str, Any]) -> None:
    assert schema_problem(parameters) == "The schema has a circular reference."
    assert "has a circular reference" in (problem(parameters, {"a": 1}) or "")


def test_patterns_take_linear_time() -> None:
    slow: dict[str, Any] = {
        "type": "object",
        "properties": {"a": {"pattern": "^(a+)+$"}},
        "patternProperties": {"^(b+)+$": {}},
    }
    slow["additionalProperties"] = False
    assert "does not match" in (problem(slow, {"a": "a" * 5000 + "!"}) or "")
    assert "unknown argument" in (problem(slow, {"b" * 5000 + "!": 1}) or "")


def test_formats_are_not_asserted_and_equal_numbers_are_the_same() -> None:
    assert problem({"type": "object", "properties": {"a": {"format": "email"}}}, {"a": "nobody"}) is None
    unique = {"type": "object", "properties": {"a": {"uniqueItems": True}}}
    assert problem(unique, {"a": [1, True, "1", {"b": 1}, {"b": 2}]}) is None
    assert "unique" in (problem(unique, {"a": [{"b": 1, "c": 2}, {"c": 2.0, "b": 1}]}) or "")


DRAFT_7 = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "$id": "https://example.com/tool.json",
    "type": "object",
    "properties": {
        "$schema": {"$ref": "#/definitions/List<int> or so"},
        "mail": {"pattern": "^(?!x)", "format": "email"},
    },
    "definitions": {"List<int> or so": {"type": "integer", "default": {"$schema": "none", "$ref": "none"}}},
}
PYDANTIC = {
    "$defs": {
        "Node": {
            "properties": {
                "value": {"title": "Value", "type": "integer"},
                "children": {"default": [], "items": {"$ref": "#/$defs/Node"}, "type": "array"},
                "parent": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}], "default": None},
            },
            "required": ["value"],
            "title": "Node",
            "type": "object",
        }
    },
    "properties": {"root": {"$ref": "#/$defs/Node"}},
    "required": ["root"],
    "type": "object",
}
OPENAPI = {
    "type": "object",
    "properties": {"pet": {"$ref": "#/components/schemas/Pet"}},
    "components": {"schemas": {"Pet": {"properties": {"name": {"$ref": "#/components/schemas/Name"}}},
                               "Name": {"type": "string"}}},
}  # fmt: skip
UNION = {
    "type": "object",
    "oneOf": [{"$ref": "#/$defs/Add"}, {"$ref": "#/$defs/Neg"}, {"$ref": "#/$defs/Lit"}],
    "$defs": {
        "Add": {"properties": {"op": {"const": "add"}, "left": {"$ref": "#"}, "right": {"$ref": "#"}}},
        "Neg": {"properties": {"op": {"const": "neg"}, "of": {"$ref": "#"}}},
        "Lit": {"properties": {"op": {"const": "lit"}}},
    },
}


def object_schema(schema: object, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"x": schema}, **more}


LONG = "y" * 200_000
LIST = list(range(20_000))
NAMES = {f"k{number}": 1 for number in range(10_000)}
SLOW = "(((x|y| ){1,5}){1,5}){1,5}z"


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"items": {"enum": LIST[:12_000]}}, LIST),
        ({"allOf": [{"items": {"type": "string"}}] * 450}, LIST),
        ({"items": {"required": [f"p{number}" for number in range(5000)]}}, [{}] * 80_000),
        ({"propertyNames": {"allOf": [{"pattern": f"[ab]*a[ab]{{{count}}}c"} for count in range(99)]}}, NAMES),
    ],
    ids=["an enum", "many errors", "many names", "many patterns"],
)
def test_a_check_that_takes_too_long_is_killed(
    schema: dict[str, Any], value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_pool, "CHECK_TIMEOUT_SECONDS", 1.0)
    assert schema_problem(object_schema(schema)) is None
    assert problem(object_schema(schema), {"x": value}) == TOO_LONG


TREE = {
    "type": "object",
    "$ref": "#/$defs/n",
    "$defs": {"n": {"oneOf": [{"properties": {"a": {"$ref": "#/$defs/n"}}}] * 9}},
}


def test_a_schema_that_applies_itself_more_and_more_often_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_pool, "CHECK_TIMEOUT_SECONDS", 1.0)
    assert schema_problem(TREE) is None
    args: dict[str, Any] = {}
    for _ in range(100):
        args = {"a": args}
    assert problem(TREE, args) == TOO_LONG


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"uniqueItems": True}, [{"a": number} for number in range(3000)]),
        ({"uniqueItems": True}, [2**62 + number for number in range(3000)]),
        ({"allOf": [{"items": {}}] * 450}, LIST),
        ({"multipleOf": 0.1}, 10**400),
        ({"items": {"multipleOf": 0.5}}, [1e308] * 1000),
        ({"pattern": SLOW}, "xy " * 5000 + "z"),
        ({"pattern": "^[ab]*a[ab]{301}$"}, "ab" * 20_000),
        ({"patternProperties": {f"^q{number}": {} for number in range(90)}, "additionalProperties": True}, NAMES),
        ({"not": {"items": {"required": [f"p{number}" for number in range(5000)]}}}, [{"a": 1}] * 10_000),
        ({"allOf": [{"maxLength": 300_000}] * 450}, LONG),
    ],
)  # fmt: skip
def test_a_slow_check_within_the_limit_is_completed(schema: dict[str, Any], value: object) -> None:
    assert problem(object_schema(schema), {"x": value}) is None


@pytest.mark.parametrize(
    ("schema", "fits", "fails"),
    [
        (DRAFT_7, {"$schema": 1}, {"$schema": "no integer"}),
        (PYDANTIC, {"root": {"value": 1, "children": [{"value": 2}]}}, {"root": {"value": 1, "children": [{}]}}),
        (OPENAPI, {"pet": {"name": "a"}}, {"pet": {"name": 1}}),
        (UNION, {"op": "add", "left": {"op": "lit"}}, {"op": "add", "left": {"op": "none"}}),
    ],
    ids=["draft 7", "pydantic", "OpenAPI", "union"],
)
def test_common_schemas_of_other_tools_are_accepted(
    schema: dict[str, Any], fits: dict[str, Any], fails: dict[str, Any]
) -> None:
    assert schema_problem(schema) is None
    assert problem(schema, fits) is None
    assert "don't match" in (problem(schema, fails) or "")


def test_large_ordinary_arguments_are_checked() -> None:
    row = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string", "pattern": "^[a-z]+$"}},
           "required": ["a"], "additionalProperties": False}  # fmt: skip
    rows = [{"a": number, "b": "word"} for number in range(1000)]
    assert problem(object_schema({"type": "array", "items": row, "uniqueItems": True}), {"x": rows}) is None
    assert problem(object_schema({"type": "string", "pattern": r"^[\w\s]+$"}), {"x": "a word " * 30_000}) is None
    assert problem(object_schema({"enum": [f"choice {number}" for number in range(1000)]}), {"x": "choice 999"}) is None
    assert problem(object_schema({"type": "array", "items": {"type": "integer"}}), {"x": LIST[:5000]}) is None


@pytest.mark.parametrize("branch", [{"type": "integer"}, {"enum": [1]}, {"maxLength": 1}, {"not": {}}, False])
def test_no_message_holds_all_of_a_large_argument(branch: object) -> None:
    message = problem(object_schema({"anyOf": [branch] * 20}), {"x": LONG}) or ""
    assert "not valid under any" in message
    assert len(message) < 2 * MAX_PROBLEM_LENGTH


def test_the_size_of_arguments_is_limited_whatever_the_schema() -> None:
    fits = MAX_ARGS_BYTES - len('{"x":""}')
    assert problem({"type": "object"}, {"x": "y" * fits}) is None
    assert problem({"type": "object"}, {"x": "y" * (fits + 1)}) == (
        "too_large: The arguments of a call have at most 262,144 bytes."
    )
    assert "can't be encoded as JSON" in (problem({"type": "object"}, {"x": "\ud800"}) or "")


def test_a_value_that_is_never_allowed_is_reported_with_its_place() -> None:
    assert (
        problem(object_schema(False), {"x": 1})
        == "bad_arguments: The arguments don't match the schema: x: nothing is allowed here."
    )
    assert problem(object_schema({"items": {"not": False}}), {"x": [1, 2]}) is None
    assert problem(object_schema({"$ref": "#/$defs/no"}, **{"$defs": {"no": False}}), {"x": 1}) is not None


@pytest.mark.parametrize(
    "parameters",
    [
        object_schema({"patternProperties": {f"^q{number}": {} for number in range(201)}}),
        object_schema({"allOf": [{"pattern": rf"\pL{{2}}{count}"} for count in range(20)]}),
        object_schema({"type": ["a", *range(6000)]}),
        object_schema({"type": ["string"] * 6000}),
        object_schema({"allOf": [{}] * 1001}),
        object_schema({"allOf": [True] * 1001}),
        object_schema({"patternProperties": {r"\pL{9}": {}}}),
    ],
)
def test_a_schema_that_is_too_expensive_is_reported(parameters: dict[str, Any]) -> None:
    assert schema_problem(parameters)


def test_a_schema_with_many_anchors_is_traversed_once() -> None:
    many = {f"a{number}": {"$anchor": f"q{number}"} for number in range(300)}
    assert (
        schema_problem(object_schema({"allOf": [{"$ref": f"#q{number}"} for number in range(300)]}, **{"$defs": many}))
        is None
    )
    assert "does not exist" in (schema_problem(object_schema({"$ref": "#q300"}, **{"$defs": many})) or "")


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"$schema": "http://json-schema.org/draft-07/schema#", "pattern": "^(a+)+$"}, "may have a $schema"),
        ({"$schema": "https://json-schema.org/draft/2020-12/schema"}, "may have a $schema"),
        ({"$ref": "#/title"}, "which is not a schema"),
        ({"$ref": "#/$defs"}, "which is not a schema"),
        ({"$ref": "#/$defs/a/enum/0"}, "which is not a schema"),
        ({"$ref": "#/$defs/b"}, "which does not exist"),
        ({"$ref": "#nowhere"}, "which does not exist"),
        ({"$dynamicRef": "other"}, "refer only to itself"),
        ({"$id": "http://example.com/", "$ref": "#/$defs/a"}, "may not have an $id"),
        ({"anyOf": [{"$anchor": "a"}, {"$anchor": "a"}]}, "the anchor a twice"),
    ],
)
def test_keywords_that_change_the_meaning_of_a_schema_are_refused(schema: dict[str, Any], why: str) -> None:
    parameters = object_schema(schema, title="a", **{"$defs": {"a": {"enum": [{"a": 1}]}}})
    assert why in (schema_problem(parameters) or "")
    message = problem(parameters, {"x": "a" * 60 + "b"}) or ""
    assert message.startswith("bad_arguments: The schema of tool can't be used. ")
    assert why in message


@pytest.mark.parametrize("pattern", ["(", "[a", "*", "a{2,1}", "(" * 999])
def test_the_schema_of_an_answer_has_no_invalid_pattern(pattern: str) -> None:
    schema = object_schema({"items": {"type": "string", "pattern": pattern}, "const": {"pattern": "("}})
    found = schema_problem(schema, of_arguments=False) or ""
    assert found.startswith("The schema is invalid: properties.x.items.pattern: ")


@pytest.mark.parametrize("pattern", ["(?=a)b", r"(a)\1", "a{100000}", "[^]", "a{,3}", "(" * 1001, r"^\w+$"])
def test_patterns_of_answers_that_are_valid_but_not_asserted_are_accepted(pattern: str) -> None:
    assert schema_problem(object_schema({"pattern": pattern}), of_arguments=False) is None


@pytest.mark.parametrize("pattern", ["(?=a)b", r"(a)\1", "a{1000}{1000}", "(", "(?<=x)y"])
def test_patterns_without_linear_time_are_not_asserted(pattern: str) -> None:
    assert schema_problem(object_schema({"pattern": pattern})) is None
    assert problem(object_schema({"pattern": pattern}), {"x": "z"}) is None


def test_arguments_that_are_nested_too_deeply_are_reported() -> None:
    args: Any = 1
    for _ in range(MAX_ARGS_DEPTH - 1):
        args = [args]
    assert problem({"type": "object"}, {"x": args}) is None
    assert problem({"type": "object"}, {"x": [args]}) == "bad_arguments: The arguments are nested too deeply."


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"type": "string"},
        {"type": "object", "properties": {"a": {"type": "strin"}}},
        {"type": "object", "properties": {"a": {"$ref": "#/$defs/none"}}},
        {"type": "object", "properties": [1]},
        {"type": "object", "patternProperties": {"(?=a)": {}}},
        {"type": "object", "minimum": "1"},
        {"type": "object", "allOf": []},
        {"type": "object", "description": "x" * 70_000},
    ],
)
def test_a_schema_that_is_not_of_an_object_is_reported(parameters: dict[str, Any]) -> None:
    assert schema_problem(parameters)
    assert schema_problem(FILE) is None


def test_a_schema_that_is_nested_too_deeply_is_reported() -> None:
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(500):
        deep = {"not": deep}
    assert schema_problem({"type": "object", "properties": {"a": deep}}) == "The schema is nested too deeply."
