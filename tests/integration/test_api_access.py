"""Access by anonymous key: a caller without the key can neither read nor change a thread, over any route."""

import json
import uuid
from typing import Any

import pytest

from tests.integration.test_api_threads import assert_problem
from tests.support.client import Thread
from tests.support.frames import events, socket
from tests.support.in_process import InProcessServer
from tests.support.shared_server import server_fixture

pytestmark = pytest.mark.asyncio(loop_scope="module")

THREAD_DOORS: list[tuple[str, str, Any]] = [
    ("GET", "", None),
    ("GET", "/messages?before={message}", None),
    ("GET", "/events", None),
    ("GET", "/events?after=1", None),
    ("PATCH", "", {"title": "Mine now"}),
    ("POST", "/send", {"text": "Hello"}),
    ("POST", "/reset", None),
    ("DELETE", "", None),
]
RUN_DOORS: list[tuple[str, str, Any]] = [
    ("GET", "", None),
    ("GET", "/parts", None),
    ("GET", "/receipts", None),
    ("GET", "/context", None),
    ("POST", "/cancel", {"reason": "Mine now"}),
]

server = server_fixture(with_executor=False)


async def test_without_the_key_every_route_is_forbidden_and_nothing_changes(server: InProcessServer) -> None:
    thread, stranger = await server.thread(), await server.thread()
    sent = await thread.send("A secret")
    before = await thread.snapshot()
    ids = {"message": sent["userMessageId"]}
    doors = [(m, f"/api/threads/{thread.id}{path.format(**ids)}", body) for m, path, body in THREAD_DOORS]
    doors += [(m, f"/api/runs/{sent['runId']}{path}", body) for m, path, body in RUN_DOORS]
    wrong = [{}, stranger.headers, {"X-Anon-Key": ""}, {"X-Anon-Key": thread.key + "x"}, {"X-Anon-Key": thread.id}]
    for number, (method, path, body) in enumerate(doors):
        for headers in wrong if number == 0 else wrong[:2]:
            response = await server.http.request(method, path, json=body, headers=headers)
            problem = assert_problem(response, 403, "forbidden")
            assert "secret" not in json.dumps(problem), (method, path)
    assert await thread.snapshot() == before


async def test_an_unknown_id_is_not_found_with_any_key_and_without_one(server: InProcessServer) -> None:
    thread = await server.thread()
    nowhere = str(uuid.uuid4())
    for headers in ({}, thread.headers):
        for method, path, body in THREAD_DOORS:
            url = f"/api/threads/{nowhere}{path.format(message=nowhere)}"
            assert_problem(await server.http.request(method, url, json=body, headers=headers), 404, "thread_not_found")
        for method, path, body in RUN_DOORS:
            url = f"/api/runs/{nowhere}{path}"
            assert_problem(await server.http.request(method, url, json=body, headers=headers), 404, "run_not_found")


async def test_a_socket_needs_the_key_for_each_thread(server: InProcessServer) -> None:
    thread, other = await server.thread(), await server.thread()
    async with socket(server) as feed:
        assert (await feed.subscribe(thread))["type"] == "snapshot"
        for key in (None, "", "b" * 43, thread.key, other.key + "x", other.id):
            refused = await feed.subscribe(Thread(server.http, other.id, ""), anonKey=key)
            assert refused == {
                "type": "error",
                "threadId": other.id,
                "code": "forbidden",
                "message": "You have no access to this thread. Send its key or a share link, or sign in as a member.",
            }
        nowhere = str(uuid.uuid4())
        missing = await feed.subscribe(Thread(server.http, nowhere, thread.key))
        assert (missing["type"], missing["threadId"], missing["code"]) == ("error", nowhere, "thread_not_found")
        await other.send("Only for those who may hear it")
        await feed.expect_nothing()


async def test_a_refused_subscribe_keeps_the_earlier_subscription(server: InProcessServer) -> None:
    thread = await server.thread()
    async with socket(server) as feed:
        await feed.subscribe(thread)
        assert (await feed.subscribe(thread, anonKey="b" * 43))["code"] == "forbidden"
        await thread.send("Still here")
        assert (await feed.next())["type"] == "delta"


@pytest.mark.parametrize("path", ["/api/threads/abc", "/api/threads/%00", "/api/threads/..%2f..", "/api/runs/1",
                                  "/api/threads/" + "a" * 36 + "/events", "/api/threads/%ff/messages"])  # fmt: skip
async def test_an_invalid_id_is_not_found(server: InProcessServer, path: str) -> None:
    assert_problem(await server.http.get(path), 404, "not_found")


async def test_the_older_messages_of_a_thread_are_not_reached_through_another(server: InProcessServer) -> None:
    thread, other = await server.thread(), await server.thread()
    sent = await other.send("Elsewhere")
    path = f"/api/threads/{thread.id}/messages?before={sent['userMessageId']}"
    problem = assert_problem(await server.http.get(path, headers=thread.headers), 400, "invalid_input")
    assert problem["errors"] == [{"path": "before", "message": "This is not a message of the thread."}]


async def test_of_two_keys_the_first_counts(server: InProcessServer) -> None:
    thread = await server.thread()
    for keys, status in (((thread.key, "b" * 43), 200), (("b" * 43, thread.key), 403)):
        headers = [("X-Anon-Key", key) for key in keys]
        assert (await server.http.get(f"/api/threads/{thread.id}", headers=headers)).status_code == status


async def test_events_need_the_key_in_the_header(server: InProcessServer) -> None:
    thread = await server.thread()
    async with events(Thread(server.http, thread.id, ""), query=f"?anonKey={thread.key}") as feed:
        assert feed.response.status_code == 400
        assert [error["path"] for error in json.loads(await feed.response.aread())["errors"]] == ["anonKey"]
