"""The workspace over REST: pages, the download of one file, and that nobody sees another person's files."""

from uuid import UUID

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
