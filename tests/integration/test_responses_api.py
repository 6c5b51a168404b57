"""OpenAI's Responses API with the official client, unmodified: a response is a run, and each replay is the same."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import pytest_asyncio
from pydantic import BaseModel

from khala.store.operations.verify import VerifyProgress, find_differences
from khala.store.postgres.database import Database
from tests.support.client import text_of
from tests.support.in_process import InProcessServer
from tests.support.openai_api import TIMEOUT_SECONDS, Requester
from tests.support.shared_server import shared

pytestmark = pytest.mark.asyncio(loop_scope="module")

WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}
CALL = '/text Let me see. /call weather {"city": "Aiur"} /say It is fine.'


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def server(postgres_url: str, template: str) -> AsyncIterator[InProcessServer]:
    async with shared(postgres_url, template) as inside:
        yield inside
        db = Database(inside.database_url)
        assert [found async for found in find_differences(db, VerifyProgress())] == []
        await db.close()


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def requester(server: InProcessServer) -> AsyncIterator[Requester]:
    db = Database(server.database_url)
    yield await Requester.new(server, db)
    await db.close()


async def ask(requester: Requester, given: Any, **more: Any) -> Any:
    return await requester.client.responses.create(**({"model": "khala", "input": given} | more))


async def replay(requester: Requester, response_id: str, **params: Any) -> str:
    """The text of a stream of the response, without comments."""
    path = f"/v1/responses/{response_id}"
    found = await requester.inside.http.get(
        path, params={"stream": "true"} | params, headers=requester.person.headers, timeout=TIMEOUT_SECONDS
    )
    return without_comments(found.raise_for_status().text)


def without_comments(stream: str) -> str:
    return "".join(f"{event}\n\n" for event in stream.split("\n\n") if event and not event.startswith(":"))


async def test_a_response_is_a_run_of_a_thread_and_can_be_read_continued_and_deleted(requester: Requester) -> None:
    first = await ask(requester, "/echo En taro Adun", instructions="Be brief.", metadata={"a": "b"})
    assert (first.status, first.output_text, first.model) == ("completed", "En taro Adun", "khala")
    assert (first.instructions, first.metadata) == ("Be brief.", {"a": "b"})
    assert first.usage.output_tokens == 3
    run = await requester.get(f"/api/runs/{first.khala['runId']}")
    assert first.id == "resp_" + run["id"].replace("-", "")
    assert (await requester.client.responses.retrieve(first.id)).to_dict() == first.to_dict()

    second = await ask(requester, "/echo two", previous_response_id=first.id)
    branch = await ask(requester, "/echo three", previous_response_id=first.id)
    assert (second.output_text, branch.output_text) == ("two", "three")
    assert (second.previous_response_id, second.instructions) == (first.id, None)
    thread = await requester.thread(first.khala["threadId"])
    assert {text_of(message) for message in thread} == {"/echo En taro Adun", "En taro Adun", "/echo two", "two"} | {
        "/echo three",
        "three",
    }
    listed = await requester.client.responses.input_items.list(second.id)
    assert [item.to_dict()["content"] for item in listed.data] == [[{"type": "input_text", "text": "/echo two"}]]
    with pytest.raises(openai.ConflictError):
        await requester.client.responses.delete(first.id)
    lone = await ask(requester, "/echo gone")
    await requester.client.responses.delete(lone.id)
    with pytest.raises(openai.NotFoundError):
        await requester.client.responses.retrieve(lone.id)


async def test_functions_are_called_and_their_outputs_continue_the_response(requester: Requester) -> None:
    first = await ask(requester, CALL, tools=[WEATHER])
    message, call = first.output
    assert (message.type, call.type, call.name, call.arguments) == (
        "message",
        "function_call",
        "weather",
        '{"city":"Aiur"}',
    )
    with pytest.raises(openai.BadRequestError, match="No tool output"):
        await ask(requester, "Well?", previous_response_id=first.id)
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "Sunny."}
    second = await ask(requester, [output], previous_response_id=first.id, tools=[WEATHER])
    assert second.output_text == "It is fine."
    assert second.khala["threadId"] == first.khala["threadId"]
    items = await requester.client.responses.input_items.list(second.id)
    assert [(item.type, item.output) for item in items.data] == [  # type: ignore[union-attr]
        ("function_call_output", "Sunny.")
    ]
    # The same without the server's state: a client sends all items again.
    given = [{"role": "user", "content": CALL}, *(item.to_dict() for item in first.output), output]
    assert (await ask(requester, given, tools=[WEATHER], store=False)).output_text == "It is fine."


class City(BaseModel):
    name: str
    population: int


async def test_structured_output_is_parsed(requester: Requester) -> None:
    parsed = await requester.client.responses.parse(model="khala", input="Which city?", text_format=City)
    assert isinstance(parsed.output_parsed, City)
    async with requester.client.responses.stream(model="khala", input="Which city?", text_format=City) as stream:
        final = await stream.get_final_response()
    assert isinstance(final.output_parsed, City)


@pytest.mark.parametrize(
    "more",
    [
        {"input": "/words=60 /pace=100"},
        {"input": CALL, "tools": [WEATHER]},
        {"input": "/words=5 /fail=2"},
        {"input": "City?", "text": {"format": {"type": "json_object"}}},
    ],
)
async def test_each_replay_is_the_live_stream_byte_by_byte(requester: Requester, more: dict[str, Any]) -> None:
    async with requester.inside.http.stream(
        "POST",
        "/v1/responses",
        json={"stream": True} | more,
        headers=requester.person.headers,
        timeout=TIMEOUT_SECONDS,
    ) as response:
        live = without_comments((await response.aread()).decode())
        response_id = "resp_" + response.headers["x-run-id"].replace("-", "")
    events = live.removesuffix("\n\n").split("\n\n")
    assert await replay(requester, response_id) == live
    for seen in (0, 1, len(events) // 2, len(events) - 1):
        rest = await replay(requester, response_id, starting_after=seen)
        assert rest == "".join(f"{event}\n\n" for event in events[seen + 1 :])


async def test_a_stream_that_is_left_continues_elsewhere(requester: Requester) -> None:
    kinds: list[str] = []
    numbers: list[int] = []
    stream = await ask(requester, "/words=300 /pace=300", stream=True, background=True)
    async for event in stream:
        kinds.append(event.type)
        numbers.append(event.sequence_number)
        if len(numbers) == 5:
            break
    response_id = "resp_" + stream.response.headers["x-run-id"].replace("-", "")
    await stream.close()
    rest = await requester.client.responses.retrieve(response_id, stream=True, starting_after=numbers[-1])
    rest_of_events: list[Any] = []
    async for event in rest:
        numbers.append(event.sequence_number)
        kinds.append(event.type)
        rest_of_events.append(event)
    assert numbers == list(range(len(numbers)))
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    final = rest_of_events[-1].response
    assert kinds[-1] == "response.completed"
    assert final.output_text == " ".join(f"word{number}" for number in range(1, 301))
    assert (await requester.client.responses.retrieve(response_id)).to_dict() == final.to_dict()


async def test_a_response_in_the_background_can_be_canceled_and_a_retry_joins_it(requester: Requester) -> None:
    key = {"Idempotency-Key": f"responses-{requester.person.id}"}
    options = {"background": True, "extra_headers": key}
    first = await ask(requester, "/words=5000 /pace=20", **options)
    assert first.status in ("queued", "in_progress")
    assert (await ask(requester, "/words=5000 /pace=20", **options)).id == first.id
    with pytest.raises(openai.ConflictError):
        await ask(requester, "/echo two", previous_response_id=first.id)
    async with asyncio.timeout(TIMEOUT_SECONDS):
        canceled = await requester.client.responses.cancel(first.id)
        while canceled.status == "in_progress":
            canceled = await requester.client.responses.cancel(first.id)
    assert canceled.status == "cancelled"
    assert (await requester.client.responses.retrieve(first.id)).to_dict() == canceled.to_dict()


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": []}, "input"),
        ({"input": "x", "model": "none:such"}, "model"),
        ({"input": "x", "tools": [WEATHER, {"type": "web_search"}]}, "tools[1].type"),
        ({"input": "x", "tools": [{"type": "code_interpreter"}, {"type": "mcp", "server_label": "a"}]}, "tools["),
        (
            {"input": "x", "tools": [{"type": "mcp", "server_label": "a", "server_url": "http://a"}]},
            "tools[0].server_url",
        ),
        ({"input": "x", "tools": [WEATHER | {"parameters": {"type": 7}}]}, "tools[0].parameters"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]}, "input[0].content[0]"),
        ({"input": [{"type": "computer_call"}]}, "input[0].type"),
        ({"input": "x", "text": {"format": {"type": "json_schema", "name": "a b", "schema": {}}}}, "text.format.name"),
        ({"input": "x", "instructions": "x" * 9000}, "instructions"),
        ({"input": "x", "background": True, "store": False}, "background"),
        ({"input": "x", "previous_response_id": "resp_1"}, None),
        ({"input": "x", "conversation": "a", "previous_response_id": "b"}, "conversation"),
    ],
)
async def test_a_wrong_request_gets_an_error_in_openais_shape(
    requester: Requester, body: dict[str, Any], param: str | None
) -> None:
    refused = await requester.inside.http.post("/v1/responses", json=body, headers=requester.person.headers)
    assert refused.status_code in (400, 404), refused.text
    error = refused.json()["error"]
    assert set(error) == {"message", "type", "code", "param"}
    assert error["message"]
    assert error["param"] == param or (param and error["param"].startswith(param))
