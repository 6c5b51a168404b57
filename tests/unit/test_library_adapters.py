"""The adapters of other libraries: how they go on after an interruption, and what they say without a library."""

import importlib
import sys
from typing import Any

import pytest

from khala.sdk import RecordedCall
from khala.sdk.adapters.surface import ReplyWriter, as_object, call_name, past_replies


class Written:
    """A run that records its text."""

    def __init__(self) -> None:
        self.answer = ""

    async def text(self, text: str) -> None:
        self.answer += text


def recorded(name: str) -> RecordedCall:
    return RecordedCall(id=name, name=name, args={}, ended=True)


@pytest.mark.parametrize(
    ("module", "library", "extra"),
    [
        ("pydantic_ai", "pydantic_ai", "pydantic-ai"),
        ("langgraph", "langchain_core.messages", "langgraph"),
        ("openai_agents", "agents", "openai-agents"),
    ],
)
def test_an_adapter_without_its_library_names_the_extra(
    module: str, library: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, f"khala.sdk.adapters.{module}", raising=False)
    with pytest.raises(ImportError, match=rf"pip install 'khala-server\[{extra}\]'"):
        importlib.import_module(f"khala.sdk.adapters.{module}")


@pytest.mark.parametrize(
    ("unfinished", "pieces", "added"),
    [
        ("", ["It ", "is."], "It is."),
        ("It is ", ["It ", "is ", "paid."], "paid."),
        ("It is ", ["It is paid."], "paid."),
        ("It is ", ["It ", "was."], "\n\nIt was."),
        ("It is ", ["It is "], ""),
    ],
)
async def test_an_interrupted_reply_goes_on_or_is_written_whole(unfinished: str, pieces: list[str], added: str) -> None:
    run: Any = Written()
    writer = ReplyWriter(run, unfinished)
    for piece in pieces:
        await writer.write(piece)
    assert run.answer == added


async def test_after_a_reply_the_next_one_is_written_whole() -> None:
    run: Any = Written()
    writer = ReplyWriter(run, "It is ")
    await writer.write("It ")
    writer.end_reply()
    await writer.write("It ")
    assert run.answer == "It "


def test_blocks_are_read_as_replies() -> None:
    look, hand, pay = recorded("look"), recorded("transfer"), recorded("pay")
    replies, unfinished = past_replies(["A", look, hand, pay, "B"], ends_reply=lambda call: call.name == "transfer")
    assert replies == [("A", [look, hand]), ("", [pay])]
    assert unfinished == "B"
    assert past_replies([]) == ([], "")


def test_names_and_arguments_of_libraries_become_those_of_khala() -> None:
    assert (call_name("mail.send"), call_name("7zip"), len(call_name("x" * 99))) == ("mail_send", "t_7zip", 64)
    assert [as_object(value) for value in ('{"a": 1}', "", "no JSON", [1], {"a": 1})] == [
        {"a": 1},
        {},
        {"input": "no JSON"},
        {"value": [1]},
        {"a": 1},
    ]
