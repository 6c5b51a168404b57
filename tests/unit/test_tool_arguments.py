"""Arguments are checked as they are: each place that does not fit is named, and no schema makes that take for ever."""

from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema.exceptions import ValidationError

from app.domain.tools import Spec
from app.tools import keywords
from app.tools.arguments import MOST_ARGS, MOST_PROBLEMS, check, schema_problem
from app.tools.keywords import LONGEST_PROBLEM
from app.tools.port import ToolFailed

TOO_LONG = "bad_arguments: These arguments take too long to check."
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
        check(Spec(name="tool", description="", parameters=parameters), args)
    except ToolFailed as error:
        return f"{error.code}: {error.message}"
    return None


def test_a_missing_argument_is_an_error_and_never_filled_in() -> None:
    args: dict[str, Any] = {"lines": 1}
    assert problem(FILE, args) == "bad_arguments: The arguments don't fit: path: this is missing."
    assert args == {"lines": 1}
    args = {"path": "a"}
    assert problem(FILE, args) is None
    assert args == {"path": "a"}


@pytest.mark.parametrize(
    ("args", "named"),
    [
        ({"path": 1}, "path: 1 is not of type 'string'"),
        ({"path": "a", "lines": "1"}, "lines: '1' is not of type 'integer'"),
        ({"path": "a", "lines": True}, "lines: True is not of type 'integer'"),
        ({"path": "a", "lines": 0}, "lines: 0 is less than the minimum of 1"),
        ({"path": "a", "tags": ["x", 2]}, "tags.1: 2 is not of type 'string'"),
        ({"path": "a", "paht": "b"}, "paht: there is no such argument"),
        ({"path": None}, "path: None is not of type 'string'"),
    ],
)
def test_what_does_not_fit_is_named_with_its_place(args: dict[str, Any], named: str) -> None:
    assert problem(FILE, args) == f"bad_arguments: The arguments don't fit: {named}."


def test_what_is_said_of_many_or_large_mistakes_is_bounded() -> None:
    many = problem(FILE, {"path": "a", "tags": [1] * 1000}) or ""
    assert many.count("not of type") == MOST_PROBLEMS
    assert "and more" in many
    assert len(problem(FILE, {"path": "a" * 100_000, "b" * 10_000: 1}) or "") < 1000


def test_references_lead_nowhere_but_into_the_schema() -> None:
    within = {"type": "object", "properties": {"a": {"$ref": "#/$defs/n"}}, "$defs": {"n": {"type": "integer"}}}
    assert schema_problem(within) is None
    assert problem(within, {"a": 1}) is None
    assert "a: 'x' is not of type 'integer'" in (problem(within, {"a": "x"}) or "")
    for target in ("http://127.0.0.1:1/schema", "file:///etc/passwd", "other.json", "https://json-schema.org/schema"):
        remote = {"type": "object", "properties": {"a": {"$ref": target}}}
        assert "refer only to itself" in (schema_problem(remote) or "")
        assert "refers to what it does not have" in (problem(remote, {"a": 1}) or "")
    named_so = {"type": "object", "properties": {"$ref": {"type": "string"}}, "additionalProperties": False}
    assert schema_problem(named_so) is None
    assert problem(named_so, {"$ref": "http://example.com"}) is None


def doubling(depth: int) -> dict[str, Any]:
    inner = {f"d{at}": {"allOf": [{"$ref": f"#/$defs/d{at + 1}"}] * 2} for at in range(depth)}
    return {"type": "object", "$defs": {**inner, f"d{depth}": {}}, "$ref": "#/$defs/d0"}


@pytest.mark.parametrize("parameters", [doubling(60), {"type": "object", "$ref": "#"}])
def test_a_schema_that_refers_to_itself_without_end_is_given_up(parameters: dict[str, Any]) -> None:
    assert problem(parameters, {}) == TOO_LONG


def test_patterns_take_linear_time() -> None:
    slow: dict[str, Any] = {
        "type": "object",
        "properties": {"a": {"pattern": "^(a+)+$"}},
        "patternProperties": {"^(b+)+$": {}},
    }
    slow["additionalProperties"] = False
    assert "does not match" in (problem(slow, {"a": "a" * 5000 + "!"}) or "")
    assert "no such argument" in (problem(slow, {"b" * 5000 + "!": 1}) or "")


def test_formats_are_not_asserted_and_equal_numbers_are_one() -> None:
    assert problem({"type": "object", "properties": {"a": {"format": "email"}}}, {"a": "nobody"}) is None
    unique = {"type": "object", "properties": {"a": {"uniqueItems": True}}}
    assert problem(unique, {"a": [1, True, "1", {"b": 1}, {"b": 2}]}) is None
    assert "twice" in (problem(unique, {"a": [{"b": 1, "c": 2}, {"c": 2.0, "b": 1}]}) or "")


def of(schema: object, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"x": schema}, **more}


LONG = "y" * 200_000
LIST = list(range(20_000))
NAMES = {f"k{number}": 1 for number in range(10_000)}
SLOW = "(((x|y| ){1,5}){1,5}){1,5}z"


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"patternProperties": {f"^q{number}": {} for number in range(90)}}, NAMES),
        ({"patternProperties": {f"^q{number}": {} for number in range(90)}, "additionalProperties": False}, NAMES),
        ({"allOf": [{"uniqueItems": True}] * 900}, LIST),
        ({"allOf": [{"items": {}}] * 900}, LIST),
        ({"allOf": [{"enum": [LIST[:500]]}] * 900}, LIST[:500]),
        ({"allOf": [{"const": LIST[:500]}] * 900}, LIST[:500]),
        ({"pattern": SLOW}, LONG),
        ({"allOf": [{"pattern": SLOW}] * 900}, "xy " * 5000),
        ({"items": {"properties": {f"p{number}": {} for number in range(900)}}}, [{"a": 1}] * 10_000),
        ({"not": {"items": {"required": ["a"] * 5000}}}, [{"a": 1}] * 10_000),
        ({"anyOf": [{"required": [f"p{number}" for number in range(5000)]}] * 40}, {}),
        ({"anyOf": [{"type": "integer"}] * 900}, LONG),
        ({"unevaluatedProperties": False}, NAMES),
        ({"prefixItems": [{}] * 900, "unevaluatedItems": False}, LIST),
        ({"items": {"$ref": "#here"}, "$defs": {"a": {"$anchor": "here", "description": LONG[:40_000]}}}, LIST),
    ],
)
def test_what_would_take_long_by_its_size_is_given_up(schema: dict[str, Any], value: object) -> None:
    parameters = of({"$ref": "#/$defs/big"}, **{"$defs": {"big": schema, "here": {"$anchor": "here"}}})
    assert problem(parameters, {"x": value}) == TOO_LONG


def test_what_is_large_in_an_ordinary_way_is_checked() -> None:
    row = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string", "pattern": "^[a-z]+$"}},
           "required": ["a"], "additionalProperties": False}  # fmt: skip
    rows = [{"a": number, "b": "word"} for number in range(1000)]
    assert problem(of({"type": "array", "items": row, "uniqueItems": True}), {"x": rows}) is None
    assert problem(of({"type": "string", "pattern": r"^[\w\s]+$"}), {"x": "a word " * 30_000}) is None
    assert problem(of({"enum": [f"choice {number}" for number in range(1000)]}), {"x": "choice 999"}) is None
    assert problem(of({"type": "array", "items": {"type": "integer"}}), {"x": LIST[:5000]}) is None


@pytest.mark.parametrize("branch", [{"type": "integer"}, {"enum": [1]}, {"maxLength": 1}, {"not": {}}, False])
def test_no_message_holds_all_of_a_large_argument(branch: object, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[int] = []
    original = keywords.STRICT.VALIDATORS["anyOf"]

    def looked(*args: Any) -> Iterator[ValidationError]:
        for error in original(*args):
            held.extend(len(inner.message) + sum(map(len, inner.args[:1])) for inner in error.context or ())
            yield error

    monkeypatch.setitem(keywords.STRICT.VALIDATORS, "anyOf", looked)
    assert "not valid under any" in (problem(of({"anyOf": [branch] * 20}), {"x": LONG}) or "")
    assert len(held) == 20
    assert max(held) <= 2 * LONGEST_PROBLEM


def test_arguments_have_a_most_of_bytes_whatever_the_schema() -> None:
    fits = MOST_ARGS - len('{"x":""}')
    assert problem({"type": "object"}, {"x": "y" * fits}) is None
    assert problem({"type": "object"}, {"x": "y" * (fits + 1)}) == (
        "too_large: The arguments of a call have at most 262,144 bytes."
    )
    assert "can't be told as JSON" in (problem({"type": "object"}, {"x": "\ud800"}) or "")


def test_what_is_never_allowed_is_told_with_its_place() -> None:
    assert problem(of(False), {"x": 1}) == "bad_arguments: The arguments don't fit: x: nothing may be here."
    assert problem(of({"items": {"not": False}}), {"x": [1, 2]}) is None
    assert problem(of({"$ref": "#/$defs/no"}, **{"$defs": {"no": False}}), {"x": 1}) is not None


@pytest.mark.parametrize(
    "parameters",
    [
        of({"patternProperties": {f"^q{number}": {} for number in range(101)}}),
        of({"allOf": [{}] * 1001}),
        of({"allOf": [True] * 1001}),
        of({"patternProperties": {r"\pL{9}": {}}}),
    ],
)
def test_a_schema_that_would_take_long_to_look_at_is_told(parameters: dict[str, Any]) -> None:
    assert schema_problem(parameters)


def test_a_schema_that_refers_to_many_anchors_is_looked_through_once() -> None:
    many = {f"a{number}": {"$anchor": f"q{number}"} for number in range(300)}
    assert schema_problem(of({"allOf": [{"$ref": f"#q{number}"} for number in range(300)]}, **{"$defs": many})) is None
    assert "does not have" in (schema_problem(of({"$ref": "#q300"}, **{"$defs": many})) or "")


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"type": "string"},
        {"type": "object", "properties": {"a": {"type": "strin"}}},
        {"type": "object", "properties": {"a": {"$ref": "#/$defs/none"}}},
        {"type": "object", "properties": [1]},
        {"type": "object", "patternProperties": {"(?=a)": {}}},
        {"type": "object", "description": "x" * 70_000},
    ],
)
def test_what_is_no_schema_of_an_object_is_told(parameters: dict[str, Any]) -> None:
    assert schema_problem(parameters)
    assert schema_problem(FILE) is None


def test_a_schema_that_is_nested_too_deeply_is_told() -> None:
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(500):
        deep = {"not": deep}
    assert schema_problem({"type": "object", "properties": {"a": deep}}) == "The schema is nested too deeply."
