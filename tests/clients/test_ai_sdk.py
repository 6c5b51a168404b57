"""The AI SDK, unmodified, against a running server: chats, replays, tools with approvals, stops, files and errors."""

import json
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.support import node_packages
from tests.support.in_process import InProcessServer
from tests.support.shared_server import server_fixture
from tests.system.browser import words

pytestmark = pytest.mark.asyncio(loop_scope="module")

PROGRAM = Path(__file__).parent / "ai-sdk" / "chat.mjs"
KEY = "k" * 40

server = server_fixture(KHALA_COOLDOWN_MS="0")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def results(server: InProcessServer) -> dict[str, Any]:
    """What the program has seen, by scenario."""
    return await node_packages.run(PROGRAM, KHALA_URL=server.url, KHALA_KEY=KEY)


def states(message: dict[str, Any]) -> list[str]:
    return [part["state"] for part in message["parts"] if part["type"].startswith("tool-")]


def without_reasons(message: dict[str, Any]) -> dict[str, Any]:
    """The message without what only a decision has: the content has no record of an approval that was given."""
    parts = [
        {name: value for name, value in part.items() if name != "approval"}
        if part["type"].startswith("tool-")
        else part
        for part in message["parts"]
    ]
    return message | {"parts": parts}


async def test_a_chat_of_the_clients_own_id_makes_a_thread_and_continues_it(results: dict[str, Any]) -> None:
    text = results["text"]
    assert text["texts"] == ["/echo En taro Adun", "En taro Adun", "/echo En taro Tassadar", "En taro Tassadar"]
    assert (text["errors"], text["status"], text["resumed"]) == ([], "ready", None)
    assert text["history"][-1] == text["last"], "the initial messages are those of the stream"
    metadata = text["last"]["metadata"]
    assert (metadata["reason"], metadata["model"]) == ("stop", "demo")
    assert metadata["usage"]["totalTokens"] == metadata["usage"]["inputTokens"] + metadata["usage"]["outputTokens"]


async def test_a_request_that_is_sent_again_attaches_to_the_first_ones_run(results: dict[str, Any]) -> None:
    twice = results["twice"]
    assert twice["first"] == twice["second"] == twice["third"]
    assert twice["answers"] == 1


async def test_a_chat_that_is_left_in_an_answer_is_resumed_with_the_same_message(results: dict[str, Any]) -> None:
    left = results["left"]
    assert left["errors"] == []
    assert len(left["resumed"]) == 2, "the replay has not doubled the message"
    assert left["resumed"][1] == left["whole"][1]


async def test_an_answer_that_the_transport_leaves_is_finished_by_a_plain_http_client(server: InProcessServer) -> None:
    leave = PROGRAM.with_name("leave.mjs")
    left = await node_packages.run(leave, KHALA_URL=server.url, KHALA_KEY=KEY, KHALA_CHAT="left-halfway")
    rest = await server.http.get("/api/chat/left-halfway/stream", headers={"X-Anon-Key": KEY}, timeout=30)
    *events, done = [line.removeprefix("data: ") for line in rest.text.splitlines() if line.startswith("data: ")]
    chunks = [json.loads(event) for event in events]
    text = "".join(chunk["delta"] for chunk in chunks if chunk["type"] == "text-delta")
    assert (text, done) == (words(24), "[DONE]")
    assert text.startswith(left["text"])
    assert len(left["text"]) < len(text)
    assert chunks[0]["messageId"] == left["id"]


@pytest.mark.parametrize(("name", "state"), [("approved", "output-available"), ("denied", "output-denied")])
async def test_the_stream_ends_for_an_approval_and_the_decision_continues_the_message(
    results: dict[str, Any], name: str, state: str
) -> None:
    found = results[name]
    before, (_, after) = found["before"], found["after"]
    assert before["status"] == "ready"
    assert states(before["message"]) == ["output-available", "output-error", "approval-requested"]
    assert before["message"] == found["paused"] == before["history"][-1]
    assert (found["errors"], states(after)) == ([], ["output-available", "output-error", state])
    assert after == found["replayed"], "the interrupted stream gives the same message as the whole"
    assert without_reasons(after) == without_reasons(found["history"][-1])
    approval = after["parts"][-3]["approval"]
    assert approval["approved"] == (name == "approved")
    assert approval["reason"] == ("Approved." if name == "approved" else "Denied by a user: My reason")


async def test_a_message_is_answered_again_and_replaced(results: dict[str, Any]) -> None:
    assert results["changed"] == {"texts": ["/echo Two", "Two"], "regenerated": True, "answers": 3}


async def test_each_regeneration_is_another_answer_with_and_without_the_id_of_the_replaced_one(
    results: dict[str, Any],
) -> None:
    found = results["regenerated"]
    assert (found["errors"], found["texts"]) == ([], ["/echo One", "One"])
    assert len(set(found["ids"])) == found["answers"] == 6
    assert [message["id"] for message in found["messages"]][1:] == found["ids"][-1:]
    assert [message["id"] for message in found["history"]][1:] == found["ids"][-1:]


async def test_a_stop_ends_the_answer_and_keeps_its_text(results: dict[str, Any]) -> None:
    stopped = results["stopped"]
    assert (stopped["status"], stopped["errors"]) == (204, [])
    assert stopped["message"]["metadata"]["reason"] == "canceled"
    assert stopped["message"]["parts"][1]["text"].startswith("word1 word2")


async def test_a_file_is_stored_with_its_message(results: dict[str, Any]) -> None:
    found = results["file"]
    assert (found["errors"], found["texts"]) == ([], ["/echo Read", "Read"])
    file = found["history"][0]["parts"][1]
    assert (file["type"], file["filename"], file["mediaType"]) == ("file", "question.txt", "text/plain")
    assert file["url"].startswith("/api/blobs/")


async def test_errors_of_runs_and_of_requests_are_the_chats_errors(results: dict[str, Any]) -> None:
    failing, refused = results["failing"], results["refused"]
    assert failing["status"] == refused["status"] == "error"
    assert failing["errors"] == ["The demo model was told to lose the connection."]
    assert failing["text"] == "# Hello from", "the error is not in the text, too"
    assert "Did you mean model?" in refused["errors"][0]


async def test_the_websocket_transport_streams_several_chats_and_resumes(results: dict[str, Any]) -> None:
    sockets = results["sockets"]
    assert sockets["errors"] == [[], [], [], ["A chat's id has no slash."]]
    assert sockets["text"] == ["/echo Two", "Two"]
    assert sockets["resumed"][1] == sockets["whole"][1]
    assert (sockets["idle"], sockets["replayed"]) == (None, sockets["second"])


async def test_the_clients_own_tools_continue_the_same_message(results: dict[str, Any]) -> None:
    tools = results["tools"]
    assert tools["errors"] == [[], []]
    assert tools["called"] == ["Aiur", "Nowhere", "Shakuras", "Char"]
    assert len(tools["after"]) == 2
    assert states(tools["after"][1]) == ["output-available", "output-error", "output-available"]
    assert tools["after"][1]["parts"][1]["output"] == {"city": "Aiur"}
    assert tools["known"][1] == tools["after"][1], "the initial messages are the same one message"
    assert "again" in tools, "a POST with the same results attaches"
    assert tools["resumed"]["other"][1] == tools["resumed"]["whole"][1], "a replay begins with the first answer"
