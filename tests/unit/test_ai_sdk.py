"""The AI SDK's ids and messages, as the server reads them."""

import base64
from datetime import UTC, datetime

import msgspec
import pytest

from khala.api.ai_sdk.chunk_encoder import StreamedRun
from khala.api.ai_sdk.client_results import EarlierAnswer
from khala.api.ai_sdk.types import ChatRequestMessage
from khala.api.ai_sdk.user_messages import read_decisions, read_results, read_user_message
from khala.api.chats.chat_ids import message_id_of, results_id, thread_id_of
from khala.api.chats.chat_runs import read_options
from khala.domain import ids
from khala.domain.access import Caller, key_hash
from khala.domain.errors import InvalidInput, Unauthorized
from khala.domain.fold import ToolBlock
from khala.domain.parts import HANDED_OVER, Finish, Part, TokenUsage, encode

ADA, BOB, GUEST = Caller(user_id=ids.new()), Caller(user_id=ids.new()), Caller(anon_key_hash=key_hash("k" * 32))
RUN, NOW = ids.new(), datetime(2026, 11, 23, tzinfo=UTC)


def message(*parts: dict[str, object], role: str = "user") -> ChatRequestMessage:
    return ChatRequestMessage(id="m1", role=role, parts=list(parts))  # type: ignore[arg-type]


def test_a_chat_id_that_is_no_uuid_names_a_thread_of_each_caller() -> None:
    threads = {thread_id_of("main", caller) for caller in (ADA, BOB, GUEST)}
    assert len(threads) == 3
    assert thread_id_of("main", ADA) in threads
    assert thread_id_of("main", ADA) != thread_id_of("main2", ADA)
    thread_id = ids.new()
    assert thread_id_of(str(thread_id), ADA) == thread_id_of(str(thread_id).upper(), BOB) == thread_id


def test_a_chat_id_needs_a_caller_to_whom_its_thread_can_belong() -> None:
    with pytest.raises(Unauthorized):
        thread_id_of("main", Caller())
    with pytest.raises(InvalidInput, match="share link"):
        thread_id_of("main", Caller(share_key_hash=key_hash("k" * 32)))
    with pytest.raises(InvalidInput, match="slash"):
        thread_id_of("a/b", ADA)


def test_a_messages_id_depends_on_its_content() -> None:
    thread_id = ids.new()
    made = {
        message_id_of(thread_id, *content)
        for content in [("m", "a", ()), ("m", "b", ()), ("n", "a", ()), ("m", "a", ("b",)), ("m", "", ("a", "b"))]
    }
    assert len(made) == 5
    assert message_id_of(thread_id, "m", "a", ()) in made
    assert results_id(thread_id, ["b", "a"]) == results_id(thread_id, ["a", "b"])


def test_a_users_message_has_text_uploads_and_files() -> None:
    blob_id = ids.new()
    url = f"data:text/plain;base64,{base64.b64encode(b'one').decode()}"
    read = read_user_message(
        message(
            {"type": "text", "text": "Read"},
            {"type": "file", "url": url, "filename": "a.txt", "mediaType": "text/plain"},
            {"type": "file", "url": f"https://khala.example.com/api/blobs/{blob_id}"},
            {"type": "data-of-the-application", "data": {"text": 1}},
            {"type": "text", "text": "this."},
        ),
        "messages[0]",
    )
    assert (read.text, read.uploads, [file.data for file in read.files]) == ("Read\nthis.", (blob_id,), [b"one"])


@pytest.mark.parametrize(
    ("parts", "problem"),
    [
        ([{"type": "text", "text": " "}], "needs text"),
        ([{"type": "text", "text": "\0"}], "NUL"),
        ([{"type": "text", "text": 1}], "Expected `str`"),
        ([{"type": "file", "url": "https://example.com/a.png"}], "not fetched"),
        ([{"type": "file", "url": "data:image/png;base64,?"}], "base64"),
        ([{"type": "file", "url": "data:text/plain;base64,YQ=="}] * 11, "at most 10 files"),
    ],
)
def test_content_that_cannot_be_stored_is_refused(parts: list[dict[str, object]], problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem):
        read_user_message(message(*parts), "messages[0]")


def test_decisions_name_the_version_of_the_call() -> None:
    answered = {"type": "tool-x", "toolCallId": "c", "state": "approval-responded"}
    approval = {"id": f"{RUN}:{'d' * 64}:call_1", "approved": True, "requestReason": "new in a later version"}
    (decision,) = read_decisions(message(answered | {"approval": approval}, role="assistant"), "messages[1]")
    assert (decision.run_id, decision.digest, decision.call_id, decision.approved) == (RUN, "d" * 64, "call_1", True)
    with pytest.raises(InvalidInput, match="not the id of a request for approval"):
        read_decisions(message(answered | {"approval": {"id": "another", "approved": True}}), "messages[1]")


def test_results_are_those_of_the_clients_tools_in_the_last_step() -> None:
    ended = {"type": "tool-x", "state": "output-available"}
    found = read_results(
        message(
            {"type": "step-start"},
            ended | {"toolCallId": "before", "output": 1},
            {"type": "step-start"},
            ended | {"toolCallId": "json", "output": {"city": "Aiur"}},
            ended | {"toolCallId": "server", "output": "x", "providerExecuted": True},
            {"type": "tool-x", "toolCallId": "failed", "state": "output-error", "errorText": "No."},
            {"type": "tool-x", "toolCallId": "open", "state": "input-available"},
            role="assistant",
        ),
        "messages[1]",
    )
    assert [(result.call_id, result.ok, result.output) for result in found] == [
        ("json", True, '{"city":"Aiur"}'),
        ("failed", False, "No."),
    ]


def test_a_call_without_a_result_yet_has_none_in_the_replay_of_its_answer() -> None:
    run = StreamedRun(thread_id=RUN, run_id=RUN, message_id=RUN, functions=frozenset({"look"}))
    blocks = (
        ToolBlock(tool_call_id="a", tool="look", state="completed", summary="[1]", output="[1]"),
        ToolBlock(tool_call_id="b", tool="look", state="completed", summary=HANDED_OVER),
    )
    kind, data = encode(Finish(reason="tool_calls", usage=TokenUsage()))
    finish = Part(run_id=RUN, message_id=RUN, seq=0, kind=kind, data=msgspec.Raw(data.encode()), created_at=NOW)
    (shown,) = EarlierAnswer(run=run, settled=blocks).chunks([finish], {})
    assert shown == {"type": "tool-output-available", "toolCallId": "a", "output": [1]}


def test_options_are_strict_and_a_new_message_interrupts_by_default() -> None:
    assert read_options({}).if_busy == "interrupt"
    assert read_options({"ifBusy": "reject", "autopilot": True}).if_busy == "reject"
    with pytest.raises(InvalidInput) as refused:
        read_options({"autoPilot": True})
    assert refused.value.path == "options.autoPilot"
    with pytest.raises(InvalidInput) as refused:
        read_options({"model": 1})
    assert refused.value.path == "options.model"
