"""`/api/chat` by plain HTTP: who may do what, answers to decided calls, and many requests at once."""

import asyncio
import json
from typing import Any
from uuid import UUID

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from khala.api.chats.chat_ids import answer_id_of, regenerated_id, results_id, thread_id_of
from khala.domain.access import Caller, author_id_of_key, key_hash
from tests.support.agents import call
from tests.support.in_process import InProcessServer
from tests.support.shared_server import server_fixture

pytestmark = pytest.mark.asyncio(loop_scope="module")

KEY = {"X-Anon-Key": "k" * 40}
AG_UI_MESSAGE = {"id": "q", "role": "user", "content": "Hi"}
ASK = call("write_file", path="a.txt", content="one") + " /then " + call("delete_file", path="a.txt") + " /say Over."

server = server_fixture(KHALA_COOLDOWN_MS="0", KHALA_RUNS_PER_OWNER="200")


def user(text: str, message_id: str = "q") -> dict[str, Any]:
    return {"id": message_id, "role": "user", "parts": [{"type": "text", "text": text}]}


async def chat(server: InProcessServer, chat_id: str, *messages: Any, **more: Any) -> httpx.Response:
    headers = more.pop("headers", KEY)
    return await server.http.post("/api/chat", json={"id": chat_id, "messages": messages} | more, headers=headers)


def chunks(response: httpx.Response) -> list[dict[str, Any]]:
    """The chunks of a complete stream."""
    assert response.status_code == 200, response.text
    assert response.headers["x-vercel-ai-ui-message-stream"] == "v1"
    *events, done, end = response.text.split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    return [json.loads(event.partition("data: ")[2]) for event in events if not event.startswith(":")]


def joined(stream: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], str]:
    """The chunks, without how the text was divided."""
    return [chunk for chunk in stream if "delta" not in chunk], "".join(chunk.get("delta", "") for chunk in stream)


async def test_a_new_chat_needs_an_account_or_a_long_key(server: InProcessServer) -> None:
    assert (await chat(server, "new", user("Hi"), headers={})).status_code == 401
    short = await chat(server, "new", user("Hi"), headers={"X-Anon-Key": "short"})
    assert (short.status_code, "32 to 256" in short.text) == (400, True)
    assert (await server.http.get("/api/chat/new", headers=KEY)).json() == []
    assert (await server.http.get("/api/chat/new/stream", headers=KEY)).status_code == 204
    assert (await server.http.post("/api/chat/new/stop", headers=KEY)).status_code == 204


async def test_a_chat_of_another_key_is_another_chat_and_its_thread_is_closed(server: InProcessServer) -> None:
    started = chunks(await chat(server, "mine", user("/echo Mine")))
    thread_id = started[0]["messageMetadata"]["threadId"]
    other = {"X-Anon-Key": "o" * 40}
    assert (await server.http.get("/api/chat/mine", headers=other)).json() == []
    assert (await chat(server, thread_id, user("Hi"), headers=other)).status_code == 403
    for path in ("", "/stream"):
        assert (await server.http.get(f"/api/chat/{thread_id}{path}", headers=other)).status_code == 403
    assert len((await server.http.get(f"/api/chat/{thread_id}", headers=KEY)).json()) == 2


async def test_nobody_takes_the_thread_id_of_another_callers_chat(server: InProcessServer) -> None:
    """The id follows from the id of the caller, which the readers of a shared thread know."""
    author_id = author_id_of_key(key_hash(KEY["X-Anon-Key"]))
    thread_id = str(thread_id_of("wanted", Caller(anon_key_hash=key_hash(KEY["X-Anon-Key"]))))
    other = {"X-Anon-Key": "t" * 40}
    assert thread_id[:13] == str(author_id)[:13]
    refused = [
        await server.http.post("/api/threads", json={"id": thread_id, "anonKey": other["X-Anon-Key"]}),
        await chat(server, thread_id, user("Hi"), headers=other),
        await server.http.post(
            "/api/ag-ui", json={"threadId": thread_id, "runId": "r", "messages": [AG_UI_MESSAGE]}, headers=other
        ),
    ]
    assert [response.status_code for response in refused] == [400] * 3
    assert chunks(await chat(server, "wanted", user("/echo Mine")))[0]["messageMetadata"]["threadId"] == thread_id
    again = await server.http.post("/api/threads", json={"id": thread_id, "anonKey": KEY["X-Anon-Key"]})
    assert again.status_code == 200, "its owner may open it again"


async def test_nobody_takes_the_ids_of_another_callers_next_answers(server: InProcessServer) -> None:
    """They follow from ids that all readers of a shared thread know. An id that is taken would refuse the answer."""
    wish, options = user(call("look", at="a") + " /say Seen."), {"functions": [{"name": "look"}]}
    called = chunks(await chat(server, "taken", wish, options=options))
    thread_id, answer_id = UUID(called[0]["messageMetadata"]["threadId"]), UUID(called[0]["messageId"])
    call_id = next(chunk["toolCallId"] for chunk in called if chunk["type"] == "tool-input-available")
    author_id = author_id_of_key(key_hash(KEY["X-Anon-Key"]))
    wanted = [regenerated_id(answer_id), results_id(thread_id, [call_id]), answer_id_of(author_id, "1")]
    thread = await server.thread()
    sent = await thread.send("/echo Mine")
    for message_id in map(str, wanted):
        own = {"id": message_id, "role": "user", "parts": [{"type": "text", "text": "Mine"}]}
        attempts = [
            await thread.post("send", {"text": "Mine", "messageId": message_id}),
            await thread.post("regenerate", {"messageId": sent["userMessageId"], "answerId": message_id}),
            await thread.post("messages", {"messages": [own]}),
        ]
        assert [response.status_code for response in attempts] == [400] * 3
    again = await chat(server, "taken", wish, trigger="regenerate-message", messageId=str(answer_id), options=options)
    assert chunks(again)[0]["messageId"] == str(wanted[0])
    body = {"threadId": "taken", "runId": "1", "messages": [AG_UI_MESSAGE]}
    assert (await server.http.post("/api/ag-ui", json=body, headers=KEY)).status_code == 200


@pytest.mark.parametrize(
    ("field", "value", "path"),
    [("context", None, "context"), ("context", [{"value": 1}], "context[0].value"), ("state", 1, None)],
)
async def test_a_field_that_does_not_fit_is_named_whatever_its_name_is(
    server: InProcessServer, field: str, value: Any, path: str | None
) -> None:
    body = {"threadId": "fields", "runId": field, "messages": [AG_UI_MESSAGE], field: value}
    answered = await server.http.post("/api/ag-ui", json=body, headers=KEY)
    assert answered.status_code == (200 if path is None else 400), answered.text
    assert path is None or [error["path"] for error in answered.json()["errors"]] == [path]


async def test_instructions_that_are_no_text_are_refused_also_beside_facts_of_the_application(
    server: InProcessServer,
) -> None:
    body = {"threadId": "facts", "messages": [AG_UI_MESSAGE], "context": [{"description": "Place", "value": "Aiur"}]}
    for number, instructions in enumerate((None, 7, ["x"])):
        more = {"runId": str(number), "forwardedProps": {"options": {"instructions": instructions}}}
        refused = await server.http.post("/api/ag-ui", json=body | more, headers=KEY)
        assert (refused.status_code, refused.json()["errors"][0]["path"]) == (400, "options.instructions")


async def test_a_call_that_was_decided_otherwise_is_an_error_that_says_so(server: InProcessServer) -> None:
    asked = chunks(await chat(server, "asked", user(ASK), options={"autopilot": True}))
    (request,) = [chunk for chunk in asked if chunk["type"] == "tool-approval-request"]
    run_id, _, call_id = request["approvalId"].split(":")
    await server.http.post(f"/api/runs/{run_id}/approvals/{call_id}", json={"approved": False}, headers=KEY)
    part = {"type": "tool-delete_file", "toolCallId": call_id, "state": "approval-responded"}
    answer = {"id": asked[0]["messageId"], "role": "assistant", "parts": []}

    def decided(*, approved: bool) -> dict[str, Any]:
        return answer | {"parts": [part | {"approval": {"id": request["approvalId"], "approved": approved}}]}

    refused = await chat(server, "asked", user(ASK), decided(approved=True))
    assert (refused.status_code, refused.json()["detail"]) == (409, "This call was denied before.")
    rest = chunks(await chat(server, "asked", user(ASK), decided(approved=False)))
    assert rest[0]["messageId"] == asked[0]["messageId"]
    assert [chunk["type"] for chunk in rest[1:3]] == ["tool-approval-response", "tool-output-denied"]
    again = chunks(await chat(server, "asked", user(ASK), decided(approved=False)))
    assert joined(again) == joined(rest), "the decision arrives twice, and attaches"
    chunks(await chat(server, "elsewhere", user("/echo Other")))
    elsewhere = await chat(server, "elsewhere", user(ASK), decided(approved=False))
    assert (elsewhere.status_code, "another chat" in elsewhere.text) == (400, True)


async def test_a_hundred_chats_at_once_are_all_answered(server: InProcessServer) -> None:
    answers = await asyncio.gather(*(chat(server, f"chat {number}", user(f"/echo {number}")) for number in range(100)))
    for number, answer in enumerate(answers):
        assert "".join(chunk.get("delta", "") for chunk in chunks(answer)) == str(number)


async def test_a_message_that_the_client_never_stored_is_refused_with_its_place(server: InProcessServer) -> None:
    answer = {"id": "a", "role": "assistant", "parts": []}
    refused = await chat(server, "mine", user("Hi"), answer)
    assert refused.json()["errors"][0]["path"] == "messages[1]"
    assert (await chat(server, "a/b", user("Hi"))).json()["detail"] == "A chat's id has no slash."


async def test_equal_requests_for_another_answer_begin_one_run(server: InProcessServer) -> None:
    wish = user("/words=8 /pace=40")
    first = chunks(await chat(server, "again", wish))
    requests = (chat(server, "again", wish, trigger="regenerate-message") for _ in range(5))
    answers = [chunks(answer) for answer in await asyncio.gather(*requests)]
    assert len({answer[0]["messageMetadata"]["runId"] for answer in answers}) == 1
    later = chunks(await chat(server, "again", wish, trigger="regenerate-message"))
    assert len({answer[0]["messageId"] for answer in (first, answers[0], later)}) == 3


async def test_a_message_of_the_history_is_another_one_with_other_files(server: InProcessServer) -> None:
    def file(data: str) -> dict[str, Any]:
        return {"type": "file", "url": f"data:text/plain;base64,{data}", "mediaType": "text/plain"}

    wish = user("/echo Read")
    first = chunks(await chat(server, "files", wish | {"parts": [*wish["parts"], file("b25l")]}))
    stored = (await server.http.get("/api/chat/files", headers=KEY)).json()[0]
    text, by_url = stored["parts"]
    for same in (by_url, file("b25l")):
        again = chunks(await chat(server, "files", stored | {"parts": [text, same]}))
        assert again[0]["messageId"] == first[0]["messageId"]
    edited = {"messageId": stored["id"]}
    for other in ([text], [text, file("dHdv")]):
        assert chunks(await chat(server, "files", stored | {"parts": other}, **edited))[0] != first[0]
    assert (await server.http.get("/api/chat/files", headers=KEY)).json()[0]["parts"][1]["url"] != by_url["url"]
    rewritten = stored | {"parts": [text | {"text": "/echo Again"}, by_url]}
    answers = [chunks(await chat(server, "files", rewritten, **edited))[0]["messageId"] for _ in range(2)]
    assert answers[0] == answers[1] != first[0]["messageId"]
    kept = (await server.http.get("/api/chat/files", headers=KEY)).json()[0]["parts"]
    assert (await server.http.get(kept[1]["url"], headers=KEY)).text == "one", "an edited message keeps its files"


async def test_results_of_some_of_the_clients_calls_continue_the_same_message(server: InProcessServer) -> None:
    wish = user(call("look", at="a") + " " + call("look", at="b") + " /say Seen.")
    options = {"functions": [{"name": "look"}]}
    called = chunks(await chat(server, "some", wish, options=options))
    call_ids = [chunk["toolCallId"] for chunk in called if chunk["type"] == "tool-input-available"]
    result = {"type": "tool-look", "toolCallId": call_ids[0], "state": "output-available", "output": "A"}
    answer = {"id": called[0]["messageId"], "role": "assistant", "parts": [result]}
    chunks(await chat(server, "some", wish, answer, options=options))
    known = (await server.http.get("/api/chat/some", headers=KEY)).json()
    assert [message["id"] for message in known][1:] == [answer["id"]]
    states = [part["state"] for part in known[1]["parts"] if part["type"] == "tool-look"]
    assert states == ["output-available", "input-available"]
    chunks(await chat(server, "some", *known, user("/echo Next", "next")))
    assert len((await server.http.get("/api/chat/some", headers=KEY)).json()) == 4, "on the same branch"


async def test_arguments_of_the_clients_calls_that_are_too_large_for_a_part_arrive_whole(
    server: InProcessServer,
) -> None:
    wish, city = call("look", at="Aiur " * 2000), "Aiur " * 2000
    called = chunks(await chat(server, "large", user(wish), options={"functions": [{"name": "look"}]}))
    assert [chunk["input"] for chunk in called if chunk["type"] == "tool-input-available"] == [{"at": city}]
    look = {"name": "look", "description": "", "parameters": {"type": "object"}}
    body = {"threadId": "large", "runId": "r", "messages": [AG_UI_MESSAGE | {"content": wish}], "tools": [look]}
    streamed = (await server.http.post("/api/ag-ui", json=body, headers=KEY)).raise_for_status().text
    events = [json.loads(line.removeprefix("data: ")) for line in streamed.splitlines() if line.startswith("data: ")]
    arguments = [event["delta"] for event in events if event["type"] == "TOOL_CALL_ARGS"]
    assert json.loads("".join(arguments)) == {"at": city}


@pytest.mark.parametrize("depth", [900, 5000])
async def test_a_chat_stays_readable_whatever_its_client_returns_of_its_tools(
    server: InProcessServer, depth: int
) -> None:
    chat_id, nested = f"nested-{depth}", "[" * depth + "]" * depth
    wish, options = user(call("look", at="a") + " /say Seen."), {"functions": [{"name": "look"}]}
    called = chunks(await chat(server, chat_id, wish, options=options))
    call_id = next(chunk["toolCallId"] for chunk in called if chunk["type"] == "tool-input-available")
    result = {"type": "tool-look", "toolCallId": call_id, "state": "output-available", "output": nested}
    answer = {"id": called[0]["messageId"], "role": "assistant", "parts": [result]}
    chunks(await chat(server, chat_id, wish, answer, options=options))
    read = await server.http.get(f"/api/chat/{chat_id}", headers=KEY)
    assert [part["output"] for part in read.json()[1]["parts"] if part["type"] == "tool-look"] == [nested]


async def test_results_of_a_clients_tools_have_a_limit_because_every_reader_gets_them_whole(
    server: InProcessServer,
) -> None:
    wish, options = user(call("look", at="a") + " /say Seen."), {"functions": [{"name": "look"}]}
    called = chunks(await chat(server, "huge", wish, options=options))
    call_id = next(chunk["toolCallId"] for chunk in called if chunk["type"] == "tool-input-available")
    result = {"type": "tool-look", "toolCallId": call_id, "state": "output-available", "output": "x" * (2 << 20)}
    answer = {"id": called[0]["messageId"], "role": "assistant", "parts": [result]}
    refused = await chat(server, "huge", wish, answer, options=options)
    assert (refused.status_code, refused.json()["code"]) == (413, "payload_too_large")
    reported = {"id": "t", "role": "tool", "toolCallId": call_id, "content": result["output"]}
    body = {"threadId": "huge", "runId": "r", "messages": [AG_UI_MESSAGE, reported]}
    refused = await server.http.post("/api/ag-ui", json=body, headers=KEY)
    assert (refused.status_code, refused.json()["code"]) == (413, "payload_too_large")
    assert len((await server.http.get("/api/chat/huge", headers=KEY)).content) < 10_000


async def flood(socket: ClientConnection, frame: str) -> None:
    """Send the frame again and again, until the server closes the connection."""
    for _ in range(200):
        await socket.send(frame)
    while True:
        assert "Too many frames" in json.loads(await socket.recv())["errorText"]


async def test_a_socket_that_sends_too_many_or_too_complex_frames_is_closed(server: InProcessServer) -> None:
    frame = {"type": "abort", "requestId": "a"}
    async with connect(server.socket_url.replace("/api/ws", "/api/chat-socket")) as socket:
        await socket.send(json.dumps(frame | {"body": {"x": [[]] * 200_000}}))
        assert "200,000 objects" in json.loads(await socket.recv())["errorText"]
        with pytest.raises(ConnectionClosed) as closed:
            await flood(socket, json.dumps(frame))
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1008


async def test_a_bad_frame_of_a_socket_is_answered_and_ends_nothing(server: InProcessServer) -> None:
    url = server.socket_url.replace("/api/ws", "/api/chat-socket")
    good = {"type": "send", "id": "by-socket", "headers": KEY, "messages": [user("/echo fine")]}
    async with connect(url) as socket:
        for frame in ('{"a":' * 10_000, "no JSON", json.dumps({**good, "requestId": "bad", "messages": [1]})):
            await socket.send(frame)
        refused = json.loads(await socket.recv())
        assert (refused["type"], refused["requestId"]) == ("error", "bad")
        assert "$.messages[0]" in refused["errorText"]
        await socket.send(json.dumps({**good, "requestId": "good"}))
        answered = [json.loads(await socket.recv())]
        while answered[-1]["type"] != "end":
            answered.append(json.loads(await socket.recv()))
    assert {frame["requestId"] for frame in answered} == {"good"}
    assert "".join(frame.get("chunk", {}).get("delta", "") for frame in answered) == "fine"
