"""Options of a send: unsupported or unstorable options are refused by name, and invalid values are not stored."""

from typing import Any

import msgspec
import pytest

from khala.domain.chat import RunOptions
from khala.store.postgres.database import Database
from tests.integration.test_api_threads import assert_problem
from tests.support.client import Thread
from tests.support.in_process import InProcessServer
from tests.support.shared_server import server_fixture

pytestmark = pytest.mark.asyncio(loop_scope="module")

server = server_fixture(with_executor=False)


async def send(thread: Thread, options: dict[str, Any]) -> Any:
    return await thread.post("send", {"text": "Hello", "options": options})


async def stored_options(store: Database, run_id: str) -> dict[str, Any]:
    """The options as stored."""
    async with store.driver() as driver:
        row = await driver.fetchrow("SELECT options::text AS options FROM runs WHERE id = $1", run_id)
    assert row is not None
    return dict(msgspec.json.decode(row["options"]))


def function(**fields: Any) -> dict[str, Any]:
    return {"functions": [{"name": "blink"} | fields]}


def wide_schema(count: int, size: int = 1) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{number}": {"title": "x" * size} for number in range(count)}}


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({"tools": ["a", "\0"]}, "options"),
        ({"instructions": "a\0"}, "options"),
        ({"instructions": "x" * 8_001}, "options.instructions"),
        ({"instructions": None}, "options.instructions"),
        (function(description="\0"), "options"),
        (function(parameters={"type": "object", "title": "a\0"}), "options"),
        (function(parameters={"type": "object", "properties": {"\0": {}}}), "options"),
        (function(name="blink\n"), "options.functions[0].name"),
        ({"functions": [{"name": "blink"}, {"name": "wink"}, {"name": "blink"}]}, "options.functions"),
        (function(parameters={"type": 1}), "options.functions.0.parameters"),
        (function(parameters={"type": "string"}), "options.functions.0.parameters"),
        (function(parameters={"properties": {}}), "options.functions.0.parameters"),
        (function(parameters={"type": "object", "items": {"type": [0] * 6000}}), "options.functions.0.parameters"),
        (function(parameters={"type": "object", "not": {"$schema": "a"}}), "options.functions.0.parameters"),
        (function(parameters={"type": "object", "title": "a", "$ref": "#/title"}), "options.functions.0.parameters"),
        (function(parameters=wide_schema(1, 65_536)), "options.functions.0.parameters"),
        (function(parameters=wide_schema(2_000)), "options.functions"),
        (
            {"functions": [{"name": f"f{n}", "parameters": wide_schema(1, 60_000)} for n in range(5)]},
            "options.functions",
        ),
    ],
)
async def test_invalid_options_are_refused(server: InProcessServer, options: dict[str, Any], path: str) -> None:
    thread = await server.thread()
    problem = assert_problem(await send(thread, options), 400, "invalid_input")
    assert [error["path"] for error in problem["errors"]] == [path]
    assert len((await thread.snapshot())["messages"]) == 1


async def test_instructions_are_stored_with_their_run(server: InProcessServer, store: Database) -> None:
    options = {"instructions": "Ж" * 8_000}
    sent = await send(await server.thread(), options)
    assert sent.status_code == 202, sent.text
    assert await stored_options(store, sent.json()["runId"]) == options


@pytest.mark.parametrize("junk", ["\0", {"a": ["\0"]}, {"\0": 1}, "x" * 900_000, [[[]]], 10**30, -1, 2.5])
async def test_max_steps_is_stored_only_if_it_is_a_number(server: InProcessServer, store: Database, junk: Any) -> None:
    sent = await send(await server.thread(), {"autopilot": True, "maxSteps": junk})
    assert sent.status_code == 202
    options = await stored_options(store, sent.json()["runId"])
    assert options == {"autopilot": True} | ({"maxSteps": 50} if junk == 10**30 else {})


async def test_text_that_only_looks_like_a_nul_is_stored(server: InProcessServer, store: Database) -> None:
    options = {"tools": [r"\u0000"]} | function(
        description=r"\u0000", parameters={"type": "object", "properties": {r"\u0000": {}}}
    )
    sent = await send(await server.thread(), options)
    assert sent.status_code == 202, sent.text
    assert await stored_options(store, sent.json()["runId"]) == options


async def test_a_function_without_parameters_takes_none(server: InProcessServer, store: Database) -> None:
    ways: tuple[dict[str, Any], ...] = ({}, {"parameters": {}})
    for function_field in ways:
        sent = await send(await server.thread(), function(**function_field))
        (own,) = (await stored_options(store, sent.json()["runId"]))["functions"]
        assert own["parameters"] == {"type": "object", "properties": {}}


@pytest.mark.parametrize(
    ("stored_value", "steps"), [(1, 1), (50, 50), (51, 50), (0, 20), (True, 20), ("3", 20), (None, 20)]
)
async def test_unvalidated_steps_of_earlier_versions_are_read_as_a_number(stored_value: Any, steps: int) -> None:
    stored = msgspec.json.encode({"maxSteps": stored_value, "autopilot": True})
    options = msgspec.json.decode(stored, type=RunOptions)
    assert (options.max_steps, options.step_limit) == (steps, steps)


@pytest.mark.parametrize("depth", [65, 400, 900, 5_000])
async def test_a_schema_that_is_nested_too_deeply_is_refused(server: InProcessServer, depth: int) -> None:
    thread = await server.thread()
    schema = '{"type": "object", "not": ' + '{"not": ' * depth + "{}" + "}" * depth + "}"
    body = '{"text": "Hello", "options": {"functions": [{"name": "blink", "parameters": ' + schema + "}]}}"
    headers = thread.headers | {"Content-Type": "application/json"}
    assert_problem(
        await server.http.post(f"/api/threads/{thread.id}/send", content=body, headers=headers), 400, "invalid_input"
    )
