"""The workspace over REST: pages, downloads and edits, and that nobody sees or changes another person's files."""

import asyncio
from uuid import UUID

import httpx
import pytest

from khala.store.postgres.database import Database
from khala.store.sharing import sharing
from khala.store.tools import workspace_files
from tests.support.callers import owned_thread, person
from tests.support.in_process import InProcessServer
from tests.support.shared_server import server_fixture

pytestmark = pytest.mark.asyncio(loop_scope="module")

server = server_fixture(with_executor=False)


async def test_the_files_of_a_guests_thread_are_listed_in_pages_and_downloaded(
    server: InProcessServer, store: Database
) -> None:
    thread = await server.thread()
    for path in ("b.txt", "a/2.txt", "a/1.txt", "ä.txt"):
        await workspace_files.write(store, UUID(thread.id), path, path.encode())
    where = f"/api/threads/{thread.id}/workspace"
    first = (await server.http.get(where, params={"limit": 3}, headers=thread.headers)).json()
    assert first == {
        "items": [{"path": "a/1.txt", "size": 7}, {"path": "a/2.txt", "size": 7}, {"path": "b.txt", "size": 5}],
        "nextCursor": "b.txt",
    }
    rest = await server.http.get(where, params={"cursor": first["nextCursor"]}, headers=thread.headers)
    assert rest.json() == {"items": [{"path": "ä.txt", "size": 6}]}
    file = await server.http.get(f"{where}/file", params={"path": "ä.txt"}, headers=thread.headers)
    assert (file.content, file.headers["content-type"]) == ("ä.txt".encode(), "application/octet-stream")
    assert file.headers["content-disposition"] == "attachment; filename*=UTF-8''%C3%A4.txt"
    assert file.headers["content-security-policy"] == "sandbox; default-src 'none'"
    for path, status in (("../b.txt", 404), ("c.txt", 404), ("", 400), ("a\0", 400)):
        gone = await server.http.get(f"{where}/file", params={"path": path}, headers=thread.headers)
        assert gone.status_code == status, path


async def test_each_member_sees_their_own_workspace_and_viewers_none(server: InProcessServer, store: Database) -> None:
    owner, editor, viewer = [await person(store, name) for name in ("Owner", "Editor", "Viewer")]
    thread_id = await owned_thread(store, owner)
    for who, role in ((editor, "editor"), (viewer, "viewer")):
        await sharing.set_role(store, thread_id, who.id, role, owner.caller)  # type: ignore[arg-type]
        await sharing.join(store, thread_id, who.id, who.caller)
    await workspace_files.write(store, owner.id, "secret.txt", b"owner")
    await workspace_files.write(store, editor.id, "mine.txt", b"editor")
    where = f"/api/threads/{thread_id}/workspace"
    seen = [(await server.http.get(where, headers=who.headers)).json() for who in (owner, editor)]
    assert [[item["path"] for item in page["items"]] for page in seen] == [["secret.txt"], ["mine.txt"]]
    other = await server.http.get(f"{where}/file", params={"path": "secret.txt"}, headers=editor.headers)
    assert other.status_code == 404
    for path in (where, f"{where}/file?path=secret.txt"):
        assert (await server.http.get(path, headers=viewer.headers)).status_code == 403


async def test_a_file_is_edited_unless_it_has_changed_since_it_was_read(
    server: InProcessServer, store: Database
) -> None:
    thread = await server.thread()
    where = f"/api/threads/{thread.id}/workspace/file"
    await workspace_files.write(store, UUID(thread.id), "notes/ä.md", b"one")

    async def put(path: str, **body: object) -> httpx.Response:
        return await server.http.put(where, params={"path": path}, json=body, headers=thread.headers)

    edited = await put("notes/ä.md", before="one", content="zwö\n")
    assert (edited.status_code, edited.json()) == (200, {"path": "notes/ä.md", "size": 5})
    repeated = await put("notes/ä.md", before="one", content="zwö\n")
    assert repeated.status_code == 200
    late = await put("notes/ä.md", before="one", content="three")
    assert (late.status_code, late.json()["code"]) == (409, "conflict")
    assert late.json()["detail"] == "notes/ä.md has changed since it was read. Read it again."
    found = await server.http.get(where, params={"path": "notes/ä.md"}, headers=thread.headers)
    assert found.content == "zwö\n".encode()
    emptied = await put("notes/ä.md", before="zwö\n", content="")
    assert emptied.json() == {"path": "notes/ä.md", "size": 0}
    refused: tuple[tuple[str, dict[str, object], int], ...] = (
        ("new.md", {"before": "", "content": "x"}, 404),
        ("notes", {"before": "", "content": "x"}, 404),
        ("../notes/ä.md", {"before": "", "content": "x"}, 404),
        ("", {"before": "", "content": "x"}, 400),
        ("notes/ä.md", {"before": ""}, 400),
        ("notes/ä.md", {"before": "", "content": 1}, 400),
        ("notes/ä.md", {"before": "", "content": "x" * (workspace_files.MAX_FILE_BYTES + 1)}, 413),
        ("notes/ä.md", {"before": "", "content": "x" * (5 << 20)}, 413),
    )
    for path, body, status in refused:
        assert (await put(path, **body)).status_code == status, (path, status)
    assert await stored(store, UUID(thread.id)) == {"notes/ä.md": b""}


async def test_a_text_of_the_largest_size_may_be_escaped_in_json(server: InProcessServer, store: Database) -> None:
    thread = await server.thread()
    before, content = ("\x01" * workspace_files.MAX_FILE_BYTES, "\x02" * workspace_files.MAX_FILE_BYTES)
    await workspace_files.write(store, UUID(thread.id), "a", before.encode())
    edited = await server.http.put(
        f"/api/threads/{thread.id}/workspace/file",
        params={"path": "a"},
        json={"before": before, "content": content},
        headers=thread.headers,
    )
    assert edited.status_code == 200, edited.text
    assert await stored(store, UUID(thread.id)) == {"a": content.encode()}


async def test_a_file_that_is_not_utf_8_cannot_be_edited(server: InProcessServer, store: Database) -> None:
    thread = await server.thread()
    await workspace_files.write(store, UUID(thread.id), "a", b"\xff")
    where = f"/api/threads/{thread.id}/workspace/file"
    for before in ("\xff", "\ufffd", ""):
        body = {"before": before, "content": "x"}
        refused = await server.http.put(where, params={"path": "a"}, json=body, headers=thread.headers)
        assert (refused.status_code, refused.json()["code"]) == (409, "conflict")


async def test_an_edit_counts_towards_the_limit_of_all_files(
    server: InProcessServer, store: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread = await server.thread()
    monkeypatch.setattr(workspace_files, "MAX_GUEST_BYTES", 10)
    for path in ("a", "b"):
        await workspace_files.write(store, UUID(thread.id), path, b"12345")
    where = f"/api/threads/{thread.id}/workspace/file"
    body = {"before": "12345", "content": "123456"}
    full = await server.http.put(where, params={"path": "a"}, json=body, headers=thread.headers)
    assert (full.status_code, full.json()["code"]) == (413, "payload_too_large")
    assert await stored(store, UUID(thread.id)) == {"a": b"12345", "b": b"12345"}


async def test_nobody_edits_the_files_of_others(server: InProcessServer, store: Database) -> None:
    owner, editor, viewer = [await person(store, name) for name in ("Owner", "Editor", "Viewer")]
    thread_id = await owned_thread(store, owner)
    for who, role in ((editor, "editor"), (viewer, "viewer")):
        await sharing.set_role(store, thread_id, who.id, role, owner.caller)  # type: ignore[arg-type]
        await sharing.join(store, thread_id, who.id, who.caller)
    await workspace_files.write(store, owner.id, "plan.md", b"owner")
    await workspace_files.write(store, editor.id, "plan.md", b"editor")
    where = f"/api/threads/{thread_id}/workspace/file?path=plan.md"
    body = {"before": "owner", "content": "changed"}
    guest = await server.thread()
    for headers, status in (
        (editor.headers, 409),
        (viewer.headers, 403),
        (guest.headers, 403),
        (dict[str, str](), 403),
    ):
        assert (await server.http.put(where, json=body, headers=headers)).status_code == status
    assert (await stored(store, owner.id), await stored(store, editor.id)) == (
        {"plan.md": b"owner"},
        {"plan.md": b"editor"},
    )
    assert (await server.http.put(where, json=body, headers=owner.headers)).status_code == 200
    assert (await stored(store, owner.id), await stored(store, editor.id)) == (
        {"plan.md": b"changed"},
        {"plan.md": b"editor"},
    )


async def test_of_two_edits_at_once_one_is_refused(server: InProcessServer, store: Database) -> None:
    thread = await server.thread()
    await workspace_files.write(store, UUID(thread.id), "a.md", b"old")
    where = f"/api/threads/{thread.id}/workspace/file?path=a.md"
    bodies = [{"before": "old", "content": content} for content in ("one", "two")]
    answers = await asyncio.gather(*(server.http.put(where, json=body, headers=thread.headers) for body in bodies))
    assert sorted(answer.status_code for answer in answers) == [200, 409]
    won = bodies[[answer.status_code for answer in answers].index(200)]["content"]
    assert await stored(store, UUID(thread.id)) == {"a.md": won.encode()}


async def stored(store: Database, owner_id: UUID) -> dict[str, bytes]:
    """The files of this owner."""
    async with store.driver() as driver:
        paths = [entry.path for entry in await workspace_files.entries(driver, owner_id)]
        return await workspace_files.contents(driver, owner_id, paths)
