"""The cost of a schema is bounded before anything is checked: an expensive check never runs on the event loop."""

import asyncio
import threading
from typing import Any

import msgspec
import pytest

from khala.domain.errors import InvalidInput
from khala.domain.json_schemas import MAX_COST, MAX_SCHEMA_PARTS, SchemaGraph
from khala.tools.port import ToolError
from khala.tools.validation import arguments, process_pool
from khala.tools.validation.arguments import ToolSchema
from khala.tools.validation.validator import compile_schema, problems


def object_schema(schema: object, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"x": schema}, **more}


def costed(schema: dict[str, Any], sizes: dict[str, int] | None = None) -> SchemaGraph:
    graph = SchemaGraph(schema)
    graph.compute_costs(sizes or {})
    return graph


def on_loop(schema: object, value: object) -> tuple[bool, bool]:
    """Whether the check, and the report of its errors, may run on the event loop."""
    checks = ToolSchema(msgspec.json.encode(object_schema(schema)))
    size = arguments.measure({"x": value})
    return checks.checks_fast(size), checks.reports_fast(size)


def test_a_schema_costs_as_often_as_it_is_applied() -> None:
    once = costed(object_schema({"$ref": "#/$defs/a"}, **{"$defs": {"a": {"enum": [1, 2, 3]}}})).cost(1).weight
    thrice = (
        costed(object_schema({"allOf": [{"$ref": "#/$defs/a"}] * 3}, **{"$defs": {"a": {"enum": [1, 2, 3]}}}))
        .cost(1)
        .weight
    )
    unused = costed(object_schema({}, **{"$defs": {"a": {"enum": [1, 2, 3]}}})).cost(1).weight
    assert unused < once < thrice
    assert thrice - unused >= 3 * len([1, 2, 3])


def test_a_recursive_schema_costs_by_the_depth_of_the_arguments() -> None:
    linked = costed(object_schema({}, additionalProperties={"$ref": "#"}))
    assert linked.cost(40).weight - linked.cost(39).weight == linked.cost(21).weight - linked.cost(20).weight > 0
    doubled = costed({"type": "object", "allOf": [{"items": {"$ref": "#"}}] * 2})
    assert doubled.cost(11).weight > 2 * doubled.cost(10).weight > 2**10
    assert doubled.cost(100).weight == MAX_COST


def test_patterns_cost_by_their_programs_and_unevaluated_ones_count_twice() -> None:
    inner = {"patternProperties": {"a": {"pattern": "b"}}}
    sizes = {"a": 10, "b": 100}
    assert costed({"allOf": [inner]}, sizes).cost(0).search == 10
    assert costed({"allOf": [inner]}, sizes).cost(1).search == 110
    assert costed({"allOf": [inner], "unevaluatedProperties": False}, sizes).cost(1).search == 220


@pytest.mark.parametrize("part", [True, False, {}])
def test_the_subschemas_of_a_schema_are_limited_and_constants_do_not_count(part: bool | dict[str, Any]) -> None:
    inner = MAX_SCHEMA_PARTS - 1
    SchemaGraph({"anyOf": [part] * inner, "enum": [part] * (2 * inner)})
    with pytest.raises(InvalidInput, match="at most 1,000 parts"):
        SchemaGraph({"anyOf": [part] * (inner + 1)})


@pytest.mark.parametrize("path", ["#/properties/x", "#/x~1y/%7Bz%7D", "#/x~1y/{z}", "#/list/0", "#named", "#/x~1y/on"])
def test_references_resolve_to_schemas_at_any_place(path: str) -> None:
    schema = object_schema({"$ref": path} if path != "#/properties/x" else {}, **{
        "x/y": {"{z}": {"type": "string"}, "on": True}, "list": [{"type": "string"}],
        "$defs": {"a": {"$anchor": "named", "type": "string"}},
    })  # fmt: skip
    graph = costed(schema | {"additionalProperties": {"$ref": path}})
    assert compile_schema(graph.root).is_valid({"other": "text"})


@pytest.mark.parametrize(
    "path", ["#/enum", "#/enum/0", "#/properties", "#/required/0", "#/list", "#/none", "#/list/00x"]
)
def test_references_to_anything_but_a_schema_are_refused(path: str) -> None:
    schema = {"enum": [{}], "required": ["a"], "list": [{}], "properties": {}, "not": {"$ref": path}}
    with pytest.raises(InvalidInput, match="The schema refers to"):
        SchemaGraph(schema)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"uniqueItems": True}, [2**62 + at for at in range(1000)]),
        ({"allOf": [{"uniqueItems": True}] * 100}, [{"a": at} for at in range(2000)]),
        ({"items": {"enum": list(range(5000))}}, list(range(1000))),
        ({"items": {"required": [f"k{at}" for at in range(5000)]}}, [{}] * 1000),
        ({"items": {"multipleOf": 0.1}}, [1e308] * 5000),
        ({"multipleOf": 3}, 10**400),
        ({"maximum": 10**400}, 1),
        ({"pattern": "[ab]*a[ab]{300}c"}, "ab" * 10_000),
        ({"propertyNames": {"pattern": "[ab]*a[ab]{300}c"}}, {f"{'ab' * 20}{at}": 1 for at in range(1000)}),
        ({"allOf": [{"items": {"type": "integer"}}] * 400}, list(range(5000))),
        ({"allOf": [{"maxLength": 9}] * 400}, "x" * 200_000),
    ],
)
def test_a_check_that_may_take_long_never_runs_on_the_event_loop(schema: dict[str, Any], value: object) -> None:
    assert on_loop(schema, value)[0] is False


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"anyOf": [{"type": "integer"}] * 100}, "x" * 100_000),
        ({"items": {"type": "string"}}, list(range(5000))),
        ({"propertyNames": {"maxLength": 1}}, {f"name{at}": 1 for at in range(700)}),
        ({"items": {"items": {"items": {"type": "string"}}}}, [[[["x" * 100_000]]]] * 2),
    ],
)
def test_large_mismatches_are_never_reported_on_the_event_loop(schema: dict[str, Any], value: object) -> None:
    assert on_loop(schema, value)[1] is False


def test_an_ordinary_check_runs_on_the_event_loop() -> None:
    row = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["a"]}
    assert on_loop({"type": "array", "items": row}, [{"a": 1, "b": "text"}] * 1000)[0]
    assert on_loop({"type": "string"}, "x" * 200_000) == (True, True)
    assert on_loop({"type": "string", "pattern": "^[a-z-]+$"}, "a-name") == (True, True)


async def test_the_number_of_checks_that_wait_for_a_process_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_pool, "_SLOTS", threading.BoundedSemaphore(1))
    first = asyncio.create_task(process_pool.problems({"required": ["a"]}, {}))
    await asyncio.sleep(0)  # it occupies the only place
    with pytest.raises(ToolError, match="Too many arguments") as refused:
        await process_pool.problems({}, {})
    assert refused.value.code == "unavailable"
    assert await first == ["a: required"]
    assert await process_pool.problems({}, {}) == []


@pytest.mark.parametrize("bad", [{"type": "bogus"}, {"pattern": "(?=a)"}, {"$ref": "http://127.0.0.1:1/"}])
def test_the_validator_fetches_no_references_and_runs_no_slow_patterns(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r".+"):
        compile_schema(bad)


def test_the_process_reports_the_same_as_the_event_loop() -> None:
    schema = object_schema({"type": "array", "items": {"type": "integer"}}, required=["y"], additionalProperties=False)
    args = {"x": [1, "2", None], "z": 1}
    assert asyncio.run(process_pool.problems(schema, args)) == problems(compile_schema(schema), args)
