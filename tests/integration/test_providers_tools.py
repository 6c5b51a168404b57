"""Tools and files in the real providers' protocols: the models' calls, and the tools and outcomes sent to them."""

import base64
from typing import Any

import pytest

from khala.domain.parts import TokenUsage
from khala.domain.tools import ToolSpec
from khala.models.port import Completed, Prompt, PromptFile, PromptTurn, TextChunk, ToolOutcome, ToolUse
from khala.models.prompt_order import EMPTY_TEXT, MISSING_OUTCOME
from tests.support.provider_calls import PROMPT, ask, call_failure, calling, completed, each_protocol, event_text
from tests.support.providers import Reply, in_steps
from tests.support.wires import UseTool

SCHEMA = {
    "type": "object",
    "properties": {"text": {"type": "string"}, "times": {"type": "integer", "minimum": 1}},
    "required": ["text"],
}
ECHO = ToolSpec(name="echo", description="Says it again.", parameters=SCHEMA)
TOOLS = (
    ECHO,
    ToolSpec(name="files__read", description="Reads a file.", parameters={"type": "object", "properties": {}}),
)
ARGS: dict[str, Any] = {"text": 'a "quoted" žluťoučký\n👩‍👩‍👧 line', "deep": [{"a": None}], "n": 1.5}
PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(64))


def with_tools(*turns: PromptTurn, said: str = "") -> Prompt:
    return Prompt(system="Be brief.", turns=turns or PROMPT.turns, tools=TOOLS, partial_answer=said)


def step_of(*uses: ToolUse, text: str = "", failed: tuple[str, ...] = ()) -> tuple[PromptTurn, PromptTurn]:
    outcomes = (
        ToolOutcome(id=use.id, name=use.name, text=f"{use.name} did", ok=use.name not in failed) for use in uses
    )
    return PromptTurn(role="assistant", text=text, uses=uses), PromptTurn(role="tool", outcomes=tuple(outcomes))


def use(use_id: str, name: str = "echo", **args: object) -> ToolUse:
    return ToolUse(id=use_id, name=name, args=args)


async def request_body(protocol: str, prompt: Prompt) -> Any:
    """The body of the request for a prompt."""
    async with calling(protocol) as (model, server):
        await ask(model, prompt)
    return server.calls[0].body


@each_protocol
async def test_a_call_comes_at_the_end_with_its_arguments(protocol: str) -> None:
    reply = Reply(
        tokens=("Let me ", "see."), calls=(UseTool(name="echo", args=ARGS, piece=3, id="use-7"),), chunk_bytes=5
    )
    async with calling(protocol, reply) as (model, _):
        events = await ask(model, with_tools())
    assert event_text(events) == "Let me see."
    assert completed(events) == Completed(
        usage=TokenUsage(input_tokens=11, output_tokens=7),
        finish_reason="tool_calls",
        uses=(ToolUse(id="use-7", name="echo", args=ARGS),),
    )
    assert {type(event) for event in events[:-1]} == {TextChunk}


@each_protocol
async def test_calls_at_once_keep_their_order(protocol: str) -> None:
    calls = tuple(UseTool(name="echo", args={"text": str(number)}, id=f"use-{number}", piece=4) for number in range(40))
    async with calling(protocol, Reply(tokens=(), calls=calls)) as (model, _):
        end = completed(await ask(model, with_tools()))
    assert end.uses == tuple(ToolUse(id=call.id or "", name="echo", args=call.args) for call in calls)


@each_protocol
async def test_a_call_without_arguments_has_none(protocol: str) -> None:
    async with calling(protocol, Reply(tokens=(), calls=(UseTool(name="files__read"),))) as (model, _):
        end = completed(await ask(model, with_tools()))
    assert (end.uses[0].args, end.uses[0].problem) == ({}, None)


TEXTUAL = pytest.mark.parametrize("protocol", ["openai", "anthropic"])


@TEXTUAL
async def test_a_call_with_empty_argument_text_has_no_arguments(protocol: str) -> None:
    async with calling(protocol, Reply(tokens=(), calls=(UseTool(name="files__read", raw=""),))) as (model, _):
        end = completed(await ask(model, with_tools()))
    assert (end.uses[0].args, end.uses[0].problem) == ({}, None)


@TEXTUAL
@pytest.mark.parametrize(
    ("raw", "problem"),
    [('{"text": "a', "not valid JSON"), ("[1, 2]", "must be a JSON object"), ("{text}", "not valid JSON")],
)
async def test_invalid_arguments_are_a_problem_of_their_call(protocol: str, raw: str, problem: str) -> None:
    calls = (UseTool(name="echo", raw=raw, piece=2), UseTool(name="echo", args={"text": "b"}, id="use-2"))
    async with calling(protocol, Reply(tokens=(), calls=calls)) as (model, _):
        bad, good = completed(await ask(model, with_tools())).uses
    assert (bad.name, bad.args) == ("echo", {})
    assert problem in (bad.problem or "")
    assert good == ToolUse(id="use-2", name="echo", args={"text": "b"})


@each_protocol
async def test_calls_that_end_in_a_stop_are_calls(protocol: str) -> None:
    async with calling(protocol, Reply(calls=(UseTool(name="echo"),), finish="stop")) as (model, _):
        end = completed(await ask(model, with_tools()))
    assert (end.finish_reason, len(end.uses)) == ("tool_calls", 1)


@each_protocol
async def test_a_call_truncated_by_the_limit_is_dropped(protocol: str) -> None:
    async with calling(protocol, Reply(calls=(UseTool(name="echo"),), finish="length")) as (model, _):
        end = completed(await ask(model, with_tools()))
    assert (end.finish_reason, end.uses) == ("length", ())


@each_protocol
async def test_a_finish_reason_of_tool_calls_without_a_call_ends_the_answer(protocol: str) -> None:
    async with calling(protocol, Reply(finish="tool_calls")) as (model, _):
        assert completed(await ask(model, with_tools())).finish_reason == "stop"


@pytest.mark.parametrize(("protocol", "use_id"), [("openai", None), ("openai", "same"), ("google", None)])
async def test_ids_are_unique_if_the_provider_gives_none(protocol: str, use_id: str | None) -> None:
    calls = tuple(UseTool(name="echo", args={"text": str(number)}, id=use_id) for number in range(3))
    async with calling(protocol, Reply(tokens=(), calls=calls)) as (model, _):
        uses = completed(await ask(model, with_tools())).uses
    assert [use.args["text"] for use in uses] == ["0", "1", "2"]
    assert len({use.id for use in uses}) == 3
    assert all(use.id for use in uses)


@each_protocol
async def test_a_connection_lost_amid_calls_is_retryable(protocol: str) -> None:
    async with calling(protocol, Reply(tokens=(), calls=(UseTool(name="echo"),), drop_after=0)) as (model, _):
        failure, _ = await call_failure(model)
    assert (failure.code, failure.retryable, failure.midstream) == ("connection_lost", True, False)


@each_protocol
async def test_usage_is_estimated_with_tools_and_calls(protocol: str) -> None:
    reply = Reply(tokens=(), calls=(UseTool(name="echo", args={"text": "12345678"}),), usage=None)
    async with calling(protocol, reply) as (model, _):
        end = completed(await ask(model, with_tools()))
        assert model.reads_tools
    assert end.estimated
    assert end.usage.output_tokens == 1 + 5
    assert end.usage.input_tokens > 60


async def test_openai_gets_the_tools_in_its_format() -> None:
    body = await request_body("openai", with_tools())
    assert body["tools"][0] == {
        "type": "function",
        "function": {"name": "echo", "description": "Says it again.", "parameters": SCHEMA},
    }
    assert body["tool_choice"] == "auto"


async def test_anthropic_gets_the_tools_in_its_format() -> None:
    body = await request_body("anthropic", with_tools())
    assert [tool["name"] for tool in body["tools"]] == ["echo", "files__read"]
    assert body["tools"][0]["input_schema"] == SCHEMA
    assert body["tools"][0]["description"] == "Says it again."
    assert "thinking" not in body


async def test_google_gets_the_tools_in_its_format() -> None:
    body = await request_body("google", with_tools())
    declared = body["tools"][0]["functionDeclarations"]
    assert [tool["name"] for tool in declared] == ["echo", "files__read"]
    assert declared[0]["parameters_json_schema"] == SCHEMA
    assert body["toolConfig"]["functionCallingConfig"]["mode"] == "AUTO"


@each_protocol
async def test_without_tools_the_request_has_no_tool_fields(protocol: str) -> None:
    body = await request_body(protocol, PROMPT)
    assert not body.get("tools")
    assert "toolConfig" not in body


ROUNDS = (
    PromptTurn(role="user", text="Do it."),
    *step_of(use("a!", text="1"), use("a!", "broken name!", n=2), text="First.", failed=("broken name!",)),
    *step_of(use("a!", text="3")),
    PromptTurn(role="user", text="Hurry."),
)


async def test_openai_gets_calls_and_outcomes_in_its_format() -> None:
    messages = (await request_body("openai", with_tools(*ROUNDS)))["messages"]
    assert [message["role"] for message in messages] == [
        *("system", "user", "assistant", "tool", "tool", "assistant", "tool", "user")
    ]
    assert messages[2]["content"] == "First."
    assert messages[2]["tool_calls"] == [
        {"id": "call_1", "type": "function", "function": {"name": "echo", "arguments": '{"text":"1"}'}},
        {"id": "call_2", "type": "function", "function": {"name": "broken_name_", "arguments": '{"n":2}'}},
    ]
    assert messages[3] == {"role": "tool", "tool_call_id": "call_1", "content": "echo did"}
    assert messages[4] == {"role": "tool", "tool_call_id": "call_2", "content": '{"error":"broken name! did"}'}
    assert (messages[5]["tool_calls"][0]["id"], messages[6]["tool_call_id"]) == ("call_3", "call_3")


async def test_anthropic_gets_calls_and_outcomes_in_its_format() -> None:
    messages = (await request_body("anthropic", with_tools(*ROUNDS)))["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "user", "assistant", "user"]
    assert messages[1]["content"] == [
        {"type": "text", "text": "First."},
        {"type": "tool_use", "id": "call_1", "name": "echo", "input": {"text": "1"}},
        {"type": "tool_use", "id": "call_2", "name": "broken_name_", "input": {"n": 2}},
    ]
    results = [(part["tool_use_id"], part["is_error"], part["content"][0]["text"]) for part in messages[2]["content"]]
    assert results == [("call_1", False, "echo did"), ("call_2", True, "broken name! did")]
    assert [part["type"] for part in messages[3]["content"]] == ["tool_use"]
    assert [part["type"] for part in messages[4]["content"]] == ["tool_result", "text"]


async def test_google_gets_calls_and_outcomes_in_its_format() -> None:
    contents = (await request_body("google", with_tools(*ROUNDS)))["contents"]
    assert [content["role"] for content in contents] == ["user", "model", "user", "model", "user", "user"]
    text, first, second = contents[1]["parts"]
    assert text == {"text": "First."}
    assert first["functionCall"] == {"id": "call_1", "name": "echo", "args": {"text": "1"}}
    # Newer Gemini models refuse a turn's first call without a signature; this is the value for histories without one.
    assert base64.b64decode(first["thoughtSignature"]) == b"skip_thought_signature_validator"
    assert "thoughtSignature" not in second
    assert [part["functionResponse"]["response"] for part in contents[2]["parts"]] == [
        {"return_value": "echo did"},
        {"error": "broken name! did"},
    ]
    assert contents[5]["parts"] == [{"text": "Hurry."}]


@each_protocol
async def test_an_answer_interrupted_after_its_tools_continues(protocol: str) -> None:
    body = str(await request_body(protocol, with_tools(*ROUNDS[:3], said="The answer is fo")))
    assert body.index("echo did") < body.index("The answer is fo") < body.index("Go on from exactly")


@each_protocol
async def test_only_pairs_of_call_and_outcome_are_sent(protocol: str) -> None:
    lost = PromptTurn(role="tool", outcomes=(ToolOutcome(id="gone", name="echo", text="left behind", ok=True),))
    half = PromptTurn(role="assistant", uses=(use("one", text="interrupted"),))
    body = str(
        await request_body(protocol, with_tools(lost, PromptTurn(role="user", text="Do it."), half, PROMPT.turns[0]))
    )
    assert "left behind" not in body
    assert body.index("interrupted") < body.index(MISSING_OUTCOME) < body.index("One?")


@each_protocol
async def test_an_empty_outcome_is_sent_as_words(protocol: str) -> None:
    used = PromptTurn(role="assistant", uses=(use("a"),))
    nothing = PromptTurn(role="tool", outcomes=(ToolOutcome(id="a", name="echo", text=" \n", ok=True),))
    assert EMPTY_TEXT in str(await request_body(protocol, with_tools(PROMPT.turns[0], used, nothing)))


@each_protocol
async def test_blank_text_before_calls_is_not_sent(protocol: str) -> None:
    blank = PromptTurn(role="assistant", text="\n\n"), PromptTurn(role="assistant", text="\n \n", uses=(use("a"),))
    body = str(await request_body(protocol, with_tools(PROMPT.turns[0], *blank)))
    assert "\\n" not in body
    assert "call_1" in body


FILES = (
    PromptFile(name="cat.png", media_type="image/png", data=PNG),
    PromptFile(name="paper.pdf", media_type="application/pdf", data=b"%PDF-1.7 \0\xff"),
    PromptFile(name="notes.md", media_type="text/markdown; charset=utf-8", data="žluť".encode()),
    PromptFile(name="x.bin", media_type="application/octet-stream", data=b"\0\1"),
)


def all_objects(value: Any) -> list[Any]:
    """Every object in a body."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [
        *([value] if isinstance(value, dict) else []),
        *(found for element in inner for found in all_objects(element)),
    ]


@each_protocol
async def test_files_come_before_the_words_about_them(protocol: str) -> None:
    body = await request_body(protocol, with_tools(PromptTurn(role="user", text="What is all this?", files=FILES)))
    text = str(body).replace("-", "+").replace("_", "/")
    places = ["cat.png", base64.b64encode(PNG).decode(), "paper.pdf", "notes.md", "žluť", "x.bin", "What is all this?"]
    assert [text.index(place) for place in places] == sorted(text.index(place) for place in places)
    assert "[File 'x.bin' (application/octet-stream, 2 bytes): not readable as text]" in str(body)


async def test_each_protocol_encodes_images_in_its_format() -> None:
    prompt = with_tools(PromptTurn(role="user", files=FILES[:2]))
    png, pdf = (base64.b64encode(file.data).decode() for file in FILES[:2])
    openai, anthropic, google = [
        all_objects(await request_body(protocol, prompt)) for protocol in ("openai", "anthropic", "google")
    ]
    assert {"url": f"data:image/png;base64,{png}"} in openai
    assert {"file_data": f"data:application/pdf;base64,{pdf}", "filename": "filename.pdf"} in openai
    assert {"type": "base64", "media_type": "image/png", "data": png} in anthropic
    assert {"type": "base64", "media_type": "application/pdf", "data": pdf} in anthropic
    inline = [found for found in google if "mime_type" in found]
    assert [found["mime_type"] for found in inline] == ["image/png", "application/pdf"]
    assert base64.urlsafe_b64decode(inline[0]["data"]) == PNG


@each_protocol
async def test_a_refusal_mentions_capabilities_that_the_model_may_lack(protocol: str) -> None:
    async with calling(protocol, Reply(status=400, message="no images here")) as (model, _):
        async with calling(protocol, Reply(status=400, message="no")) as (plain, _):
            failure, _ = await call_failure(plain)
        assert "Perhaps" not in failure.message
        with pytest.raises(Exception, match=r"This model may not be able to read these files or use tools\.") as caught:
            await ask(model, with_tools(PromptTurn(role="user", text="Look!", files=FILES[:1])))
    assert getattr(caught.value, "code", None) == "refused"


@each_protocol
async def test_a_scripted_provider_counts_the_steps_of_the_last_question(protocol: str) -> None:
    replies = Reply(tokens=(), calls=(UseTool(name="echo", id="a"),)), Reply(tokens=("Done.",))
    async with calling(protocol) as (model, server):
        server.default = in_steps(*replies)
        for _ in range(2):
            turns = [*PROMPT.turns]
            end = completed(await ask(model, with_tools(*turns)))
            turns += step_of(*end.uses)
            assert event_text(await ask(model, with_tools(*turns))) == "Done."
            turns += PromptTurn(role="assistant", text="Done."), PromptTurn(role="user", text="Again!")
            assert completed(await ask(model, with_tools(*turns))).uses


@each_protocol
async def test_without_callable_tools_the_called_ones_are_still_declared(protocol: str) -> None:
    turns = (*PROMPT.turns, *step_of(use("a", text="hi")), PromptTurn(role="user", text="Now answer."))
    body = await request_body(protocol, Prompt(system="Be brief.", turns=turns))
    assert "echo" in str(body["tools"])
    forbidden: dict[str, Any] = {
        "openai": {"tool_choice": "none"},
        "anthropic": {"tool_choice": {"type": "none"}},
        "google": {"toolConfig": {"functionCallingConfig": {"mode": "NONE"}}},
    }
    assert {name: body.get(name) for name in forbidden[protocol]} == forbidden[protocol]
