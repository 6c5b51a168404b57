"""OpenAI's own clients, unmodified, against Khala: each request becomes a durable run."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest
import pytest_asyncio

from khala.store.accounts import api_tokens
from khala.store.operations.verify import VerifyProgress, find_differences
from khala.store.postgres.database import Database
from tests.support import openai_node
from tests.support.client import text_of
from tests.support.in_process import InProcessServer, khala
from tests.support.mcp_server import PNG
from tests.support.openai_api import WEATHER, Requester, user
from tests.support.providers import Reply, serving
from tests.support.shared_server import shared
from tests.support.wires import UseTool

pytestmark = pytest.mark.asyncio(loop_scope="module")

CALL = '/text Let me see. /call weather {"city": "Aiur"} /say It is fine.'


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def server(postgres_url: str, template: str) -> AsyncIterator[InProcessServer]:
    async with shared(postgres_url, template) as inside:
        yield inside
        db = Database(inside.database_url)
        assert [found async for found in find_differences(db, VerifyProgress())] == []
        await db.close()


@pytest_asyncio.fixture(loop_scope="module")
async def requester(server: InProcessServer, store: Database) -> Requester:
    return await Requester.new(server, store)


def content(completion: Any) -> str:
    return str(completion.choices[0].message.content)


async def streamed(stream: Any) -> tuple[str, list[Any]]:
    chunks = [chunk async for chunk in stream]
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices), chunks


async def test_the_python_client_gets_a_completion(requester: Requester) -> None:
    completion = await requester.ask("/echo En taro Adun")
    assert content(completion) == "En taro Adun"
    assert (completion.object, completion.model) == ("chat.completion", "khala")
    assert completion.choices[0].finish_reason == "stop"
    assert completion.usage.total_tokens == completion.usage.prompt_tokens + completion.usage.completion_tokens
    assert completion.usage.completion_tokens == 3


async def test_the_python_client_gets_the_same_answer_as_a_stream(requester: Requester) -> None:
    options: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
    text, chunks = await streamed(await requester.ask("/words=400 /pace=0", **options))
    assert text == content(await requester.ask("/words=400 /pace=0"))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-2:] == [None, "stop"]
    assert (chunks[-1].choices, chunks[-1].usage.completion_tokens) == ([], 400)
    assert len({chunk.id for chunk in chunks}) == 1


async def test_the_unmodified_node_client_works(server: InProcessServer, requester: Requester) -> None:
    output = await openai_node.talk(f"{server.url}/v1", requester.person.token)
    assert output["models"] == ["khala", "demo"]
    assert output["whole"] == "En taro Adun"
    assert output["streamed"] == " ".join(f"word{number}" for number in range(1, 51))
    assert output["usage"]["completion_tokens"] == 50
    assert output["call"] == {"name": "weather", "args": {"city": "Aiur"}, "why": "tool_calls"}
    assert (output["answer"], output["agent"]) == ("Fine.", "Done.")
    assert output["error"] == {"status": 404, "code": "model_not_found", "param": "model"}


async def test_a_completion_request_makes_a_thread_that_can_be_followed_and_read(requester: Requester) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Who are you?"},
        {"role": "assistant", "content": "Zeratul."},
        {"role": "developer", "content": "Be kind."},
        {"role": "user", "content": "/echo Adun toridas"},
    ]
    completion = await requester.ask("", messages=messages)
    thread_id = completion.khala["threadId"]
    found = [(message["role"], text_of(message)) for message in await requester.thread(thread_id)]
    assert found == [
        ("system", "Be brief.\n\nBe kind."),
        ("user", "Who are you?"),
        ("assistant", "Zeratul."),
        ("user", "/echo Adun toridas"),
        ("assistant", "Adun toridas"),
    ]
    assert (await requester.get(f"/api/threads/{thread_id}"))["thread"]["title"] == "Who are you?"
    assert thread_id in [item["id"] for item in (await requester.get("/api/threads"))["items"]]


async def test_a_response_names_its_thread_and_run_and_the_thread_can_be_continued(requester: Requester) -> None:
    first = await requester.post({"model": "khala", "messages": user("/echo one")})
    thread_id, run_id = first.headers["x-thread-id"], first.headers["x-run-id"]
    assert (await requester.get(f"/api/runs/{run_id}"))["status"] == "final"
    messages = [*user("/echo one"), {"role": "assistant", "content": "one"}, *user("/echo two")]
    second = await requester.ask("", messages=messages, headers={"x-thread-id": thread_id})
    assert second.khala["threadId"] == thread_id
    assert [text_of(message) for message in await requester.thread(thread_id)] == [
        "/echo one",
        "one",
        "/echo two",
        "two",
    ]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_function_is_called_by_the_client_and_the_answer_continues(requester: Requester, stream: bool) -> None:
    messages = user(CALL)
    if stream:
        text, chunks = await streamed(await requester.ask("", messages=messages, tools=[WEATHER], stream=True))
        calls = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
        reason = chunks[-1].choices[0].finish_reason
    else:
        completion = await requester.ask("", messages=messages, tools=[WEATHER])
        text, reason = content(completion), completion.choices[0].finish_reason
        calls = completion.choices[0].message.tool_calls
    assert (text, reason) == ("Let me see.", "tool_calls")
    (call,) = calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"city": "Aiur"})
    used = {"id": call.id, "type": "function", "function": call.function.model_dump()}
    messages += [
        {"role": "assistant", "content": text, "tool_calls": [used]},
        {"role": "tool", "tool_call_id": call.id, "content": "sunny"},
    ]
    answer = await requester.ask("", messages=messages, tools=[WEATHER])
    assert (content(answer), answer.choices[0].finish_reason) == ("It is fine.", "stop")
    before = (await requester.thread(answer.khala["threadId"]))[1]
    assert [block["type"] for block in before["content"]] == ["text", "tool"]
    assert (before["content"][1]["state"], before["content"][1]["output"]) == ("completed", "sunny")


async def test_in_a_continued_thread_tool_outcomes_go_to_the_answer_that_called(requester: Requester) -> None:
    completion = await requester.ask(CALL, tools=[WEATHER])
    (call,) = completion.choices[0].message.tool_calls
    thread = {"x-thread-id": completion.khala["threadId"]}
    back = [{"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
    used = [{"id": call.id, "type": "function", "function": call.function.model_dump()}]
    messages = [*user(CALL), {"role": "assistant", "content": None, "tool_calls": used}, *back]
    answer = await requester.ask("", messages=messages, tools=[WEATHER], headers=thread)
    assert content(answer) == "It is fine."
    question, waited, settled, last = await requester.thread(completion.khala["threadId"])
    assert (waited["parentId"], settled["parentId"], last["parentId"]) == (
        question["id"],
        question["id"],
        settled["id"],
    )
    with pytest.raises(openai.BadRequestError, match="no such call"):
        await requester.ask("", messages=messages, tools=[WEATHER], headers=thread)


async def test_a_provider_gets_the_history_and_the_outcomes_unchanged(database_url: str) -> None:
    long = "cloudy " * 1000
    messages = [
        {"role": "system", "content": "Be brief."},
        *user("What is the weather?"),
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": f"c{number}",
                    "type": "function",
                    "function": {"name": "weather", "arguments": '{"city": "Aiur"}'},
                }
                for number in (1, 2)
            ],
        },
        {"role": "tool", "tool_call_id": "c2", "content": "sunny, sk-abcdefghijklmnopqrstuvwxyz"},
        {"role": "tool", "tool_call_id": "c1", "content": long},
    ]
    calls = Reply(calls=(UseTool(name="weather", args={"city": "Shakuras"}),))
    async with serving(Reply(tokens=("Fine", ".")), calls) as provider:
        env: dict[str, Any] = {
            "KHALA_MODEL": "openai:local",
            "OPENAI_BASE_URL": f"{provider.url}/v1",
            "OPENAI_API_KEY": "k",
        }
        async with khala(database_url, **env) as inside:
            db = Database(database_url)
            requester = await Requester.new(inside, db)
            assert content(await requester.ask("", messages=messages, tools=[WEATHER], max_tokens=77)) == "Fine."
            completion = await requester.ask("And there?", tools=[WEATHER])
            await db.close()
        body = (await provider.call(0)).body
    assert [message["role"] for message in body["messages"]] == ["system", "user", "assistant", "tool", "tool"]
    assert "Be brief." in body["messages"][0]["content"]
    assert [message["content"] for message in body["messages"][3:]] == [long, "sunny, sk-abcdefghijklmnopqrstuvwxyz"]
    assert [tool["function"]["name"] for tool in body["tools"]] == ["weather"]
    assert 77 in (body.get("max_tokens"), body.get("max_completion_tokens"))
    (call,) = completion.choices[0].message.tool_calls
    assert json.loads(call.function.arguments) == {"city": "Shakuras"}


async def test_instructions_are_kept_when_a_long_history_is_shortened_on_request(database_url: str) -> None:
    earlier = [{"role": role, "content": f"{role} {'word ' * 900}"} for _ in range(6) for role in ("user", "assistant")]
    messages = [{"role": "system", "content": "Answer in Khalani."}, *earlier, *user("And now?")]
    async with serving() as provider:
        env: dict[str, Any] = {"KHALA_MODEL": "openai:local", "OPENAI_BASE_URL": f"{provider.url}/v1"}
        env |= {"OPENAI_API_KEY": "k", "KHALA_CONTEXT_TOKENS": "2000"}
        async with khala(database_url, **env) as inside:
            db = Database(database_url)
            requester = await Requester.new(inside, db)
            with pytest.raises(openai.BadRequestError, match="longer than the limit") as refused:
                await requester.ask("", messages=messages)
            assert (refused.value.code, provider.calls) == ("context_exceeded", [])
            await requester.ask("", messages=messages, headers={"x-khala-context": "shorten"})
            await db.close()
        prompt = provider.calls[-1].body["messages"]
    assert "Answer in Khalani." in prompt[0]["content"]
    assert (prompt[-1]["role"], prompt[-1]["content"]) == ("user", "And now?")
    assert len(prompt) < len(messages)


async def test_large_arguments_are_returned_whole(requester: Requester) -> None:
    city = "Aiur " * 2000
    completion = await requester.ask(f"/call weather {json.dumps({'city': city})}", tools=[WEATHER])
    assert json.loads(completion.choices[0].message.tool_calls[0].function.arguments) == {"city": city}


async def test_built_in_tools_are_offered_only_on_request(requester: Requester) -> None:
    wish = '/call todo_add {"text": "Warp in"} /call todo_list {} /say Over.'
    plain = await requester.ask(wish)
    assert "Stopped after 0 rounds." in content(plain)
    named = await requester.ask(wish, headers={"x-khala-tools": "todo_add"})
    states = [
        message["state"]
        for message in (await requester.thread(named.khala["threadId"]))[-1]["content"]
        if "state" in message
    ]
    assert states == ["completed", "failed"]
    assert content(named) == "Over."


@pytest.mark.parametrize("stream", [False, True])
async def test_the_python_client_runs_three_steps_in_one_request(requester: Requester, stream: bool) -> None:
    wish = '/call todo_list {} /then /call todo_add {"text": "Warp in"} /then /call todo_list {} /say All done.'
    headers = {"x-autopilot": "true", "x-autopilot-events": "false"}
    if stream:
        text, chunks = await streamed(await requester.ask(wish, stream=True, headers=headers))
        assert chunks[-1].choices[0].finish_reason == "stop"
    else:
        completion = await requester.ask(wish, headers=headers)
        text = content(completion)
        assert (completion.khala["steps"], completion.khala["reason"]) == (3, "stop")
    assert text == "All done."


async def test_text_between_steps_is_separate_in_a_stream_and_left_out_of_a_completion(
    requester: Requester,
) -> None:
    wish = "/text Looking. /call todo_list {} /say All done."
    headers = {"x-autopilot": "true", "x-autopilot-events": "false"}
    assert (await streamed(await requester.ask(wish, stream=True, headers=headers)))[0] == "Looking.\n\nAll done."
    assert content(await requester.ask(wish, headers=headers)) == "All done."


async def test_an_image_is_stored_and_sent_to_the_model(requester: Requester) -> None:
    url = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
    parts = [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": url}}]
    history = [{"role": "user", "content": parts}, {"role": "assistant", "content": "A dot."}]
    completion = await requester.ask("", messages=[*history, {"role": "user", "content": parts}])
    assert "image/png" in content(completion)
    messages = await requester.thread(completion.khala["threadId"])
    for message in (messages[0], messages[2]):
        (blob,) = [block["blob"] for block in message["content"] if block["type"] == "file"]
        found = await requester.inside.http.get(f"/api/blobs/{blob['blobId']}", headers=requester.person.headers)
        assert found.content == PNG


async def test_the_maximum_of_output_tokens_is_enforced(requester: Requester) -> None:
    completion = await requester.ask("/words=50 /pace=0", max_tokens=3)
    assert content(completion).strip() == "word1 word2 word3"
    assert completion.choices[0].finish_reason == "length"


async def test_the_allowed_models_are_listed_and_found(requester: Requester) -> None:
    assert [model.id async for model in requester.client.models.list()] == ["khala", "demo"]
    assert (await requester.client.models.retrieve("demo")).id == "demo"
    with pytest.raises(openai.NotFoundError) as refused:
        await requester.client.models.retrieve("openai:gpt-none")
    assert refused.value.code == "model_not_found"


REMOTE = [{"type": "image_url", "image_url": {"url": "https://127.0.0.1/a.png"}}]
BROKEN = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,???"}}]
NO_IMAGE = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAECAw=="}}]
SOUND = [{"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}]
CALLED = {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f"}}]}


def function_tool(**fields: Any) -> dict[str, Any]:
    """A function of the caller."""
    return {"type": "function", "function": {"name": "f"} | fields}


BAD: dict[str, tuple[dict[str, Any], str | None]] = {
    "no messages": ({"messages": []}, "messages"),
    "an unknown role": ({"messages": [{"role": "function", "content": "x"}]}, "messages[0].role"),
    "nothing said": ({"messages": user(" ")}, "messages"),
    "an answer last": ({"messages": [*user("x"), {"role": "assistant", "content": "y"}]}, "messages"),
    "only instructions": ({"messages": [{"role": "system", "content": "x"}]}, "messages"),
    "an outcome without a call": (
        {"messages": [*user("x"), {"role": "tool", "tool_call_id": "c", "content": "y"}]},
        "messages[1].tool_call_id",
    ),
    "a call without an outcome": ({"messages": [*user("x"), CALLED, *user("y")]}, "messages"),
    "a NUL": ({"messages": user("a\0b")}, "messages[0].content"),
    "an image of this machine": ({"messages": [{"role": "user", "content": REMOTE}]}, "messages[0].content[0]"),
    "an image that is none": ({"messages": [{"role": "user", "content": NO_IMAGE}]}, "messages[0].content[0]"),
    "broken base64": ({"messages": [{"role": "user", "content": BROKEN}]}, "messages[0].content[0]"),
    "sound": ({"messages": [{"role": "user", "content": SOUND}]}, "messages[0].content[0]"),
    "no choice": ({"n": 0}, "n"),
    "too many choices": ({"n": 9}, "n"),
    "a form": ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format.json_schema"),
    "too many stops": ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
    "an empty stop": ({"stop": ""}, "stop"),
    "a NUL in a stop": ({"stop": "\0"}, "stop"),
    "a high temperature": ({"temperature": 2.1}, "temperature"),
    "a text as temperature": ({"temperature": "hot"}, "temperature"),
    "a share over one": ({"top_p": 1.5}, "top_p"),
    "a low penalty": ({"presence_penalty": -3}, "presence_penalty"),
    "an unknown effort": ({"reasoning_effort": "extreme"}, "reasoning_effort"),
    "top log probabilities alone": ({"top_logprobs": 2}, "top_logprobs"),
    "log probabilities of a model without": ({"logprobs": True}, "logprobs"),
    "a number in metadata": ({"metadata": {"a": 1}}, "metadata[...]"),
    "a choice of tool": ({"tool_choice": "required"}, "tool_choice"),
    "a name that is none": ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
    "the same name twice": ({"tools": [WEATHER, WEATHER]}, "tools"),
    "a name and a line's end": ({"tools": [function_tool(name="a\n")]}, "tools[0].function.name"),
    "a NUL in a description": ({"tools": [function_tool(description="\0")]}, "tools[0].function"),
    "a NUL in a schema": ({"tools": [function_tool(parameters={"type": "object", "\0": 1})]}, "tools[0].function"),
    "no schema": ({"tools": [function_tool(parameters={"type": 1})]}, "tools[0].function.parameters"),
    "a schema of no object": (
        {"tools": [WEATHER, function_tool(parameters={"type": "string"})]},
        "tools[1].function.parameters",
    ),
    "no model": ({"model": 1}, "model"),
}


@pytest.mark.parametrize("name", BAD)
async def test_an_unsupported_request_is_refused_and_leaves_no_thread(requester: Requester, name: str) -> None:
    body, param = BAD[name]
    refused = await requester.post({"model": "khala", "messages": user("x")} | body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param), refused.text
    assert set(refused.json()["error"]) == {"message", "type", "code", "param"}
    assert (refused.json()["error"]["type"], refused.json()["error"]["code"]) == (
        "invalid_request_error",
        "invalid_input",
    )
    assert (await requester.get("/api/threads"))["items"] == []


@pytest.mark.parametrize(
    ("headers", "param"),
    [
        ({"x-thread-id": "none"}, "x-thread-id"),
        ({"x-autopilot": "perhaps"}, "x-autopilot"),
        ({"x-budget-usd": "-1"}, "x-budget-usd"),
        ({"x-budget-tokens": "many"}, "x-budget-tokens"),
        ({"x-budget-tokens": "9" * 15}, "x-budget-tokens"),
        ({"x-budget-seconds": "nan"}, "x-budget-seconds"),
        ({"x-budget-tool-calls": "-1"}, "x-budget-tool-calls"),
    ],
)
async def test_invalid_headers_are_refused(requester: Requester, headers: dict[str, str], param: str) -> None:
    refused = await requester.post({"model": "khala", "messages": user("x")}, **headers)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


async def test_unsupported_options_without_effect_on_the_result_are_ignored(requester: Requester) -> None:
    odd: dict[str, Any] = {
        "temperature": 0.1,
        "top_p": 0.5,
        "seed": 1,
        "user": "somebody",
        "logit_bias": {"1": 1},
        "n": 1,
        "stop": None,
    }
    answer = await requester.ask("/echo yes", **odd, response_format={"type": "text"}, store=True)
    assert (content(answer), answer.usage.prompt_tokens_details.cached_tokens) == ("yes", 0)
    assert content(await requester.ask("/echo yes or no", stop=[" or"])) == "yes"
    empty = (await requester.ask("/echo or not", stop=["or"])).choices[0]
    assert (empty.message.content, empty.finish_reason) == ("", "stop"), "the stop text was the first"


ODD: dict[str, Any] = {
    "temperature": 0, "parallel_tool_calls": False, "seed": 1, "metadata": {"a": "b"}, "logit_bias": {}, "user": None,
    "n": 1, "stop": None, "store": True,
    "stream_options": {"include_usage": False, "include_obfuscation": False},
    "tools": [{"type": "function", "function": {"name": "f", "cached": True}}],
    "messages": [{"role": "user", "name": "Vorazun", "content": "/echo yes"}],
    "max_tokens": 50, "max_completion_tokens": 60,
}  # fmt: skip
IGNORED = [
    "messages[0].name", "stream_options.include_obfuscation", "tools[0].function.cached", "temperature",
    "seed", "store", "max_tokens",
]  # fmt: skip
"""What of it changes nothing; what is null or empty asks for nothing."""


async def test_a_response_lists_the_ignored_options(requester: Requester) -> None:
    body = {"model": "khala", **ODD}
    whole = (await requester.post(body)).json()
    assert sorted(whole["khala"]["ignored"]) == sorted(IGNORED)
    async with requester.stream("/echo yes", x_autopilot="false") as plain:
        first, *rest = await plain.all()
    thread_id, run_id = (plain.response.headers[name] for name in ("x-thread-id", "x-run-id"))
    assert first["khala"] == {"threadId": thread_id, "runId": run_id, "ignored": []}
    assert all("khala" not in chunk for chunk in rest)


@pytest.mark.parametrize("autopilot", [False, True])
async def test_a_stream_lists_the_ignored_options_at_its_start(requester: Requester, autopilot: bool) -> None:
    body = {"model": "khala", **ODD, "stream": True}
    answer = await requester.post(body, x_autopilot=str(autopilot).lower())
    first = json.loads(answer.text.partition("\n")[0].removeprefix("data: "))
    assert sorted((first if autopilot else first["khala"])["ignored"]) == sorted(IGNORED)


async def test_the_python_client_shows_ignored_options(requester: Requester) -> None:
    completion = await requester.ask("/echo yes", temperature=0.5)
    assert completion.khala["ignored"] == ["temperature"]
    assert (await requester.ask("/echo yes", max_tokens=50, n=1)).khala["ignored"] == []


async def test_instructions_that_a_continued_thread_ignores_are_listed(requester: Requester) -> None:
    first = await requester.ask("/echo one")
    messages = [{"role": "system", "content": "Be brief."}, *user("/echo one"), *user("/echo two")]
    again = await requester.ask("", messages=messages, headers={"x-thread-id": first.khala["threadId"]})
    assert again.khala["ignored"] == ["messages[0]"]
    assert (await requester.ask("", messages=messages)).khala["ignored"] == []


async def test_only_the_first_of_very_many_ignored_options_are_listed(requester: Requester) -> None:
    messages = [{"role": "user", "name": "V", "content": "/echo yes"} for _ in range(100)]
    answer = await requester.ask("", messages=messages)
    assert answer.khala["ignored"] == [f"messages[{place}].name" for place in range(64)]


async def test_each_error_is_the_one_that_the_client_knows(
    server: InProcessServer, store: Database, requester: Requester
) -> None:
    nobody = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="khala_none", max_retries=0)
    with pytest.raises(openai.AuthenticationError):
        await nobody.models.list()
    bare = await server.http.post("/v1/chat/completions", json={"model": "khala", "messages": user("x")})
    assert (bare.status_code, bare.json()["error"]["type"]) == (401, "authentication_error")
    keyed = {"X-Anon-Key": "k" * 40}
    bare = await server.http.post("/v1/chat/completions", json={"model": "khala", "messages": user("x")}, headers=keyed)
    assert bare.status_code == 401
    reader = await Requester.new(server, store, scopes=("read",))
    assert [model.id async for model in reader.client.models.list()]
    with pytest.raises(openai.PermissionDeniedError):
        await reader.ask("x")
    with pytest.raises(openai.NotFoundError) as unknown:
        await requester.ask("x", model="openai:gpt-none")
    assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
    foreign = (await requester.ask("/echo x")).khala["threadId"]
    with pytest.raises(openai.PermissionDeniedError):
        await (await Requester.new(server, store)).ask("x", headers={"x-thread-id": foreign})
    large = await requester.post({"model": "khala", "messages": user("x" * (9 << 20))})
    assert (large.status_code, large.json()["error"]["code"]) == (413, "payload_too_large")
    wordy = await requester.post({"model": "khala", "messages": [*user("x" * (1 << 20)), *user("y")]})
    assert (wordy.status_code, wordy.json()["error"]["code"]) == (413, "payload_too_large")
    for method, path, status in (("GET", "/v1/nothing", 404), ("DELETE", "/v1/models", 405)):
        odd = await server.http.request(method, path, headers=requester.person.headers)
        assert (odd.status_code, set(odd.json()["error"])) == (status, {"message", "type", "code", "param"})
    form = await server.http.post("/v1/chat/completions", data={"model": "x"}, headers=requester.person.headers)
    assert (form.status_code, form.json()["error"]["code"]) == (415, "unsupported_media_type")


async def test_another_sites_page_is_refused_and_our_own_is_accepted_by_its_session(
    server: InProcessServer, requester: Requester
) -> None:
    body = {"model": "khala", "messages": user("/echo yes")}
    refused = await requester.post(body, sec_fetch_site="cross-site")
    assert (refused.status_code, refused.json()["error"]["type"]) == (403, "permission_error")
    account = {"email": "selendis@example.com", "password": "en taro tassadar"}
    async with httpx.AsyncClient(base_url=server.url, timeout=30) as browser:
        (await browser.post("/api/auth/register", json=account)).raise_for_status()
        answer = await browser.post("/v1/chat/completions", json=body, headers={"Sec-Fetch-Site": "same-origin"})
    assert answer.json()["choices"][0]["message"]["content"] == "yes"


async def test_a_caller_that_loses_access_receives_no_more_of_the_stream(
    server: InProcessServer, store: Database, requester: Requester
) -> None:
    async with requester.stream("/words=500 /pace=50", x_autopilot="false") as stream:
        async for chunk in stream:
            if chunk["choices"][0]["delta"].get("content"):
                break
        await api_tokens.revoke(store, requester.person.token_id, requester.person.caller)
        chunks = await stream.all()
    assert (chunks[-1]["error"]["code"], stream.done) == ("forbidden", False)


async def test_call_ids_that_a_model_reuses_are_made_distinct(requester: Requester) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{"}}
    rounds: list[Any] = []
    for outcome in ("sunny", "cloudy"):
        rounds.append({"role": "assistant", "content": "", "tool_calls": [call]})
        rounds.append({"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": outcome}]})
    answer = await requester.ask("", messages=[*user("And?"), *rounds, *user("/echo yes")])
    (_, before, *_) = await requester.thread(answer.khala["threadId"])
    cards = [(block["toolCallId"], block["step"], block["output"], block["args"]) for block in before["content"]]
    assert cards == [("call_1", 1, "sunny", {"…": "{"}), ("call_1-1", 2, "cloudy", {"…": "{"})]


async def test_a_busy_thread_is_reported(requester: Requester) -> None:
    async with requester.stream("/words=500 /pace=20", x_autopilot="false") as stream:
        thread_id, run_id = stream.response.headers["x-thread-id"], stream.response.headers["x-run-id"]
        with pytest.raises(openai.ConflictError) as busy:
            await requester.ask("And?", headers={"x-thread-id": thread_id})
        assert busy.value.code == "run_active"
        await requester.inside.http.post(f"/api/runs/{run_id}/cancel", headers=requester.person.headers)
        chunks = await stream.all()
    assert (chunks[-1]["error"]["code"], stream.done) == ("canceled", False)


async def test_a_used_up_budget_is_reported_with_retry_after(database_url: str) -> None:
    async with khala(database_url, KHALA_USER_RUNS_PER_HOUR="1", KHALA_REQUESTS_PER_MINUTE="3") as inside:
        db = Database(database_url)
        requester = await Requester.new(inside, db)
        await requester.ask("/echo one")
        with pytest.raises(openai.RateLimitError) as spent:
            await requester.ask("/echo two")
        await db.close()
        assert spent.value.code == "budget_exhausted"
        assert int(spent.value.response.headers["retry-after"]) > 0
        assert len((await requester.get("/api/threads"))["items"]) == 1
        with pytest.raises(openai.RateLimitError) as hasty:
            await requester.ask("/echo three")
        assert (hasty.value.code, hasty.value.type) == ("rate_limited", "rate_limit_error")
        assert int(hasty.value.response.headers["retry-after"]) > 0


@pytest.mark.parametrize(
    ("wish", "status", "code"),
    [
        ("/fail=3 /words=9 /pace=0", 502, "connection_lost"),
        ("/ratelimit=1", 429, "rate_limited"),
        ("/empty", 502, "no_response"),
    ],
)
async def test_a_failed_answer_is_an_error_that_the_client_does_not_retry(
    requester: Requester, wish: str, status: int, code: str
) -> None:
    with pytest.raises(openai.APIStatusError) as failed:
        await requester.ask(wish)
    assert (failed.value.status_code, failed.value.code) == (status, code)
    assert failed.value.response.headers["x-should-retry"] == "false"


async def test_a_failing_stream_has_its_text_then_the_error_and_no_end(requester: Requester) -> None:
    async with requester.stream("/fail=3 /words=9 /pace=0", x_autopilot="false") as stream:
        chunks = await stream.all()
    assert not stream.done
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks[:-1]) == "word1 word2 word3 "
    assert chunks[-1]["error"]["code"] == "connection_lost"
    with pytest.raises(openai.APIError, match="lose the connection"):
        await streamed(await requester.ask("/fail=3 /words=9 /pace=0", stream=True))


async def test_a_budget_of_the_requests_own_ends_the_answer(requester: Requester) -> None:
    with pytest.raises(openai.RateLimitError) as spent:
        await requester.ask("/words=9000 /pace=0", headers={"x-budget-tokens": "300"})
    assert spent.value.code == "budget_exhausted"


async def send_and_disconnect(requester: Requester, *, stream: bool, **headers: str) -> str:
    """Send a request, and close the connection while the answer is written; returns the run's id."""
    wish = "/words=60 /pace=40"
    if stream:
        async with requester.stream(wish, x_autopilot="false", **headers) as events:
            async for _ in events:
                return str(events.response.headers["x-run-id"])
    body = {"model": "khala", "messages": user(wish)}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with httpx.AsyncClient(base_url=requester.inside.url, headers=requester.person.headers | named) as http:
        asking = asyncio.create_task(http.post("/v1/chat/completions", json=body))
        run_id = await until_begun(requester)
        asking.cancel()
        await asyncio.wait({asking})
    return run_id


async def until_begun(requester: Requester) -> str:
    """The run of the requester's only thread, once its answer has text."""
    async with asyncio.timeout(20):
        while True:
            for thread in (await requester.get("/api/threads"))["items"]:
                last = (await requester.thread(thread["id"]))[-1]
                if text_of(last).startswith("word1"):
                    return str(last["runId"])
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_run_continues_after_its_client_disconnects(requester: Requester, stream: bool) -> None:
    run_id = await send_and_disconnect(requester, stream=stream)
    run = await requester.ended(run_id)
    assert (run["status"], run["finish"]["reason"]) == ("final", "stop")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_run_is_canceled_by_a_disconnect_on_request(requester: Requester, stream: bool) -> None:
    run_id = await send_and_disconnect(requester, stream=stream, x_cancel_on_disconnect="true")
    run = await requester.ended(run_id)
    assert (run["status"], run["finish"]["reason"]) == ("canceled", "canceled")


async def test_the_feed_and_the_completion_stream_have_the_same_text(requester: Requester) -> None:
    """The page follows the thread's feed while the client reads its stream."""
    async with requester.stream("/words=40 /pace=200", x_autopilot="false") as stream:
        thread_id = stream.response.headers["x-thread-id"]
        chunks = await stream.all()
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks if chunk["choices"])
    assert text_of((await requester.thread(thread_id))[-1]) == text


async def test_a_request_without_a_body_is_refused(requester: Requester) -> None:
    refused = await requester.inside.http.post("/v1/chat/completions", headers=requester.person.headers)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_input")
