"""Threads over REST: created once; listed, renamed, reset and deleted only with the key."""

import asyncio
import uuid
from typing import Any

import httpx
import pytest

from tests.support.client import Thread
from tests.support.frames import socket
from tests.support.in_process import InProcessServer, khala
from tests.support.shared_server import server_fixture

pytestmark = pytest.mark.asyncio(loop_scope="module")

KEY = "a" * 32
WELCOME = "Hello there."
NOTHING = "Nothing to change: send a title, a visibility or an activeLeaf."

server = server_fixture(with_executor=False, KHALA_WELCOME=WELCOME)


async def create(server: InProcessServer, **body: Any) -> httpx.Response:
    return await server.http.post("/api/threads", json=body)


def assert_problem(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """The problem in this response, which must have this status and code."""
    problem: dict[str, Any] = response.json()
    assert response.headers["content-type"] == "application/problem+json"
    assert (response.status_code, problem["status"], problem["code"]) == (status, status, code)
    assert problem["title"] == code.replace("_", " ").capitalize()
    limit = {"limit", "scope", "most", "retryAfter"} if status == httpx.codes.TOO_MANY_REQUESTS else set()
    assert set(problem) - {"errors", "expectedSeq"} == {"title", "status", "code", "detail"} | limit
    return problem


async def test_the_first_open_creates_the_thread_and_one_welcome(server: InProcessServer) -> None:
    thread_id = str(uuid.uuid4())
    made = await create(server, id=thread_id, anonKey=KEY, title="Aiur")
    assert made.status_code == 201
    thread = made.json()["thread"]
    assert made.json() == {"thread": thread, "anonKey": KEY}
    assert set(thread) == {"id", "title", "visibility", "revision", "activeLeaf", "createdAt", "updatedAt"}
    assert (thread["id"], thread["title"], thread["visibility"], thread["revision"]) == (
        thread_id,
        "Aiur",
        "private",
        1,
    )
    snapshot = await Thread(server.http, thread_id, KEY).snapshot()
    assert set(snapshot) == {"revision", "thread", "messages", "hasMore"}
    assert (snapshot["thread"], snapshot["hasMore"]) == (thread, False)
    [welcome] = snapshot["messages"]
    assert set(welcome) == {"id", "threadId", "role", "status", "seq", "content", "createdAt", "updatedAt"}
    assert (welcome["role"], welcome["status"], welcome["id"]) == ("assistant", "final", thread["activeLeaf"])
    assert welcome["content"] == [{"type": "text", "text": WELCOME}]


async def test_opening_again_with_the_same_id_and_key_adds_nothing(server: InProcessServer) -> None:
    thread_id = str(uuid.uuid4())
    first = await create(server, id=thread_id, anonKey=KEY)
    before = await Thread(server.http, thread_id, KEY).snapshot()
    again = await create(server, id=thread_id, anonKey=KEY, title="Another title")
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json() == {"thread": first.json()["thread"]}
    assert await Thread(server.http, thread_id, KEY).snapshot() == before


async def test_twenty_first_opens_at_once_create_one_thread_with_one_welcome(server: InProcessServer) -> None:
    thread_id = str(uuid.uuid4())
    made = await asyncio.gather(*(create(server, id=thread_id, anonKey=KEY) for _ in range(20)))
    assert sorted(response.status_code for response in made) == [200] * 19 + [201]
    snapshot = await Thread(server.http, thread_id, KEY).snapshot()
    assert (snapshot["revision"], len(snapshot["messages"])) == (1, 1)


async def test_an_existing_thread_is_forbidden_with_another_key(server: InProcessServer) -> None:
    thread_id = (await create(server, anonKey=KEY)).json()["thread"]["id"]
    assert_problem(await create(server, id=thread_id, anonKey="b" * 32), 403, "forbidden")
    assert_problem(await create(server, id=thread_id), 403, "forbidden")


async def test_a_thread_created_without_a_key_gets_a_new_key(server: InProcessServer) -> None:
    first, other = (await create(server)).json(), (await create(server)).json()
    assert len(first["anonKey"]) >= 43, "256 bits"
    assert first["anonKey"] != other["anonKey"]
    assert first["thread"]["id"] != other["thread"]["id"]


async def test_a_thread_is_created_without_a_body(server: InProcessServer) -> None:
    made = await server.http.post("/api/threads")
    assert made.status_code == 201
    assert len(made.json()["anonKey"]) >= 32


async def test_an_empty_welcome_adds_no_message(database_url: str) -> None:
    async with khala(database_url, with_executor=False, KHALA_WELCOME="") as server:
        thread = await server.thread()
        assert (await thread.snapshot())["messages"] == []


@pytest.mark.parametrize(
    "key",
    [
        "",
        " ",
        " " * 40,
        "\t" * 40,
        "a" * 31,
        "a" * 30 + "  ",
        "a" * 257,
        "é" * 32,
        "\0" * 32,
        "a" * 32 + "\n",
        5,
        [],
        True,
    ],
)
async def test_a_key_that_is_too_weak_is_refused(server: InProcessServer, key: object) -> None:
    problem = assert_problem(await create(server, anonKey=key), 400, "invalid_input")
    assert [error["path"] for error in problem["errors"]] == ["anonKey"]


@pytest.mark.parametrize("length", [32, 256])
async def test_a_key_of_valid_length_opens_its_thread(server: InProcessServer, length: int) -> None:
    made = await create(server, anonKey="~" * length)
    assert made.status_code == 201
    assert (await Thread(server.http, made.json()["thread"]["id"], "~" * length).snapshot())["revision"] == 1


@pytest.mark.parametrize("title", ["t" * 201, "a\0b", 5, ["a"]])
async def test_an_invalid_title_is_refused_at_creation_and_at_renaming(server: InProcessServer, title: object) -> None:
    thread = await server.thread()
    for response in (
        await create(server, title=title),
        await server.http.patch(f"/api/threads/{thread.id}", json={"title": title}, headers=thread.headers),
    ):
        assert [error["path"] for error in assert_problem(response, 400, "invalid_input")["errors"]] == ["title"]


async def test_a_thread_is_renamed_and_observers_get_a_delta(server: InProcessServer) -> None:
    thread = await server.thread()
    path = f"/api/threads/{thread.id}"
    async with socket(server) as feed:
        await feed.subscribe(thread)
        renamed = await server.http.patch(path, json={"title": "Ж" * 200}, headers=thread.headers)
        assert (renamed.status_code, renamed.json()["title"], renamed.json()["revision"]) == (200, "Ж" * 200, 2)
        delta = {"type": "delta", "threadId": thread.id, "from": 1, "revision": 2}
        assert await feed.next() == delta | {"thread": renamed.json(), "messages": [], "parts": []}
        again = await server.http.patch(path, json={"title": "Ж" * 200}, headers=thread.headers)
        assert again.json() == renamed.json(), "no frame without a change"
        untitled = await server.http.patch(path, json={"title": None}, headers=thread.headers)
        assert "title" not in untitled.json()
        assert (await feed.next())["thread"] == untitled.json()
    problem = assert_problem(await server.http.patch(path, json={}, headers=thread.headers), 400, "invalid_input")
    assert problem["errors"] == [{"path": "title", "message": NOTHING}]


async def test_a_key_lists_its_own_threads_newest_first_page_by_page(server: InProcessServer) -> None:
    key = uuid.uuid4().hex
    made = [(await create(server, anonKey=key)).json()["thread"]["id"] for _ in range(7)]
    await create(server, anonKey="b" * 32)
    found: list[str] = []
    cursor, pages = "", 0
    while True:
        response = await server.http.get(f"/api/threads?limit=3{cursor}", headers={"X-Anon-Key": key})
        found += [thread["id"] for thread in response.json()["items"]]
        pages += 1
        if "nextCursor" not in response.json():
            break
        cursor = f"&cursor={response.json()['nextCursor']}"
    assert (found, pages) == (made[::-1], 3)


async def test_a_last_page_that_is_full_has_no_next_cursor(server: InProcessServer) -> None:
    key = uuid.uuid4().hex
    await create(server, anonKey=key)
    response = await server.http.get("/api/threads?limit=1", headers={"X-Anon-Key": key})
    assert set(response.json()) == {"items"}


async def test_a_caller_without_credentials_lists_no_threads(server: InProcessServer) -> None:
    await server.thread()
    assert_problem(await server.http.get("/api/threads"), 401, "unauthorized")
    unknown = await server.http.get("/api/threads", headers={"X-Anon-Key": "c" * 32})
    assert (unknown.status_code, unknown.json()) == (200, {"items": []})


@pytest.mark.parametrize(
    "cursor",
    ["", "abc", "%00", "%F0%9F%98%80", "A" * 5000, "MjAyNi0wMS0wMSBuby11dWlk", "MDAwMS0wMS0wMVQwMDowMDowMCsyMzo1OSB4",
     "MDAwMS0wMS0wMVQwMDowMDowMCsyMzo1OSAwMTkzZTVhMC0wMDAwLTcwMDAtODAwMC0wMDAwMDAwMDAwMDA="],
)  # fmt: skip
async def test_an_invalid_cursor_is_refused(server: InProcessServer, cursor: str) -> None:
    response = await server.http.get(f"/api/threads?cursor={cursor}", headers={"X-Anon-Key": KEY})
    assert [error["path"] for error in assert_problem(response, 400, "invalid_input")["errors"]] == ["cursor"]


@pytest.mark.parametrize("limit", ["0", "-1", "201", "abc", "", "99999999999999999999", "1.5", "NaN"])
async def test_a_limit_out_of_bounds_is_refused(server: InProcessServer, limit: str) -> None:
    thread = await server.thread()
    for path in ("/api/threads", f"/api/threads/{thread.id}"):
        response = await server.http.get(f"{path}?limit={limit}", headers=thread.headers)
        assert [error["path"] for error in assert_problem(response, 400, "invalid_input")["errors"]] == ["limit"]


async def test_a_deleted_thread_stays_deleted_for_every_request(server: InProcessServer) -> None:
    thread = await server.thread()
    run_id = (await thread.send("Hello"))["runId"]
    path = f"/api/threads/{thread.id}"
    deleted = await server.http.delete(path, headers=thread.headers)
    assert (deleted.status_code, deleted.content) == (204, b"")
    assert_problem(await server.http.get(path, headers=thread.headers), 404, "thread_not_found")
    assert_problem(await server.http.delete(path, headers=thread.headers), 404, "thread_not_found")
    assert_problem(await thread.post("send", {"text": "Hello?"}), 404, "thread_not_found")
    assert_problem(await server.http.get(f"/api/runs/{run_id}", headers=thread.headers), 404, "run_not_found")
    assert (await server.http.get("/api/threads", headers=thread.headers)).json() == {"items": []}


async def test_a_reset_leaves_nothing_but_the_welcome(server: InProcessServer) -> None:
    thread = await server.thread()
    run_id = (await thread.send("Hello"))["runId"]
    await thread.post(f"../../runs/{run_id}/cancel")
    before = await thread.snapshot()
    reset = await thread.post("reset")
    after = await thread.snapshot()
    assert (reset.status_code, reset.json()) == (200, after["thread"])
    assert after["revision"] == before["revision"] + 1
    assert [message["content"] for message in after["messages"]] == [[{"type": "text", "text": WELCOME}]]
    assert after["messages"][0]["id"] != before["messages"][0]["id"]
    # By this, the page takes it for the welcome.
    assert after["messages"][0]["createdAt"] == after["thread"]["createdAt"]
    for path in ("", "/parts", "/receipts"):
        response = await server.http.get(f"/api/runs/{run_id}{path}", headers=thread.headers)
        assert_problem(response, 404, "run_not_found")
