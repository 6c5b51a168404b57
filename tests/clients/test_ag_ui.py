"""The clients of AG-UI and TanStack AI, unmodified, against a running server."""

import json
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from websockets import ConnectionClosed, Subprotocol
from websockets.asyncio.client import connect

from tests.support import node_packages
from tests.support.in_process import InProcessServer
from tests.support.shared_server import server_fixture

pytestmark = pytest.mark.asyncio(loop_scope="module")

PROGRAMS = Path(__file__).parent / "ag-ui"
KEY = "k" * 40

server = server_fixture(KHALA_COOLDOWN_MS="0")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def results(server: InProcessServer) -> dict[str, Any]:
    """What AG-UI's client has seen, by scenario."""
    return await node_packages.run(PROGRAMS / "agent.mjs", KHALA_URL=server.url, KHALA_KEY=KEY)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def chats(server: InProcessServer) -> dict[str, Any]:
    """What TanStack AI's client has seen, by scenario."""
    return await node_packages.run(PROGRAMS / "tanstack.mjs", KHALA_URL=server.url, KHALA_KEY=KEY)


def shape(messages: list[dict[str, Any]]) -> list[Any]:
    """The messages without what the server cannot know: ids of questions, and which results are errors."""
    kept = ("role", "content", "toolCalls", "toolCallId")
    shown = [
        {name: message[name] for name in kept if name in message}
        | ({"id": message["id"]} if message["role"] == "assistant" else {})
        for message in messages
    ]
    results = [message for message in shown if message["role"] == "tool"]
    others = [message for message in shown if message["role"] != "tool"]
    return [others, sorted(results, key=lambda message: str(message["toolCallId"]))]


async def test_questions_are_answered_in_a_thread_of_the_clients_own_id(results: dict[str, Any]) -> None:
    text = results["text"]
    said = [message["content"] for message in text["messages"]]
    assert said == ["/echo En taro Adun", "En taro Adun", "/echo En taro Tassadar", "En taro Tassadar"]
    assert shape(text["connected"]) == shape(text["messages"])
    assert (text["failures"], text["unknown"], text["outcome"]) == ([], [], {"type": "success"})
    assert text["state"]["mine"] == 1
    assert set(text["state"]["khala"]) >= {"threadId", "runId", "messageId"}


async def test_plans_of_the_thread_are_activities(results: dict[str, Any]) -> None:
    planned = results["planned"]
    plan_id = planned["made"]["id"]
    assert planned["failures"] == []
    for activity in (*planned["live"], *planned["connected"]):
        assert (activity["id"], activity["activityType"], activity["content"]["title"]) == (plan_id, "PLAN", "Warp in")
    assert (len(planned["live"]), len(planned["connected"])) == (1, 1)


async def test_a_run_id_that_arrives_again_attaches_and_another_one_answers_again(results: dict[str, Any]) -> None:
    twice = results["twice"]
    assert twice["all"][0] == twice["all"][1] == twice["all"][2]
    assert twice["answers"] == 1
    assert twice["again"] == {"answers": 2, "other": True}


async def test_a_client_attaches_to_an_answer_from_its_start_and_at_an_event(results: dict[str, Any]) -> None:
    left = results["left"]
    assert shape(left["observed"]) == shape(left["whole"])
    assert left["whole"][1]["content"].startswith(left["begun"])
    assert left["early"] == left["whole"][1:]


@pytest.mark.parametrize(
    ("name", "result"),
    [
        ("approved", "Deleted a.txt."),
        ("denied", "Denied by a user: My reason"),
        ("canceled", "Denied by a user: Canceled by the user."),
        ("edited", "Deleted b.txt."),
    ],
)
async def test_an_approval_interrupts_the_run_and_resume_continues_it(
    results: dict[str, Any], name: str, result: str
) -> None:
    found = results[name]
    before, after = found["before"], found["after"]
    assert before["outcome"]["type"] == "interrupt"
    assert before["seen"][-3:] == ["STATE_SNAPSHOT", "MESSAGES_SNAPSHOT", "RUN_FINISHED"]
    assert (found["pending"]["reason"], "pending interrupt" in found["refused"]) == ("tool_call", True)
    assert "editedArgs" in found["pending"]["responseSchema"]["properties"]
    assert shape(found["observed"]["messages"]) == shape(before["messages"])
    assert found["observed"]["pending"] == [found["pending"]]
    assert after["seen"][:3] == ["RUN_STARTED", "STATE_SNAPSHOT", "CUSTOM" if name == "edited" else "TOOL_CALL_RESULT"]
    assert [message["content"] for message in after["messages"][-2:]] == [result, "Over."]
    assert after["messages"] == found["again"], "the same resume attaches"
    assert name == "edited" or shape(found["replayed"]) == shape(after["messages"]) == shape(found["late"])


async def test_the_clients_own_tools_continue_the_thread(results: dict[str, Any]) -> None:
    tools = results["tools"]
    after = tools["after"]["messages"]
    assert [call["id"] for call in after[1]["toolCalls"]] == tools["called"]
    assert after[-1]["content"] == "Found."
    assert tools["again"] == after
    assert shape(tools["observed"]) == shape(after)


async def test_stops_failures_refusals_and_files(results: dict[str, Any]) -> None:
    stopped, failing, filed = results["stopped"], results["failing"], results["filed"]
    assert (stopped["status"], stopped["outcome"]) == (204, {"type": "cancelled"})
    assert failing["failures"] == ["The demo model was told to lose the connection."]
    assert failing["messages"][1]["content"] == "# Hello from"
    assert "Did you mean model?" in results["refused"]
    assert filed["observed"][0]["content"][1]["source"]["value"].startswith("/api/blobs/")
    assert all("HTTP 400" in warning for warning in results["warnings"]), "the protocol describes all that was sent"


@pytest.mark.parametrize("name", ["sse", "lines"])
async def test_tanstack_resumes_a_broken_connection_at_its_last_event(chats: dict[str, Any], name: str) -> None:
    found = chats[name]
    assert found["posts"][0] is None
    assert all(found["posts"][1:])
    assert len(found["posts"]) > 1
    assert (found["errors"], found["status"], found["stored"]) == ([], "ready", 2)
    assert found["texts"][1] == " ".join(f"word{number}" for number in range(1, 81))


async def test_tanstack_answers_over_sockets_and_continues_after_broken_ones(chats: dict[str, Any]) -> None:
    found = chats["sockets"]
    assert (found["errors"], found["stored"]) == ([], 4)
    assert found["texts"][1::2] == [" ".join(f"word{number}" for number in range(1, 81)), "And more."]
    first, *others = found["sockets"]
    assert "offset" not in first
    assert "offset" in others[0]
    assert (found["joined"][0], found["joined"][-1]) == ("RUN_STARTED", "RUN_FINISHED")
    assert "Did you mean model?" in found["refused"][0]


@pytest.mark.parametrize(
    ("query", "credential", "reason"),
    [
        ("runId=mine&offset=-1", f"khala.anon-key.{KEY}", "You have started no run with this id."),
        ("runId=mine&offset=x", f"khala.anon-key.{KEY}", "This is not the id of an event of this server."),
        ("runId=mine&offset=-1", "khala.token.wrong", "This token is invalid or has expired."),
    ],
)
async def test_a_socket_for_the_rest_of_a_run_is_closed_with_the_reason_of_a_refusal(
    server: InProcessServer, query: str, credential: str, reason: str
) -> None:
    url = server.socket_url.replace("/api/ws", f"/api/ag-ui/socket?{query}")
    async with connect(url, subprotocols=[Subprotocol("khala.ag-ui"), Subprotocol(credential)]) as socket:
        assert socket.subprotocol == "khala.ag-ui"
        with pytest.raises(ConnectionClosed) as closed:
            await socket.recv()
    assert closed.value.rcvd is not None
    assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1008, reason)


async def test_a_bad_frame_of_a_socket_is_an_error_and_ends_nothing(server: InProcessServer) -> None:
    url = server.socket_url.replace("/api/ws", "/api/ag-ui/socket")
    question = {"id": "q", "role": "user", "content": "/echo fine"}
    good = {"threadId": "by socket", "runId": "r", "messages": [question]}
    key = Subprotocol(f"khala.anon-key.{KEY}")
    async with connect(url, subprotocols=[Subprotocol("khala.ag-ui"), key]) as socket:
        for frame in ("no JSON", json.dumps(good | {"messages": 1}), json.dumps({"type": "abort"})):
            await socket.send(frame)
            refused = json.loads(await socket.recv())
            assert (refused["type"], refused["code"]) == ("RUN_ERROR", "invalid_input")
        await socket.send(json.dumps({"type": "abort", "runId": "unknown"}))
        await socket.send(json.dumps(good))
        answered = [json.loads(await socket.recv())["chunk"]]
        while answered[-1]["type"] != "RUN_FINISHED":
            answered.append(json.loads(await socket.recv())["chunk"])
        assert (
            "".join(event.get("delta", "") for event in answered if event["type"] == "TEXT_MESSAGE_CONTENT") == "fine"
        )
        for _ in range(7):
            await socket.send("no JSON")
            assert json.loads(await socket.recv())["type"] == "RUN_ERROR"
        with pytest.raises(ConnectionClosed) as closed:
            await socket.recv()
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1008


async def test_tanstack_reads_the_thread_and_joins_its_run_after_a_reload(chats: dict[str, Any]) -> None:
    joined = chats["joined"]
    assert joined["first"] == joined["second"]
    assert joined["active"] is not None
    assert (joined["after"]["activeRun"], len(joined["after"]["messages"])) == (None, 2)


@pytest.mark.parametrize("name", ["approved", "reloaded"])
async def test_tanstack_approves_a_call(chats: dict[str, Any], name: str) -> None:
    found = chats[name]
    assert found["errors"] == []
    assert found["before"][-1]["parts"][-1]["state"] == "approval-requested"
    results = [part for message in found["after"] for part in message["parts"] if part["type"] == "tool-result"]
    assert [part["content"] for part in results] == ["Wrote 3 bytes to a.txt.", "Deleted a.txt."]


async def test_tanstack_executes_its_own_tools(chats: dict[str, Any]) -> None:
    assert (chats["tools"]["called"], chats["tools"]["errors"]) == (["Aiur"], [])
    assert chats["failing"]["errors"] == ["The demo model was told to lose the connection."]
    assert chats["failing"]["refused"] == ["HTTP error! status: 400 Bad Request"]
    assert chats["warnings"] == []
