"""Answers in a requested format over `/v1`: passed to each provider, checked, repaired once, else an error."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from uuid import UUID

import openai
import pydantic
import pytest
import pytest_asyncio
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from khala.domain.errors import Unavailable
from khala.store.postgres.database import Database
from khala.store.search.message_texts import TEXT
from tests.support.in_process import InProcessServer
from tests.support.openai_api import WEATHER, Requester, user
from tests.support.providers import Reply, Server, serving
from tests.support.shared_server import shared
from tests.support.wires import UseTool

pytestmark = pytest.mark.asyncio(loop_scope="module")


class City(pydantic.BaseModel):
    """A city, as a client asks for it."""

    name: str
    people: int


SCHEMA = City.model_json_schema()
FORMAT: dict[str, Any] = {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA}}
GOOD = ('{"name": "Shakuras", ', '"people": 7}')
BAD = ('{"name": "Shakuras", ', '"people": "many"}')
MAX_RUNS = 4
"""Active runs of a user."""
MODELS = ("openai:local", "anthropic:claude-sonnet-5-5", "google:gemini-3.8-flash")


class World(NamedTuple):
    """A server whose models are those of one scripted provider, and its client."""

    provider: Server
    requester: Requester

    def script(self, *replies: Reply) -> None:
        """The replies to the next calls."""
        self.provider.calls.clear()
        self.provider.script.clear()
        self.provider.script.extend(replies)

    async def ask(self, model: str = MODELS[0], headers: dict[str, str] | None = None, **more: Any) -> Any:
        """A completion in the format of a city."""
        body = {"model": model, "messages": user("Where?"), "response_format": FORMAT} | more
        return await self.requester.client.chat.completions.create(**body, extra_headers=headers)


@asynccontextmanager
async def scripted_world(postgres_url: str, template: str) -> AsyncIterator[World]:
    async with serving() as provider:
        env: dict[str, Any] = {
            "KHALA_MODEL": MODELS[0],
            "KHALA_MODELS": ",".join(MODELS),
            "KHALA_RUNS_PER_OWNER": str(MAX_RUNS),
            "OPENAI_BASE_URL": f"{provider.url}/v1",
        }
        env |= {"ANTHROPIC_BASE_URL": provider.url, "ANTHROPIC_API_KEY": "k"}
        env |= {"GOOGLE_GEMINI_BASE_URL": provider.url, "GOOGLE_API_KEY": "k", "OPENAI_API_KEY": "k"}
        async with shared(postgres_url, template, **env) as inside:
            database = Database(inside.database_url)
            yield World(provider, await Requester.new(inside, database))
            await database.close()


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def world(postgres_url: str, template: str) -> AsyncIterator[World]:
    async with scripted_world(postgres_url, template) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def demo(postgres_url: str, template: str) -> AsyncIterator[InProcessServer]:
    async with shared(postgres_url, template) as inside:
        yield inside


def content(completion: Any) -> str:
    return str(completion.choices[0].message.content)


@pytest.mark.parametrize("model", MODELS)
async def test_the_clients_own_parser_gets_an_object_from_each_provider(world: World, model: str) -> None:
    world.script(Reply(tokens=GOOD))
    messages: Any = user("Where?")
    parsed = await world.requester.client.beta.chat.completions.parse(
        model=model, messages=messages, response_format=City
    )
    assert parsed.choices[0].message.parsed == City(name="Shakuras", people=7)
    sent = (await world.provider.call(0)).body
    requested = {
        "openai": lambda: sent["response_format"]["json_schema"]["schema"],
        "anthropic": lambda: sent["output_config"]["format"]["schema"],
        "google": lambda: sent["generationConfig"]["responseJsonSchema"],
    }[model.partition(":")[0]]()
    assert requested["required"] == ["name", "people"]


@pytest.mark.parametrize("model", MODELS)
async def test_an_answer_that_does_not_fit_is_repaired_once(world: World, model: str) -> None:
    world.script(Reply(tokens=BAD), Reply(tokens=GOOD))
    completion = await world.ask(model)
    assert json.loads(content(completion)) == {"name": "Shakuras", "people": 7}
    again = json.dumps((await world.provider.call(1)).body)
    assert "does not fit the required format" in again
    assert "many" in again
    assert 'people: \\\\\\"many\\\\\\" is not of type' in again or "people: " in again
    assert completion.usage.completion_tokens == 14, "both answers are paid"
    blocks = (await world.requester.thread(completion.khala["threadId"]))[-1]["content"]
    assert [block["type"] for block in blocks] == ["text", "notice", "text"]
    assert (blocks[1]["code"], blocks[2]["text"]) == ("format_repair", "".join(GOOD))
    world.script(Reply(tokens=("Fine",)))
    thread = {"x-thread-id": completion.khala["threadId"]}
    await world.ask(model, headers=thread, response_format={"type": "text"})
    assert "many" not in json.dumps((await world.provider.call(0)).body), "the model does not see the failed answer"


async def test_a_second_answer_that_does_not_fit_is_an_error_that_names_the_place(world: World) -> None:
    world.script(Reply(tokens=BAD), Reply(tokens=("no JSON",)))
    with pytest.raises(openai.APIStatusError) as failed:
        await world.ask()
    assert (failed.value.status_code, failed.value.code) == (502, "format_mismatch")
    assert "answer: not JSON" in failed.value.message
    assert len(world.provider.calls) == 2
    world.script(Reply(tokens=BAD), Reply(tokens=BAD))
    with pytest.raises(openai.APIStatusError, match='people: "many" is not of type "integer"'):
        await world.ask()


async def test_a_stream_has_its_text_at_once_and_ends_with_an_error_if_it_does_not_fit(world: World) -> None:
    world.script(Reply(tokens=GOOD, pace=5))
    chunks = [chunk async for chunk in await world.ask(stream=True)]
    texts = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices[0].delta.content]
    assert ("".join(texts), len(texts) > 1) == ("".join(GOOD), True)
    world.script(Reply(tokens=BAD, pace=5), Reply(tokens=GOOD))
    with pytest.raises(openai.APIError) as failed:
        [chunk async for chunk in await world.ask(stream=True)]
    assert failed.value.code == "format_mismatch"
    assert "people: " in failed.value.message
    await world.provider.call(1)  # The run goes on.


async def test_a_checked_stream_has_only_the_answer_that_fits(world: World) -> None:
    world.script(Reply(tokens=BAD, pace=5), Reply(tokens=GOOD, pace=5))
    stream = await world.ask(stream=True, headers={"x-khala-stream": "checked"})
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "".join(GOOD)
    assert chunks[-1].choices[0].finish_reason == "stop"


async def test_an_autopilot_stream_says_that_text_is_no_part_of_the_answer(world: World) -> None:
    world.script(Reply(tokens=BAD), Reply(tokens=GOOD))
    body = {"model": "khala", "messages": user("Where?"), "response_format": FORMAT, "stream": True}
    answer = await world.requester.post(body, x_autopilot="true")
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    kinds = [event["type"] for event in events if event["type"] in ("autopilot_text", "autopilot_repair")]
    assert kinds[0] == "autopilot_text"
    assert kinds.count("autopilot_repair") == 1
    after = events[[event["type"] for event in events].index("autopilot_repair") + 1 :]
    assert "".join(event["text"] for event in after if event["type"] == "autopilot_text") == "".join(GOOD)


async def test_a_call_of_a_function_and_a_truncated_answer_need_not_fit(world: World) -> None:
    world.script(Reply(tokens=("Let me see.",), calls=(UseTool(name="weather", args={"city": "Aiur"}),)))
    called = await world.ask(tools=[WEATHER])
    assert called.choices[0].finish_reason == "tool_calls"
    world.script(Reply(tokens=BAD[:1], finish="length"))
    cut = await world.ask()
    assert (content(cut), cut.choices[0].finish_reason) == (BAD[0], "length")


async def test_any_object_is_requested_from_the_provider_and_in_words(world: World) -> None:
    world.script(Reply(tokens=('["no object"]',)), Reply(tokens=('{"a": 1}',)))
    completion = await world.ask(response_format={"type": "json_object"})
    assert content(completion) == '{"a": 1}'
    body = (await world.provider.call(0)).body
    assert body["response_format"] == {"type": "json_object"}
    assert "JSON object" in body["messages"][0]["content"]


async def test_over_rest_a_run_keeps_its_format(world: World) -> None:
    http, headers = world.requester.inside.http, world.requester.person.headers
    thread = (await http.post("/api/threads", headers=headers)).json()["thread"]["id"]
    world.script(Reply(tokens=BAD), Reply(tokens=GOOD))
    options = {"responseFormat": {"type": "json_schema", "name": "city", "schema": SCHEMA}}
    path = f"/api/threads/{thread}/send"
    sent = (await http.post(path, json={"text": "Where?", "options": options}, headers=headers)).json()
    assert (await world.requester.ended(sent["runId"]))["status"] == "final"
    assert len(world.provider.calls) == 2
    for wrong in ({"type": "json_schema", "schema": {"type": 7}}, {"type": "json_schema"}):
        refused = await http.post(path, json={"text": "?", "options": {"responseFormat": wrong}}, headers=headers)
        assert refused.status_code == 400
        assert "options.responseFormat" in refused.json()["errors"][0]["path"]


async def test_the_demo_model_answers_with_an_example(demo: InProcessServer) -> None:
    database = Database(demo.database_url)
    requester = await Requester.new(demo, database)
    completion = await requester.ask("Hello", response_format=FORMAT)
    City.model_validate_json(content(completion))
    repaired = await requester.ask("/echo no JSON", response_format=FORMAT)
    City.model_validate_json(content(repaired))
    thread_id = repaired.khala["threadId"]
    blocks = (await requester.thread(thread_id))[-1]["content"]
    assert blocks[0]["text"] == "no JSON", "no part is taken back"
    shown = (await requester.get(f"/api/chat/{thread_id}"))[-1]["parts"]
    assert [part["text"] for part in shown if part["type"] == "text"] == [content(repaired)]
    searched = f"SELECT {TEXT} FROM messages WHERE thread_id = $1 AND role = 'assistant'"
    async with database.driver() as driver:
        assert await driver.fetchval(searched, UUID(thread_id)) == content(repaired)
    await database.close()


DEEP: dict[str, Any] = {"type": "object"}
for _ in range(80):
    DEEP = {"type": "object", "properties": {"a": DEEP}}
WRONG: dict[str, tuple[Any, str]] = {
    "no name": ({"type": "json_schema", "json_schema": {"schema": {}}}, "response_format.json_schema"),
    "no schema": ({"type": "json_schema", "json_schema": {"name": "a"}}, "response_format.json_schema"),
    "a bad name": (
        {"type": "json_schema", "json_schema": {"name": "a b", "schema": {}}},
        "response_format.json_schema.name",
    ),
    "no JSON Schema": (
        {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": 7}}},
        "response_format.json_schema.schema",
    ),
    "a deep schema": (
        {"type": "json_schema", "json_schema": {"name": "a", "schema": DEEP}},
        "response_format.json_schema.schema",
    ),
    "a reference elsewhere": (
        {"type": "json_schema", "json_schema": {"name": "a", "schema": {"$ref": "http://x/y"}}},
        "response_format.json_schema.schema",
    ),
    "an invalid pattern": (
        {"type": "json_schema", "json_schema": {"name": "a", "schema": {"pattern": "("}}},
        "response_format.json_schema.schema",
    ),
    "an unknown type": ({"type": "grammar"}, "response_format"),
    "no type": ({}, "response_format"),
}


@pytest.mark.parametrize("name", WRONG)
async def test_an_ill_formed_format_is_refused_with_its_place(world: World, name: str) -> None:
    requested, param = WRONG[name]
    body = {"model": "khala", "messages": user("x"), "response_format": requested}
    refused = await world.requester.post(body)
    assert refused.status_code == 400, refused.text
    assert refused.json()["error"]["param"].startswith(param)


TIME: dict[str, Any] = {"type": "function", "function": {"name": "time", "strict": True, "parameters": {}}}
WEATHER_CALL = Reply(tokens=(), calls=(UseTool(name="weather", args={"city": "Aiur"}),))


@pytest.mark.parametrize("model", MODELS)
async def test_a_named_function_is_the_only_one_offered_and_has_to_be_called(world: World, model: str) -> None:
    world.script(WEATHER_CALL)
    choice = {"type": "function", "function": {"name": "weather"}}
    called = await world.ask(model, tools=[TIME, WEATHER], tool_choice=choice, response_format=None)
    assert [call.function.name for call in called.choices[0].message.tool_calls] == ["weather"]
    body = (await world.provider.call(0)).body
    offered, mode = {
        "openai": lambda: ([tool["function"]["name"] for tool in body["tools"]], body["tool_choice"]),
        "anthropic": lambda: ([tool["name"] for tool in body["tools"]], body["tool_choice"]["type"]),
        "google": lambda: (
            [tool["name"] for tool in body["tools"][0]["functionDeclarations"]],
            body["toolConfig"]["functionCallingConfig"]["mode"],
        ),
    }[model.partition(":")[0]]()
    assert (offered, mode) in ((["weather"], "required"), (["weather"], "any"), (["weather"], "ANY"))


async def test_tools_may_be_limited_to_some_or_none_or_one_at_a_time(world: World) -> None:
    subset = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "time"}}]}
    choice: Any = {"type": "allowed_tools", "allowed_tools": subset}
    world.script(Reply())
    await world.ask(tools=[TIME, WEATHER], tool_choice=choice, response_format=None)
    body = (await world.provider.call(0)).body
    assert body["tools"][0]["function"]["strict"] is True
    assert (len(body["tools"]), body["tool_choice"]) == (1, "auto")
    world.script(Reply(calls=(UseTool(name="todo_list"),)), Reply(tokens=("Done",)))
    headers = {"x-khala-tools": "todo_list", "x-autopilot": "true"}
    assert content(await world.ask(tools=[TIME], tool_choice=choice, response_format=None, headers=headers)) == "Done"
    assert "available in this chat" in str((await world.provider.call(1)).body["messages"])
    world.script(WEATHER_CALL, Reply(tokens=("Dry",)))
    refused = await world.ask(tools=[TIME, WEATHER], tool_choice=choice, response_format=None)
    assert (content(refused), refused.choices[0].finish_reason) == ("Dry", "stop")
    assert refused.choices[0].message.tool_calls is None
    assert "t available in this chat" in str((await world.provider.call(1)).body["messages"])
    both = (UseTool(name="weather", args={"city": "Aiur"}), UseTool(name="time", id="use-2"))
    world.script(Reply(tokens=(), calls=both))
    called = await world.ask(tools=[TIME, WEATHER], tool_choice=choice, response_format=None)
    assert [call.function.name for call in called.choices[0].message.tool_calls] == ["time"]
    world.script(Reply())
    await world.ask(tools=[WEATHER], tool_choice="none", response_format=None)
    assert "tools" not in (await world.provider.call(0)).body
    two = (UseTool(name="weather", args={"city": "Aiur"}), UseTool(name="weather", id="use-2"))
    world.script(Reply(calls=two))
    called = await world.ask(tools=[WEATHER], parallel_tool_calls=False, response_format=None)
    assert len(called.choices[0].message.tool_calls) == 1
    assert (await world.provider.call(0)).body["parallel_tool_calls"] is False


async def test_after_a_required_call_the_model_may_answer(world: World) -> None:
    tools: Any = {"tools": [WEATHER], "tool_choice": "required", "response_format": None}
    world.script(Reply(calls=(UseTool(name="todo_list"),)), Reply(tokens=("Done",)))
    headers = {"x-khala-tools": "todo_list", "x-autopilot": "true"}
    assert content(await world.ask(headers=headers, **tools)) == "Done"
    assert [call.body.get("tool_choice") for call in world.provider.calls] == ["required", "auto"]
    world.script(Reply(tokens=("No",)))
    with pytest.raises(openai.APIStatusError) as failed:
        await world.ask(**tools)
    assert failed.value.code == "tool_not_called"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "always"}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "time"}}}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "custom"}}, "tool_choice"),
        ({"tools": [WEATHER], "parallel_tool_calls": "no"}, "parallel_tool_calls"),
    ],
)
async def test_an_ill_formed_choice_of_tools_is_refused(world: World, fields: dict[str, Any], param: str) -> None:
    refused = await world.requester.post({"model": "khala", "messages": user("x")} | fields)
    assert (refused.status_code, refused.json()["error"]["param"].partition(".")[0]) == (400, param)


async def test_the_demo_model_calls_a_required_function(demo: InProcessServer) -> None:
    database = Database(demo.database_url)
    requester = await Requester.new(demo, database)
    called = await requester.ask("Hello", tools=[WEATHER], tool_choice="required")
    (call,) = called.choices[0].message.tool_calls
    assert json.loads(call.function.arguments) == {"city": "text"}
    await database.close()


async def test_options_of_sampling_go_to_the_provider_and_others_are_named(world: World) -> None:
    world.script(Reply())
    options: dict[str, Any] = {"temperature": 0.2, "stop": "END", "reasoning_effort": "low", "user": "u-1", "seed": 7}
    answer = await world.ask(response_format=None, **options)
    body = (await world.provider.call(0)).body
    assert {name: body[name] for name in options} == options | {"stop": ["END"]}
    assert answer.khala["ignored"] == []
    world.script(Reply())
    answer = await world.ask(MODELS[1], response_format=None, seed=7, temperature=0.5, stop=["END"])
    assert answer.khala["ignored"] == ["seed", "temperature"]
    body = (await world.provider.call(0)).body
    assert (body["stop_sequences"], body.get("temperature")) == (["END"], None)
    with pytest.raises(openai.BadRequestError) as refused:
        await world.ask(MODELS[1], response_format=None, logprobs=True)
    assert refused.value.param == "logprobs"


async def test_the_servers_instructions_come_first_on_request_only(world: World) -> None:
    messages: Any = [{"role": "developer", "content": "Be brief."}, *user("Where?")]
    prompts = []
    for headers in ({}, {"x-khala-instructions": "prepend"}):
        world.script(Reply())
        await world.ask(messages=messages, headers=headers, response_format=None)
        prompts.append((await world.provider.call(0)).body["messages"][0]["content"])
    assert prompts[0] == "Be brief."
    assert prompts[1] != prompts[0]
    assert prompts[1].endswith("\n\nBe brief.")


async def test_the_providers_context_error_is_passed_on_without_another_try(world: World) -> None:
    world.script(Reply(status=400, message="This model's maximum context length is 5 tokens."), Reply())
    with pytest.raises(openai.BadRequestError) as failed:
        await world.ask(response_format=None)
    assert (failed.value.code, len(world.provider.calls)) == ("context_exceeded", 1)


async def test_several_choices_are_answers_to_the_same_message(world: World) -> None:
    replies = [Reply(tokens=(word,), usage=(10, 1)) for word in ("one", "two", "three")]
    world.script(*replies)
    whole = await world.ask(n=3, response_format=None)
    assert [choice.index for choice in whole.choices] == [0, 1, 2]
    assert {choice.message.content for choice in whole.choices} == {"one", "two", "three"}
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (30, 3)
    thread = await world.requester.thread(whole.khala["threadId"])
    assert len(whole.khala["runIds"]) == 3
    assert thread[0]["role"] == "user"
    world.script(*replies[:2])
    body = {
        "model": "khala",
        "messages": user("Where?"),
        "n": 2,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    streams = [await world.requester.post(body, Idempotency_Key="several choices") for _ in range(2)]
    first, retried = (
        [json.loads(line[6:]) for line in one.text.splitlines() if line.startswith("data: {")] for one in streams
    )
    texts: dict[int, str] = {}
    for chunk in first:
        for choice in chunk["choices"]:
            texts[choice["index"]] = texts.get(choice["index"], "") + choice["delta"].get("content", "")
    assert (set(texts), set(texts.values())) == ({0, 1}, {"one", "two"})
    assert first[-1]["usage"]["completion_tokens"] == 2
    assert (first[0]["khala"], len(world.provider.calls)) == (retried[0]["khala"], 2)


async def test_several_choices_are_written_at_once_and_end_with_one_that_fails(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    http, headers = world.requester.inside.http, world.requester.person.headers
    thread_id = (await http.post("/api/threads", headers=headers)).json()["thread"]["id"]
    world.script(Reply(hang_after=1), Reply(hang_after=1))
    body = {"model": "khala", "messages": user("Where?"), "n": 2}
    named = {"x-thread-id": thread_id, "Idempotency-Key": "at once"}
    asking = asyncio.create_task(world.requester.post(body, **named))
    for number in range(2):
        await world.provider.call(number)  # Neither waits for the other.

    async def fail(*_: Any, **__: Any) -> None:
        raise Unavailable("The database is away.")

    monkeypatch.setattr("khala.store.threads.sends.regenerate", fail)
    assert (await world.requester.post(body, **named)).status_code == 503
    answers = [message for message in await world.requester.thread(thread_id) if message["role"] == "assistant"]
    assert [answer["status"] for answer in answers[-2:]] == ["streaming"] * 2, "they are the first request's"
    first, second = [answer["runId"] for answer in answers[-2:]]
    await http.post(f"/api/runs/{first}/cancel", headers=headers)
    refused = await asking
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "canceled")
    assert (await world.requester.ended(second))["status"] == "canceled"


async def test_more_choices_than_active_runs_are_refused_with_n_and_leave_none(world: World) -> None:
    world.script(*(Reply(hang_after=1) for _ in range(MAX_RUNS)))
    body = {"model": "khala", "messages": user("Where?"), "n": MAX_RUNS + 1}
    refused = await world.requester.post(body)
    assert (refused.status_code, refused.json()["error"]["message"][:28]) == (429, "n asks for 5 answers at once")
    thread_id = (await world.requester.get("/api/threads"))["items"][0]["id"]
    for message in (await world.requester.thread(thread_id))[1:]:
        assert (await world.requester.ended(message["runId"]))["status"] == "canceled"


async def test_log_probabilities_are_returned_and_streamed(world: World) -> None:
    def events(*tokens: str) -> bytes:
        made = []
        for token in tokens:
            top = [{"token": token, "logprob": -0.5}, {"token": "no", "logprob": -2.5}]
            content = [{"token": token, "logprob": -0.5, "bytes": list(token.encode()), "top_logprobs": top}]
            made.append({"choices": [{"delta": {"content": token}, "logprobs": {"content": content}}]})
        made.append({"choices": [{"delta": {}, "finish_reason": "stop"}]})
        return b"".join(b"data: %b\n\n" % json.dumps(one).encode() for one in made) + b"data: [DONE]\n\n"

    options: dict[str, Any] = {"logprobs": True, "top_logprobs": 2, "response_format": None}
    world.script(Reply(raw=events("Sha", "kuras")), Reply(raw=events("Sha", "kuras")))
    whole = await world.ask(**options)
    found = whole.choices[0].logprobs.content
    assert [(one.token, one.logprob, one.bytes) for one in found] == [
        ("Sha", -0.5, [83, 104, 97]),
        ("kuras", -0.5, [*b"kuras"]),
    ]
    assert [likely.token for likely in found[0].top_logprobs] == ["Sha", "no"]
    body = (await world.provider.call(0)).body
    assert (body["logprobs"], body["top_logprobs"]) == (True, 2)
    chunks = [chunk async for chunk in await world.ask(stream=True, **options)]
    streamed = [
        one
        for chunk in chunks
        for choice in chunk.choices
        for one in (choice.logprobs and choice.logprobs.content) or []
    ]
    assert streamed == found
    assert "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices) == "Shakuras"


async def test_an_option_that_the_provider_refuses_is_the_callers_error(world: World) -> None:
    world.script(Reply(status=400, message="Unsupported value: 'temperature'."))
    with pytest.raises(openai.BadRequestError, match="Unsupported value") as refused:
        await world.ask(temperature=0.5, response_format=None)
    assert refused.value.code == "option_refused"


@pytest.mark.parametrize("mode", [NativeOutput, ToolOutput])
async def test_pydantic_ai_gets_its_output_type_by_a_schema_and_by_a_required_call(
    demo: InProcessServer, mode: Any
) -> None:
    database = Database(demo.database_url)
    requester = await Requester.new(demo, database)
    provider = OpenAIProvider(base_url=f"{demo.url}/v1", api_key=requester.person.token)
    agent = Agent(OpenAIChatModel("khala", provider=provider), output_type=mode(City))
    assert isinstance((await agent.run("Where?")).output, City)
    await database.close()
