"""Files of folders: who may see and change them, their limits, what runs get of them, and when they are deleted."""

from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest

from khala.blobs.filesystem import FilesystemBlobStore
from khala.blobs.garbage_collector import BlobGarbageCollector
from khala.domain import ids
from khala.domain.errors import PayloadTooLarge
from khala.store.blobs.blobs import StorageQuota
from khala.store.operations import retention
from khala.store.operations.retention import RetentionPolicy
from khala.store.postgres.database import Database
from khala.store.threads import folder_files
from tests.integration.test_context import context_of, section, serve
from tests.integration.test_folders import file, folders, made, put, served
from tests.support.account_with_data import Account, account, join_by_link, own_thread
from tests.support.agents import act
from tests.support.blobs import blob_service_of
from tests.support.client import Thread
from tests.support.providers import Call, Reply, Server
from tests.support.wires import UseTool

PATH = "/api/me/folder/files"
PLAN = b"The train to Aiur leaves at 07:42.\n"
TABLE = b"".join(b"station %d,platform %d\n" % (number, number % 9) for number in range(20_000))
PDF = b"%PDF-1.7\n" + bytes(range(256)) * 8


async def add(http: httpx.AsyncClient, folder: str, name: str, content: bytes, **headers: str) -> httpx.Response:
    return await http.post(PATH, params={"name": folder, "file": name}, content=content, headers=headers)


async def added(http: httpx.AsyncClient, folder: str, name: str, content: bytes, kind: str = "text/plain") -> str:
    answer = await add(http, folder, name, content, **{"Content-Type": kind})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


async def listed(http: httpx.AsyncClient, folder: str) -> list[str]:
    items = (await http.get(PATH, params={"name": folder})).raise_for_status().json()["items"]
    return [item["name"] for item in items]


async def prompt_of(thread: Thread, provider: Server, **options: Any) -> str:
    """Everything that the model gets with the next question."""
    sent = await thread.send("When does it leave?", options=options)
    await thread.ended(sent["runId"])
    return str(provider.calls[-1].body["messages"])


async def filed(who: Account, folder: str = "Trips") -> Thread:
    thread = await own_thread(who)
    await file(thread, folder)
    return thread


async def test_a_file_is_added_listed_read_and_removed(database_url: str) -> None:
    async with served(database_url) as (_, who, _provider):
        http = who.http
        answer = await add(http, "Trips", "../plans/plan.md", PLAN, **{"Content-Type": "text/markdown"})
        entry = answer.json()
        assert (answer.status_code, entry["name"], entry["size"]) == (201, "plan.md", len(PLAN))
        assert entry.keys() == {"id", "name", "size", "mediaType", "createdAt"}
        assert entry["mediaType"] == "text/markdown"
        assert [folder["name"] for folder in await folders(http)] == ["Trips"], "the folder is made"
        await added(http, "Trips", "map.pdf", PDF, "application/octet-stream")
        items = (await http.get(PATH, params={"name": "Trips"})).json()["items"]
        assert [(item["name"], item["mediaType"]) for item in items] == [
            ("map.pdf", "application/pdf"), ("plan.md", "text/markdown"),
        ]  # fmt: skip
        content = await http.get(f"{PATH}/{entry['id']}", headers={"Range": "bytes=4-8"})
        assert (content.status_code, content.content) == (206, b"train")
        assert "sandbox" in content.headers["Content-Security-Policy"]
        again = await add(http, "Trips", "plan.md", PLAN)
        assert again.json()["id"] == entry["id"], "a repeated request adds nothing"
        other = await add(http, "Trips", "plan.md", b"Another plan.")
        assert (other.status_code, other.json()["code"]) == (409, "conflict")
        assert "plan.md" in other.json()["detail"]
        for _ in range(2):
            assert (await http.delete(f"{PATH}/{entry['id']}")).status_code == 204
        assert (await http.get(f"{PATH}/{entry['id']}")).status_code == 404
        assert await listed(http, "Trips") == ["map.pdf"]
        assert await listed(http, "Elsewhere") == []


async def test_wrong_files_are_refused(database_url: str) -> None:
    async with served(database_url) as (_, who, _provider):
        for name, content, headers, status in (
            ("empty.txt", b"", {}, 400),
            ("", PLAN, {}, 400),
            ("a/", PLAN, {}, 400),
            ("\0", PLAN, {}, 400),
            ("program", b"\x7fELF\0\0", {}, 415),
            ("form.txt", PLAN, {"Content-Type": "multipart/form-data; boundary=x"}, 415),
        ):
            refused = await add(who.http, "Trips", name, content, **headers)
            assert refused.status_code == status, (name, refused.text)
        for folder in ("", "a\nb", "x" * 81):
            assert (await add(who.http, folder, "plan.md", PLAN)).status_code == 400
        assert (await who.http.post(PATH, params={"name": "Trips"}, content=PLAN)).status_code == 400
        assert await folders(who.http) == []


async def test_a_folder_and_an_account_have_limits(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_files, "MAX_FILES", 2)
    monkeypatch.setattr(folder_files, "MAX_TOTAL_BYTES", 3 << 20)
    async with served(database_url) as (_, who, _provider):
        http, large = who.http, b"x" * (2 << 20)
        await added(http, "Trips", "one.txt", large)
        refused = await add(http, "Trips", "two.txt", large)
        assert (refused.status_code, refused.json()["code"]) == (413, "payload_too_large")
        assert "3 MB" in refused.json()["detail"]
        await added(http, "Trips", "two.txt", PLAN)
        refused = await add(http, "Trips", "three.txt", PLAN)
        assert (refused.status_code, refused.json()["code"]) == (409, "conflict")
        await added(http, "Work", "three.txt", PLAN)
        db = Database(database_url)
        quota = StorageQuota(thread=2 << 20, guest=1)
        async with db.driver() as driver:
            with pytest.raises(PayloadTooLarge, match="all your folders"):
                await folder_files.check_quota(driver, UUID(who.id), "Work", 1, quota, files=1)
        await db.close()


async def test_a_refused_upload_stores_no_bytes(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    put: list[str] = []

    async def record(store: FilesystemBlobStore, key: str, path: Path) -> None:
        put.append(key)
        await stored(store, key, path)

    stored = FilesystemBlobStore.put
    monkeypatch.setattr(FilesystemBlobStore, "put", record)
    monkeypatch.setattr(folder_files, "MAX_FILES", 2)
    monkeypatch.setattr(folder_files, "MAX_TOTAL_BYTES", 3 << 20)
    async with served(database_url) as (_, who, _provider):
        await added(who.http, "Trips", "one.txt", b"%d" % ids.new().int)
        before = len(put)
        other_content = await add(who.http, "Trips", "one.txt", b"%d" % ids.new().int)
        assert other_content.status_code == 409
        too_large = await add(who.http, "Trips", "two.txt", b"%d" % ids.new().int * (1 << 17))
        assert too_large.status_code == 413
        await added(who.http, "Trips", "two.txt", b"%d" % ids.new().int)
        full = await add(who.http, "Trips", "three.txt", b"%d" % ids.new().int)
        assert full.status_code == 409
        assert (before, len(put)) == (1, 2), "only the files that were added"


async def test_an_upload_over_the_servers_limit_is_refused(database_url: str) -> None:
    async with serve(database_url, KHALA_UPLOAD_MB="1") as (server, _), account(server) as who:
        refused = await add(who.http, "Trips", "large.txt", b"x" * ((1 << 20) + 1))
        assert (refused.status_code, refused.json()["code"]) == (413, "payload_too_large")
        await added(who.http, "Trips", "small.txt", PLAN)


async def test_only_the_account_sees_and_changes_its_files(database_url: str) -> None:
    async with served(database_url) as (server, who, _), account(server, "Fenix") as other:
        file_id = await added(who.http, "Trips", "plan.md", PLAN)
        theirs = await added(other.http, "Trips", "plan.md", PLAN)
        assert theirs != file_id
        assert (await other.http.get(f"{PATH}/{file_id}")).status_code == 404
        assert (await other.http.delete(f"{PATH}/{file_id}")).status_code == 204
        assert (await other.http.delete(f"{PATH}/{theirs}")).status_code == 204
        assert (await listed(who.http, "Trips"), await listed(other.http, "Trips")) == (["plan.md"], [])
        guest = await server.thread()
        await put(server.http, "Trips", headers=guest.headers, instructions="We fly.")
        for response in (
            await server.http.get(PATH, params={"name": "Trips"}, headers=guest.headers),
            await server.http.get(f"{PATH}/{file_id}", headers=guest.headers),
            await server.http.delete(f"{PATH}/{file_id}", headers=guest.headers),
            await add(server.http, "Trips", "plan.md", PLAN, **guest.headers),
        ):
            assert (response.status_code, response.json()["code"]) == (401, "unauthorized")
        assert await listed(who.http, "Trips") == ["plan.md"]


async def test_a_run_in_the_folder_gets_the_text_of_small_files(database_url: str) -> None:
    async with served(database_url) as (_, who, provider):
        await added(who.http, "Trips", "plan.md", PLAN)
        thread = await own_thread(who)
        assert "07:42" not in await prompt_of(thread, provider)
        await file(thread, "Trips")
        text = await prompt_of(thread, provider)
        assert all(part in text for part in ("07:42", "plan.md", '"Trips"'))
        assert text.index("07:42") < text.index("When does it leave?")
        run_id = (await thread.send("And back?"))["runId"]
        await thread.ended(run_id)
        (call,) = await context_of(thread, run_id)
        assert section(call, "folderFiles")["items"] == 1
        assert section(call, "folderFiles")["tokens"] > len(PLAN) // 8
        assert "07:42" not in await prompt_of(thread, provider, personal=False)
        await made(who.http, "Trips", name="Journeys")
        assert "07:42" in await prompt_of(thread, provider), "the files go with the name of the folder"
        await file(thread, None)
        assert "07:42" not in await prompt_of(thread, provider)
        temporary = await who.http.post("/api/threads", json={"temporary": True})
        hidden = Thread(who.http, temporary.raise_for_status().json()["thread"]["id"], "")
        hidden.headers = {}
        assert "07:42" not in await prompt_of(hidden, provider)


async def test_the_model_reads_and_searches_a_large_file_by_its_id(database_url: str) -> None:
    ids: list[str] = []

    def reply(call: Call) -> Reply:
        if call.body["messages"][-1]["role"] == "tool":
            return Reply(tokens=("Platform 5.",))
        args = {"blobId": ids[0], "mode": "grep", "pattern": "station 19004,"}
        return Reply(calls=(UseTool(name="read_blob", args=args),))

    async with (
        serve(database_url, default=reply, KHALA_CONTEXT_TOKENS="20000") as (server, provider),
        account(server) as who,
        account(server, "Fenix") as member,
    ):
        ids.append(await added(who.http, "Trips", "stations.csv", TABLE, "text/csv"))
        thread = await filed(who)
        agent = await act(thread, "Which platform has station 19004?", tools=["read_blob"], autopilot=True)
        await agent.ended()
        first = str(provider.calls[0].body["messages"])
        assert "stations.csv" in first
        assert ids[0] in first
        assert "station 100," not in first
        (card,) = await agent.cards()
        assert (card["state"], "station 19004,platform 5" in card["output"]) == ("completed", True)
        (call, _) = await context_of(thread, agent.run_id)
        (left,) = section(call, "folderFiles")["leftOut"]
        assert (left["what"], left["why"]) == (f"blob:{ids[0]}", "unread")
        await join_by_link(who, thread, member)
        theirs = Thread(member.http, thread.id, "")
        theirs.headers = {}
        agent = await act(theirs, "Which platform?", tools=["read_blob"], autopilot=True)
        await agent.ended()
        cards = await agent.cards()
        assert [card["state"] for card in cards] == ["failed"], "another member does not reach the owner's files"
        assert "stations.csv" not in str(provider.calls[-2].body["messages"][-1])


async def test_a_run_that_is_not_personal_reads_no_file_of_the_folder_by_its_id(database_url: str) -> None:
    file_ids: list[str] = []

    def reply(call: Call) -> Reply:
        if call.body["messages"][-1]["role"] == "tool":
            return Reply(tokens=("Done.",))
        return Reply(calls=(UseTool(name="read_blob", args={"blobId": file_ids[0], "mode": "head"}),))

    async with serve(database_url, default=reply) as (server, _), account(server) as who:
        file_ids.append(await added(who.http, "Trips", "plan.md", PLAN))
        thread = await filed(who)
        for personal, state in ((False, "failed"), (True, "completed")):
            agent = await act(thread, "When?", tools=["read_blob"], autopilot=True, personal=personal)
            await agent.ended()
            assert [card["state"] for card in await agent.cards()] == [state], personal


async def test_another_member_of_a_shared_thread_gets_their_own_files_only(database_url: str) -> None:
    async with served(database_url) as (server, who, provider), account(server, "Fenix") as member:
        thread = await filed(who)
        await added(who.http, "Trips", "plan.md", PLAN)
        await join_by_link(who, thread, member)
        theirs = Thread(member.http, thread.id, "")
        theirs.headers = {}
        assert "07:42" not in await prompt_of(theirs, provider)
        await added(member.http, "Trips", "own.md", b"The shuttle leaves at 09:15.")
        assert "09:15" not in await prompt_of(theirs, provider), "the member keeps the thread in no folder"
        await file(theirs, "Trips")
        text = await prompt_of(theirs, provider)
        assert ("07:42" in text, "09:15" in text) == (False, True)
        text = await prompt_of(thread, provider)
        assert ("07:42" in text, "09:15" in text) == (True, False)


async def test_files_that_do_not_fit_are_named(database_url: str) -> None:
    async with served(database_url) as (_, who, provider):
        thread = await filed(who)
        await added(who.http, "Trips", "plan.md", PLAN)
        await added(who.http, "Trips", "long.md", b"a line about the way there and back\n" * 1500)
        text = await prompt_of(thread, provider)
        assert "07:42" in text, "the small file enters first"
        assert "a line about" not in text
        assert "long.md" in text


async def test_bytes_stay_while_a_folder_has_them_and_go_with_the_folder_and_the_account(database_url: str) -> None:
    db = Database(database_url)
    async with served(database_url) as (server, who, _), account(server, "Fenix") as other:
        await added(who.http, "Trips", "plan.md", PLAN)
        kept = await added(who.http, "Work", "plan.md", PLAN)
        await added(other.http, "Trips", "own.md", b"Another file.")
        async with blob_service_of(db) as blob_service:
            collector = BlobGarbageCollector(db, blob_service.store)
            age = "UPDATE objects SET touched_at = now() - interval '2 hours'"
            async with db.driver() as driver:
                await driver.execute(age)
            await retention.purge(db, RetentionPolicy(idle=timedelta(days=1)))
            assert (await collector.due(), await collector.collect(max_kept=float("inf"))) == (0, 0)
            (await who.http.delete("/api/me/folder", params={"name": "Trips"})).raise_for_status()
            assert await listed(who.http, "Trips") == []
            assert await collector.due() == 0, "the other folder has the same bytes"
            assert (await who.http.get(f"{PATH}/{kept}")).content == PLAN
            (await who.http.request("DELETE", "/api/me", json={"password": "en taro adun"})).raise_for_status()
            async with db.driver() as driver:
                left = await driver.fetchval("SELECT count(*) FROM folder_files WHERE user_id = $1", UUID(who.id))
                await driver.execute(age)
            assert (left, await collector.due()) == (0, 1)
        assert await listed(other.http, "Trips") == ["own.md"]
    await db.close()
