"""The complete body of a chat completion request."""

from base64 import b64encode
from typing import Any

import msgspec

from khala.domain.tools import ToolSpec
from khala.models.openai import request_body
from khala.models.port import Prompt, PromptFile, PromptTurn, ToolOutcome, ToolUse
from khala.models.prompt_order import EMPTY_TEXT, MISSING_OUTCOME, RESUME_PROMPT

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}}
ECHO = ToolSpec(name="echo", description="Says it again.", parameters=SCHEMA)


def request_json(*turns: PromptTurn, system: str = "", **rest: Any) -> Any:
    return msgspec.json.decode(request_body.encode(Prompt(system=system, turns=turns, **rest), "m-1"))


def messages(*turns: PromptTurn, **rest: Any) -> Any:
    return request_json(*turns, **rest)["messages"]


def test_a_minimal_request() -> None:
    assert request_json(PromptTurn(role="user", text="Hi")) == {
        "model": "m-1",
        "messages": [{"role": "user", "content": "Hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_a_step_with_tools_and_a_limit() -> None:
    uses = (ToolUse(id="a", name="echo", args={"n": 1}), ToolUse(id="b", name="no such", args={}))
    body = request_json(
        PromptTurn(role="user", text="Do."),
        PromptTurn(role="assistant", text="Well.", uses=uses),
        PromptTurn(role="tool", outcomes=(ToolOutcome(id="a", name="echo", text="žluť", ok=True),)),
        PromptTurn(role="system", text="Be quick."),
        PromptTurn(role="user", text="And?"),
        system="Be brief.",
        tools=(ECHO, ToolSpec(name="now", description="The time.", parameters={"type": "object"})),
        max_output_tokens=99,
    )
    assert body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Do."},
        {
            "role": "assistant",
            "content": "Well.",
            "tool_calls": [
                {"id": "call_1", "type": "function", "function": {"name": "echo", "arguments": '{"n":1}'}},
                {"id": "call_2", "type": "function", "function": {"name": "no_such", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "žluť"},
        {"role": "tool", "tool_call_id": "call_2", "content": f'{{"error":"{MISSING_OUTCOME}"}}'},
        {"role": "system", "content": "Be quick."},
        {"role": "user", "content": "And?"},
    ]
    assert body["tools"] == [
        {"type": "function", "function": {"name": "echo", "description": "Says it again.", "parameters": SCHEMA}},
        {
            "type": "function",
            "function": {
                "name": "now",
                "description": "The time.",
                "parameters": {"type": "object", "properties": {}},
            },
        },
    ]
    assert (body["tool_choice"], body["max_completion_tokens"]) == ("auto", 99)


def test_an_assistant_that_only_calls_has_no_content() -> None:
    use = ToolUse(id="a", name="echo", args={})
    outcome = ToolOutcome(id="a", name="echo", text=" ", ok=True)
    _, assistant, tool = messages(
        PromptTurn(role="user", text="Do."),
        PromptTurn(role="assistant", text="\n\n", uses=(use,)),
        PromptTurn(role="tool", outcomes=(outcome,)),
    )
    assert assistant["content"] is None
    assert tool["content"] == EMPTY_TEXT


def test_turns_of_the_assistant_that_follow_each_other_are_one_message() -> None:
    bodies = messages(
        PromptTurn(role="user", text="?"), *(PromptTurn(role="assistant", text=text) for text in ("a", "", "b"))
    )
    assert bodies[1:] == [{"role": "assistant", "content": "a\n\nb"}]


def test_an_interrupted_answer_is_followed_by_a_request_to_continue() -> None:
    assert messages(PromptTurn(role="user", text="?"), partial_answer="The answer is fo")[1:] == [
        {"role": "assistant", "content": "The answer is fo"},
        {"role": "user", "content": RESUME_PROMPT},
    ]


def test_called_tools_that_may_not_be_called_any_more_are_declared() -> None:
    use = ToolUse(id="a", name="echo", args={})
    body = request_json(PromptTurn(role="user", text="Do."), PromptTurn(role="assistant", uses=(use,)))
    assert [tool["function"]["name"] for tool in body["tools"]] == ["echo"]
    assert body["tool_choice"] == "none"


def test_files_are_parts_before_the_words() -> None:
    files = (
        PromptFile(name="a.png", media_type="image/png; x=1", data=b"\x89PNG"),
        PromptFile(name="b.pdf", media_type="application/pdf", data=b"%PDF"),
        PromptFile(name="c.txt", media_type="text/plain", data="žluť".encode()),
    )
    (message,) = messages(PromptTurn(role="user", text="What?", files=files))
    png, pdf = (b64encode(file.data).decode() for file in files[:2])
    assert message["content"] == [
        {"type": "text", "text": "[File 'a.png' (image/png; x=1, 4 bytes)]"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{png}"}},
        {"type": "text", "text": "[File 'b.pdf' (application/pdf, 4 bytes)]"},
        {"type": "file", "file": {"file_data": f"data:application/pdf;base64,{pdf}", "filename": "filename.pdf"}},
        {"type": "text", "text": "[File 'c.txt' (text/plain, 6 bytes)]\nžluť\n[End of 'c.txt']"},
        {"type": "text", "text": "What?"},
    ]
