"""Imports of exports of ChatGPT, Claude and Open WebUI: trees, times, files, repetitions, and hostile files."""

import base64
import io
import json
import uuid
import zipfile
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from khala.chat_imports import export_reader
from khala.console import KnownFailure
from khala.operations.chat_importing import import_export
from khala.settings import from_environment
from khala.store.operations import retention
from khala.store.operations.retention import RetentionPolicy
from khala.store.operations.verify import VerifyProgress, find_differences
from khala.store.postgres.database import Database
from khala.store.threads.chat_imports import SkippedImport
from tests.integration.test_api_threads import assert_problem
from tests.integration.test_search import index, search
from tests.support.callers import Person, person
from tests.support.client import Thread, text_of
from tests.support.event_endpoint import new_endpoint
from tests.support.in_process import InProcessServer
from tests.support.shared_server import shared

pytestmark = pytest.mark.asyncio(loop_scope="module")

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
ROOT = "00000000-0000-4000-8000-000000000000"


def node(key: str, parent: str | None, role: str, parts: list[Any], at: float, **more: Any) -> dict[str, Any]:
    """A node of ChatGPT's tree."""
    kind = "multimodal_text" if any(isinstance(part, dict) for part in parts) else "text"
    message: dict[str, Any] = {
        "id": key, "author": {"role": role, "name": None, "metadata": {}}, "create_time": at, "update_time": None,
        "content": {"content_type": kind, "parts": parts}, "status": "finished_successfully", "end_turn": True,
        "weight": 1.0, "metadata": {}, "recipient": "all",
    }  # fmt: skip
    return {"id": key, "message": message | more, "parent": parent, "children": []}


def chatgpt() -> list[dict[str, Any]]:
    """Two conversations: the first has an edited question, another answer, a search and an image."""
    image = {"content_type": "image_asset_pointer", "asset_pointer": "file-service://file-abc", "size_bytes": 70}
    code = {"content": {"content_type": "code", "language": "unknown", "text": "search()"}, "recipient": "browser"}
    nodes = [
        {"id": "root", "message": None, "parent": None, "children": ["sys"]},
        node("sys", "root", "system", [""], 0, metadata={"is_visually_hidden_from_conversation": True}),
        node("q1", "sys", "user", ["Where is Aiur?"], 1_700_000_000.5),
        node("a1", "q1", "assistant", ["Far \ud83d away."], 1_700_000_010),
        node("a1b", "q1", "assistant", ["In the Koprulu sector."], 1_700_000_020),
        node("q2", "sys", "user", [image, "What is this?"], 1_700_000_030,
             metadata={"attachments": [{"id": "file-abc", "name": "pylon.png", "mimeType": "image/png"}]}),
        node("call", "q2", "assistant", [], 1_700_000_031, **code),
        node("result", "call", "tool", ["found"], 1_700_000_032),
        node("a2", "result", "assistant", ["A py", "lon."], 1_700_000_040),
    ]  # fmt: skip
    first = {
        "id": "c-1", "conversation_id": "c-1", "title": "Aiur", "create_time": 1_700_000_000.25,
        "update_time": 1_700_000_040, "current_node": "a2", "mapping": {one["id"]: one for one in nodes},
    }  # fmt: skip
    empty = {"id": "c-2", "title": "", "create_time": 1_700_000_000, "current_node": "x", "mapping": {}}
    return [first, empty]


def claude() -> list[dict[str, Any]]:
    def said(key: str, sender: str, text: str, parent: str, **more: Any) -> dict[str, Any]:
        return {
            "uuid": key, "text": text, "content": [{"type": "text", "text": text}], "sender": sender,
            "created_at": "2024-05-01T10:00:00.5Z", "updated_at": "2024-05-01T10:00:00Z", "attachments": [],
            "files": [],
            "parent_message_uuid": parent,
        } | more  # fmt: skip

    attached = {"file_name": "notes.md", "file_size": 9, "file_type": "text/markdown", "extracted_content": "En taro."}
    blocks = [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "Adun."}, {"type": "tool_use"}]
    messages = [
        said("m1", "human", "Read it.", ROOT, attachments=[attached], files=[{"file_name": "photo.jpg"}]),
        said("m2", "assistant", "Hm. Adun.", "m1", content=blocks),
    ]
    return [
        {"uuid": "k-1", "name": "Notes", "created_at": "2024-05-01T10:00:00Z", "updated_at": "2024-05-01T10:00:00Z",
         "account": {"uuid": "u"}, "chat_messages": messages}
    ]  # fmt: skip


def open_webui() -> list[dict[str, Any]]:
    url = "data:image/png;base64," + base64.b64encode(PIXEL).decode()
    messages = {
        "u": {"id": "u", "parentId": None, "childrenIds": ["x", "y"], "role": "user", "content": "Hello",
              "timestamp": 1_710_000_000, "models": ["a", "b"], "files": [{"type": "image", "url": url}]},
        "x": {"id": "x", "parentId": "u", "childrenIds": [], "role": "assistant", "content": "One", "model": "a",
              "timestamp": 1_710_000_001},
        "y": {"id": "y", "parentId": "u", "childrenIds": [], "role": "assistant", "content": "Two", "model": "b",
              "timestamp": 1_710_000_001},
    }  # fmt: skip
    chat = {"title": "Models", "models": ["a", "b"], "history": {"messages": messages, "currentId": "x"}}
    return [{"id": "w-1", "user_id": "u", "title": "Models", "chat": chat, "created_at": 1_710_000_000}]


def zipped(chats: Any, *, files: dict[str, bytes] | None = None, name: str = "conversations.json") -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, json.dumps(chats))
        archive.writestr("user.json", "{}")
        for path, content in (files or {}).items():
            archive.writestr(path, content)
    return out.getvalue()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(postgres_url: str, template: str) -> AsyncIterator[InProcessServer]:
    async with shared(postgres_url, template, with_executor=False) as inside:
        yield inside
        db = Database(inside.database_url)
        assert [found async for found in find_differences(db, VerifyProgress())] == []
        await db.close()


async def imported(server: InProcessServer, who: Person, content: bytes) -> dict[str, Any]:
    """The last event of an import."""
    response = await server.http.post("/api/imports", content=content, headers=who.headers)
    assert response.status_code == 200, response.text
    lines = [line for line in response.text.splitlines() if line.startswith("data: ")]
    return dict(json.loads(lines[-1].removeprefix("data: ")))


async def threads(server: InProcessServer, who: Person) -> list[dict[str, Any]]:
    listed = await server.http.get("/api/threads", headers=who.headers)
    return list(listed.raise_for_status().json()["items"])


async def snapshot(server: InProcessServer, who: Person, thread_id: str) -> dict[str, Any]:
    thread = Thread(server.http, thread_id, "")
    thread.headers = who.headers
    return await thread.snapshot()


async def events_of(store: Database, thread_id: str) -> list[tuple[str, bool | None]]:
    """The types of the recorded events of the thread, and whether they say that it is imported."""
    query = "SELECT type, data FROM webhook_deliveries WHERE thread_id = $1 ORDER BY seq"
    async with store.driver() as driver:
        found = await driver.fetch(query, uuid.UUID(thread_id))
    return [(row["type"], json.loads(row["data"]).get("imported")) for row in found]


async def test_chatgpt_keeps_branches_times_titles_and_images(server: InProcessServer, store: Database) -> None:
    who = await person(store, "Fenix")
    content = zipped(chatgpt(), files={"file-abc-pylon.png": PIXEL})
    ended = await imported(server, who, content)
    [thread] = await threads(server, who)
    assert ended == {
        "type": "imported",
        "report": {
            "conversations": 1, "known": 0, "messages": 5, "files": 1,
            "leftOut": {"calls of tools": 1, "conversations without messages": 1, "results of tools": 1},
            "threads": [{"id": thread["id"], "title": "Aiur"}],
        },
    }  # fmt: skip
    assert (thread["title"], thread["createdAt"]) == ("Aiur", "2023-11-14T22:13:20.250000Z")
    found = await snapshot(server, who, thread["id"])
    by_text = {text_of(one): one for one in found["messages"]}
    assert list(by_text) == ["Where is Aiur?", "Far ? away.", "In the Koprulu sector.", "What is this?", "A pylon."]
    question, one, other = (by_text[text] for text in list(by_text)[:3])
    assert one["parentId"] == other["parentId"] == question["id"]
    assert "parentId" not in question
    assert "parentId" not in by_text["What is this?"], "an edited question begins a branch of its own"
    assert found["thread"]["activeLeaf"] == by_text["A pylon."]["id"]
    assert (question["createdAt"], question["authorName"]) == ("2023-11-14T22:13:20.500000Z", "Fenix")
    [file] = [block["blob"] for block in by_text["What is this?"]["content"] if block["type"] == "file"]
    assert (file["name"], file["mediaType"]) == ("pylon.png", "image/png")
    blob = await server.http.get(f"/api/blobs/{file['blobId']}", headers=who.headers)
    assert blob.content == PIXEL
    await index(store)
    assert [hit["messageId"] for hit in await search(server.http, "Koprulu", who.headers)] == [other["id"]]


async def test_a_second_import_adds_only_what_is_new(server: InProcessServer, store: Database) -> None:
    who = await person(store)
    await new_endpoint(store, "https://example.com/hook", scope=who.id)
    chats = chatgpt()
    first = await imported(server, who, zipped(chats))
    [thread] = await threads(server, who)
    assert first["report"]["threads"] == [{"id": thread["id"], "title": thread["title"]}]
    again = await imported(server, who, json.dumps(chats).encode())
    assert again["report"]["threads"] == []
    assert (again["report"]["conversations"], again["report"]["known"], again["report"]["messages"]) == (0, 1, 0)
    chats[0]["mapping"]["q3"] = node("q3", "a2", "user", ["Thanks"], 1_700_000_050)
    chats[0]["current_node"] = "q3"
    later = await imported(server, who, zipped(chats, name="export/conversations-000.json"))
    assert (later["report"]["known"], later["report"]["messages"]) == (1, 1)
    [thread] = await threads(server, who)
    assert await events_of(store, thread["id"]) == [("thread.created", True)], "and no message is announced"
    found = await snapshot(server, who, thread["id"])
    assert (len(found["messages"]), text_of(found["messages"][-1])) == (6, "Thanks")
    (await server.http.delete(f"/api/threads/{thread['id']}", headers=who.headers)).raise_for_status()
    gone = await imported(server, who, zipped(chats))
    assert gone["report"]["leftOut"]["conversations that were deleted here"] == 1
    assert await threads(server, who) == []
    other = await person(store)
    assert (await imported(server, other, zipped(chats)))["report"]["conversations"] == 1, "each account has its own"


async def test_claude_keeps_text_and_extracted_attachments(server: InProcessServer, store: Database) -> None:
    who = await person(store)
    ended = await imported(server, who, zipped(claude()))
    [thread] = await threads(server, who)
    assert ended["report"] == {
        "conversations": 1, "known": 0, "messages": 2, "files": 1,
        "leftOut": {"calls of tools": 1, "files that are not in the export": 1, "reasoning": 1},
        "threads": [{"id": thread["id"], "title": "Notes"}],
    }  # fmt: skip
    question, answer = (await snapshot(server, who, thread["id"]))["messages"]
    assert (text_of(question), text_of(answer), answer["parentId"]) == ("Read it.", "Adun.", question["id"])
    assert (question["content"][1]["blob"]["name"], thread["title"]) == ("notes.md", "Notes")
    assert question["createdAt"] == "2024-05-01T10:00:00.500000Z"


async def test_open_webui_keeps_the_answers_of_several_models(server: InProcessServer, store: Database) -> None:
    who = await person(store)
    ended = await imported(server, who, json.dumps(open_webui()).encode())
    assert (ended["report"]["messages"], ended["report"]["files"], ended["report"]["leftOut"]) == (3, 1, {})
    [thread] = await threads(server, who)
    found = await snapshot(server, who, thread["id"])
    question, one, two = found["messages"]
    assert (one["parentId"], two["parentId"], found["thread"]["activeLeaf"]) == (question["id"],) * 2 + (one["id"],)


@pytest.mark.parametrize(
    "content",
    [
        b"not json", b'{"a": 1}', b'[{"a": 1}]', b"[1, 2", b'["\xff"]', b"[" * 100_000, zipped([], name="other.json"),
        zipped(chatgpt())[:-40], b"PK\x03\x04 broken",
    ],
)  # fmt: skip
async def test_a_file_that_is_no_export_is_refused(server: InProcessServer, store: Database, content: bytes) -> None:
    who = await person(store)
    ended = await imported(server, who, content)
    # An object has no items: nothing is imported of it.
    assert ended["type"] == "failed" or ended["report"]["conversations"] == 0
    assert ended.get("code") in ("invalid_input", None)
    assert await threads(server, who) == []


async def test_a_zip_bomb_and_a_huge_conversation_are_refused(
    server: InProcessServer, store: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    who = await person(store)
    bomb = zipped([{"mapping": {}, "title": " " * 30_000_000}])
    assert len(bomb) < 100_000
    ended = await imported(server, who, bomb)
    assert (ended["type"], "unpacks to too much" in ended["message"]) == ("failed", True)
    monkeypatch.setattr(export_reader, "MAX_CONVERSATION_BYTES", 1 << 20)
    large = chatgpt()
    large[1]["title"] = base64.b85encode(uuid.uuid4().bytes * 100_000).decode()
    ended = await imported(server, who, json.dumps(large).encode())
    assert (ended["type"], ended["report"]["conversations"]) == ("failed", 1), "what was read before stays"


async def test_a_conversation_of_many_tiny_values_is_refused_early(server: InProcessServer, store: Database) -> None:
    content = b'[{"mapping": {}, "x": [' + b"[]," * 1_500_000 + b"1]}]"
    ended = await imported(server, await person(store), content)
    assert (ended["type"], "JSON values" in ended["message"]) == ("failed", True)


async def test_an_import_after_a_reset_says_that_the_reset_is_not_complete(
    server: InProcessServer, store: Database
) -> None:
    who = await person(store)
    await imported(server, who, zipped(chatgpt()))
    [thread] = await threads(server, who)
    (await server.http.post(f"/api/threads/{thread['id']}/reset", headers=who.headers)).raise_for_status()
    skipped = await imported(server, who, zipped(chatgpt()))
    assert skipped["report"]["messages"] == 0
    assert skipped["report"]["leftOut"][SkippedImport.BEING_RESET] == 1
    await retention.purge(store, RetentionPolicy(idle=timedelta(0)))
    again = await imported(server, who, zipped(chatgpt()))
    assert (again["report"]["known"], again["report"]["messages"]) == (1, 5)
    messages = (await snapshot(server, who, thread["id"]))["messages"]
    assert len(messages) == 6, "the welcome of the reset, and what was imported"


async def test_damaged_trees_and_hostile_fields_do_no_harm(server: InProcessServer, store: Database) -> None:
    who = await person(store)
    circle = {"a": node("a", "b", "user", ["A"], 1), "b": node("b", "a", "assistant", ["B"], 2)}
    lost = {"c": node("c", "nowhere", "user", ["C\0"], 10.0**300), "d": {"parent": 7, "message": {"author": 5}}}
    strange = {"id": "s", "title": 7, "create_time": "never", "current_node": ["x"], "mapping": circle | lost}
    text = json.dumps([strange, {"chat": {"history": 3}, "id": None}])
    assert (await imported(server, who, text.replace("1e+300", "1e+999").encode()))["code"] == "invalid_input"
    ended = await imported(server, who, text.encode())
    assert (ended["type"], ended["report"]["messages"]) == ("imported", 1)
    assert ended["report"]["leftOut"]["messages in a damaged tree"] == 2
    [thread] = await threads(server, who)
    [message] = (await snapshot(server, who, thread["id"]))["messages"]
    assert text_of(message) == "C\ufffd"


async def test_a_damaged_file_of_a_zip_is_left_out_and_damaged_text_refused(
    server: InProcessServer, store: Database
) -> None:
    who = await person(store)
    content = bytearray(zipped(chatgpt(), files={"file-abc-pylon.png": PIXEL}))
    place = content.index(b"file-abc-pylon.png") + len("file-abc-pylon.png")
    content[place : place + 20] = bytes(20)
    ended = await imported(server, who, bytes(content))
    assert (ended["type"], ended["report"]["leftOut"]["files that are not in the export"]) == ("imported", 1)
    content = bytearray(zipped(chatgpt()))
    place = content.index(b"conversations.json") + len("conversations.json")
    content[place : place + 20] = bytes(20)
    assert (await imported(server, await person(store), bytes(content)))["code"] == "invalid_input"


async def test_imports_are_for_accounts_and_limited(server: InProcessServer, store: Database) -> None:
    who = await person(store)
    assert_problem(await server.http.post("/api/imports", content=b"[]"), 401, "unauthorized")
    assert_problem(await server.http.post("/api/imports", content=b"", headers=who.headers), 400, "invalid_input")
    for _ in range(9):
        await imported(server, who, b"[]")
    limited = await server.http.post("/api/imports", content=b"[]", headers=who.headers)
    assert_problem(limited, 429, "rate_limited")


async def test_an_operator_imports_by_command(
    server: InProcessServer, store: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    who = await person(store)
    path = tmp_path / "export.zip"
    path.write_bytes(zipped(claude()))
    settings = from_environment({"DATABASE_URL": server.database_url, "KHALA_HOME": str(tmp_path / "home")})
    await import_export(settings, path, str(who.id))
    assert "1 conversations" in capsys.readouterr().out
    with pytest.raises(KnownFailure, match=r"There is no account nobody@example\.com\."):
        await import_export(settings, path, "nobody@example.com")
    assert [one["title"] for one in await threads(server, who)] == ["Notes"]
