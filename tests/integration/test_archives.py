"""Archives: an export contains the whole account, and an import restores it and rejects an archive that is invalid."""

import asyncio
import contextlib
import hashlib
import os
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import asyncpg
import msgspec
import pytest

from khala.api.accounts import exports
from khala.archive import exporter
from khala.archive.reader import ArchiveReader
from khala.domain.access import Caller
from khala.domain.archive_format import MANIFEST, ArchiveRefusedError
from khala.domain.budgets import BudgetPolicy
from khala.domain.plans.commands import Start, Stop
from khala.identity import passwords
from khala.store.budgets import charges
from khala.store.budgets.charges import Payer
from khala.store.operations.archive_exclusions import LEFT_OUT
from khala.store.operations.archive_rows import KINDS
from khala.store.operations.retention import RetentionPolicy, purge
from khala.store.operations.verify import VerifyProgress, find_differences
from khala.store.plans import plan_leases
from khala.store.postgres.database import Database
from khala.store.runs import parts
from khala.store.schema import tables
from tests.support import postgres
from tests.support.account_with_data import (
    FILE,
    IMAGE,
    PASSWORD,
    account,
    archive_of,
    deployment,
    fill_account,
    import_into,
    own_thread,
    store_of,
    upload,
)
from tests.support.archives import files_of, lines_of, manifest_of, packed
from tests.support.client import client
from tests.support.plans import ThreadPlan, step
from tests.support.s3 import BUCKET, serving
from tests.support.server import ROOT
from tests.support.stored_plans import stored_plan

EMPTY_LAYOUT = msgspec.msgpack.encode([[], []]).hex()
DIFFER = {
    "invitations",
    "logins",
    "sessions",
    "tokens",
    "links",
    "memberships",
    "charges",
    "usage",
    "written",
    "feedback",
}
"""What an import does not make, as docs/protocol.md says."""


@pytest.fixture
def elsewhere_url(postgres_url: str, template: str) -> Iterator[str]:
    """The empty database of another deployment."""
    with postgres.sync_database(postgres_url, template) as url:
        yield url


def test_each_table_and_column_is_exported_or_left_out_for_a_reason() -> None:
    exported = {kind.table.name for kind in KINDS}
    assert exported | set(LEFT_OUT) == set(tables.metadata.tables)
    assert exported.isdisjoint(LEFT_OUT)
    for kind in KINDS:
        assert set(kind.left_out) <= set(kind.table.columns.keys()), kind.name
    secret = ("hash", "secret", "token", "verifier", "nonce")
    secret_columns = {
        f"{kind.table.name}.{column.name}"
        for kind in KINDS
        for column in kind.columns
        if any(word in column.name for word in secret)
    }
    assert secret_columns == {"receipts.hash"}, "the hash chain of receipts is not a secret"


@contextlib.contextmanager
def blob_stores(where: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str | None, str | None]]:
    """The URLs of two blob stores; None for folders."""
    if where == "folder":
        yield None, None
        return
    with serving() as s3:
        for name, value in s3.env.items():
            monkeypatch.setenv(name, value)
        yield f"s3://{BUCKET}/here", f"s3://{BUCKET}/there"


@pytest.mark.parametrize("where", ["folder", "bucket"])
async def test_an_imported_account_equals_the_exported_one(
    database_url: str, elsewhere_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    with blob_stores(where, tmp_path, monkeypatch) as (here, there):
        async with (
            deployment(database_url, tmp_path / "here", here) as server,
            account(server) as who,
            account(server, "Zeratul") as friend,
        ):
            thread = await fill_account(who, friend)
            first, before = await archive_of(who), await thread.snapshot()
            friends = await archive_of(friend)
        assert manifest_of(first)["missing"] == []
        (tmp_path / "first.zip").write_bytes(first)
        (tmp_path / "friend.zip").write_bytes(friends)
        hashed = await passwords.hash_password(PASSWORD)
        async with store_of(there, tmp_path / "there", elsewhere_url) as (db, blob_service):
            await import_into(db, blob_service, tmp_path / "friend.zip", trusted=True)
            done = await import_into(db, blob_service, tmp_path / "first.zip", trusted=True, password_hash=hashed)
            assert done.added
            rows = await row_counts(db)
            assert not (await import_into(db, blob_service, tmp_path / "first.zip", trusted=True)).added
            assert await row_counts(db) == rows, "a second import adds nothing"
        async with deployment(elsewhere_url, tmp_path / "there", there) as server, client(server.url) as http:
            login = {"email": who.email, "password": PASSWORD}
            (await http.post("/api/auth/login", json=login)).raise_for_status()
            again = await archive_of(msgspec.structs.replace(who, http=http))
            thread.http = http
            assert await thread.snapshot() == before
        assert_equal(first, again)
        assert {FILE, IMAGE} <= {content for name, content in files_of(again).items() if name.startswith("blobs/")}
        db = Database(elsewhere_url)
        assert [difference async for difference in find_differences(db, VerifyProgress())] == []
        await db.close()


async def pack_all(url: str) -> int:
    """Pack the parts of all runs that have ended."""
    db = Database(url)
    try:
        async with db.driver() as driver:
            await driver.execute("UPDATE runs SET finished_at = now() - interval '1 day' WHERE finish IS NOT NULL")
        policy = RetentionPolicy(idle=timedelta(0), parts=timedelta(milliseconds=1))
        return (await purge(db, policy))["packed runs"]
    finally:
        await db.close()


async def test_packed_parts_are_exported_and_imported_as_they_are(
    database_url: str, elsewhere_url: str, tmp_path: Path
) -> None:
    async with (
        deployment(database_url, tmp_path / "here") as server,
        account(server) as who,
        account(server, "Zeratul") as friend,
    ):
        thread = await fill_account(who, friend)
        runs = [line["id"] for line in lines_of(await archive_of(who), "runs")]
        before = {run: [(part["seq"], part["kind"], part["data"]) for part in await thread.parts(run)] for run in runs}
        assert await pack_all(database_url) >= len(runs)
        packed_archive = await archive_of(who)
    assert all(line["partsLayout"] for line in lines_of(packed_archive, "runs"))
    assert lines_of(packed_archive, "parts") == []
    (tmp_path / "packed.zip").write_bytes(packed_archive)
    async with store_of(None, tmp_path / "there", elsewhere_url) as (db, blob_service):
        await import_into(db, blob_service, tmp_path / "packed.zip")
        async with db.driver() as driver:
            after = {
                run: [
                    (part.seq, part.kind, msgspec.json.decode(part.data))
                    for part in await parts.of_run(driver, UUID(thread.id), UUID(run))
                ]
                for run in runs
            }
        assert after == before
        assert [difference async for difference in find_differences(db, VerifyProgress())] == []


async def row_counts(db: Database) -> dict[str, int]:
    """The number of rows of each table."""
    async with db.driver() as driver:
        return {name: await driver.fetchval(f'SELECT count(*) FROM "{name}"') for name in tables.metadata.tables}


def assert_equal(first: bytes, again: bytes) -> None:
    """Both archives are equal, except for tables that an import changes and the audit entry of the import itself."""
    before, other = files_of(first), files_of(again)
    assert set(before) == set(other)
    for name in set(before) - {MANIFEST, "audit.jsonl"} - {f"{name}.jsonl" for name in DIFFER}:
        assert before[name] == other[name], name
    audited = [line["action"] for line in lines_of(again, "audit")]
    assert lines_of(again, "audit")[: len(lines_of(first, "audit"))] == lines_of(first, "audit")
    assert audited[len(lines_of(first, "audit")) :] == ["account_imported", "signed_in"]


async def test_an_archive_has_rows_of_each_kind_and_no_secret(database_url: str, tmp_path: Path) -> None:
    async with (
        deployment(database_url, tmp_path) as server,
        account(server) as who,
        account(server, "Zeratul") as friend,
    ):
        thread = await fill_account(who, friend)
        theirs = await own_thread(friend, "Theirs")
        stranger = await fill_account(friend, who)
        (
            await who.http.post(f"/api/threads/{stranger.id}/send", json={"text": "/words=1 As a guest"})
        ).raise_for_status()
        invited = await own_thread(friend, "Come along")
        path = f"/api/threads/{invited.id}/members/{who.id}"
        (await friend.http.put(path, json={"role": "viewer"})).raise_for_status()
        await store_call(database_url, who.id)
        for http, content in ((friend.http, b"Theirs, too"), (who.http, b"A note")):
            (await http.put("/v1/stream/notes", headers={"Content-Type": "text/plain"})).raise_for_status()
            appended = await http.post("/v1/stream/notes", content=content, headers={"Content-Type": "text/plain"})
            appended.raise_for_status()
        archive = await archive_of(who)
    files = files_of(archive)
    empty = {name for name, content in files.items() if not content}
    assert empty == {"identities.jsonl", "approvals.jsonl"}
    texts = b"".join(content for name, content in files.items() if name.endswith(".jsonl"))
    assert b"argon2" not in texts
    for column in ("hash", "secret_hash", "key_hash"):
        assert await stored_secrets(database_url, column, texts) == []
    assert theirs.id.encode() not in texts, "the archive contains no data of another account"
    assert {line["threadId"] for line in lines_of(archive, "memberships")} == {stranger.id}
    assert {line["threadId"] for line in lines_of(archive, "invitations")} == {invited.id}
    assert [line["content"][0]["text"] for line in lines_of(archive, "written")] == ["/words=1 As a guest"]
    assert [line["name"] for line in lines_of(archive, "streams")] == ["notes"]
    assert len(lines_of(archive, "stream_chunks")) == 1
    blobs = {line["sha256"] for name in ("blobs", "folder_files") for line in lines_of(archive, name)}
    assert [line["name"] for line in lines_of(archive, "folder_files")] == ["plan.txt"]
    assert {f"blobs/{sha256}" for sha256 in blobs} == {name for name in files if name.startswith("blobs/")}
    for sha256 in blobs:
        assert hashlib.sha256(files[f"blobs/{sha256}"]).hexdigest() == sha256
    assert thread.id in {line["id"] for line in lines_of(archive, "threads")}


async def store_call(url: str, user_id: str) -> None:
    """Store the receipt of a call that was made for the user outside of runs."""
    database = Database(url)
    try:
        payer = Payer(keys={}, user_id=UUID(user_id))
        charge = await charges.begin(database, BudgetPolicy(), payer, "extraction", {})
        await charges.end(database, charge, {}, {"model": "test"}, None)
    finally:
        await database.close()


async def stored_secrets(url: str, column: str, texts: bytes) -> list[str]:
    """The values of all columns of this name that occur in these texts."""
    connection = await asyncpg.connect(url)
    try:
        found = []
        for name, table in tables.metadata.tables.items():
            if column in table.columns and name != "receipts":
                found += [row[0] for row in await connection.fetch(f'SELECT "{column}" FROM "{name}"')]
    finally:
        await connection.close()
    spelled = [value.hex() if isinstance(value, bytes) else str(value) for value in found]
    return [value for value in spelled if value.encode() in texts]


async def test_an_export_is_json_lines_on_request_and_an_archive_by_default(database_url: str, tmp_path: Path) -> None:
    async with deployment(database_url, tmp_path) as server, account(server) as who:
        for accepted, given in (
            ("application/jsonl", "application/jsonl"),
            ("application/zip;q=0.5, application/jsonl", "application/jsonl"),
            ("application/zip, application/jsonl;q=0.5", "application/zip"),
            ("*/*", "application/zip"),
            ("text/html,application/xhtml+xml,*/*;q=0.8", "application/zip"),
        ):
            answer = await who.http.get("/api/me/export", headers={"Accept": accepted})
            assert answer.headers["content-type"].startswith(given), accepted
        lines = await who.http.get("/api/me/export", headers={"Accept": "application/jsonl"})
        assert [msgspec.json.decode(line)["type"] for line in lines.text.splitlines()] == ["user"]


async def test_a_lost_or_damaged_blob_is_listed_in_the_manifest_and_the_rest_is_exported(
    database_url: str, elsewhere_url: str, tmp_path: Path
) -> None:
    home = tmp_path / "here"
    async with deployment(database_url, home) as server, account(server) as who:
        thread = await own_thread(who)
        for content in (b"gone", b"damaged", b"whole"):
            await upload(thread, content, "text/plain", "a.txt")
        names = {content: hashlib.sha256(content).hexdigest() for content in (b"gone", b"damaged", b"whole")}
        kept = {content: home / "blobs" / name[:2] / name for content, name in names.items()}
        kept[b"gone"].unlink()
        kept[b"damaged"].chmod(0o600)
        kept[b"damaged"].write_bytes(b"DAMAGED")
        archive = await archive_of(who)
    missing = {blob["sha256"]: blob["reason"] for blob in manifest_of(archive)["missing"]}
    assert missing == {names[b"gone"]: "gone", names[b"damaged"]: "damaged"}
    assert files_of(archive)[f"blobs/{names[b'whole']}"] == b"whole"
    (tmp_path / "archive.zip").write_bytes(archive)
    async with store_of(None, tmp_path / "there", elsewhere_url) as (db, blob_service):
        done = await import_into(db, blob_service, tmp_path / "archive.zip")
        assert done.counts["blob"] == 1
        assert any("2 blobs were left out" in note for note in done.notes)


async def test_an_export_reads_one_snapshot_and_no_transaction_waits_for_the_client(
    db: Database, database_url: str, tmp_path: Path
) -> None:
    async with deployment(database_url, tmp_path) as server, account(server) as who:
        thread = await own_thread(who)
        await upload(thread, IMAGE * 20, "image/png", "large.png")
        async with store_of(None, tmp_path, database_url) as (store, blob_service):
            chunks = exporter.export_archive(store, blob_service, await only_user_id(db))
            got = [await anext(chunks)]
            await until_no_transaction_waits(db)
            await own_thread(who)
            got += [chunk async for chunk in chunks]
    assert [line["id"] for line in lines_of(b"".join(got), "threads")] == [thread.id]


async def until_no_transaction_waits(db: Database) -> None:
    """Wait until no transaction is idle. Those of the server's loops soon end; one of the export would stay."""
    waiting = """
        SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND state LIKE 'idle in transaction%'
    """
    async with db.driver() as driver, asyncio.timeout(4):
        while await driver.fetchval(waiting):
            await asyncio.sleep(0.05)


async def only_user_id(db: Database) -> Any:
    """The id of the only user."""
    async with db.driver() as driver:
        return await driver.fetchval("SELECT id FROM users")


async def test_an_export_that_is_refused_because_others_run_does_not_count(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exports, "MAX_EXPORTS_PER_HOUR", 2)
    async with deployment(database_url, tmp_path) as server, account(server) as who:
        with monkeypatch.context() as busy:
            busy.setattr(exports, "MAX_OPEN_ARCHIVES", 0)
            for _ in range(3):
                refused = await who.http.get("/api/me/export")
                assert (refused.status_code, refused.json()["limit"]) == (429, "open_exports")
        assert (await who.http.get("/api/me/export")).status_code == 200


async def test_an_account_has_one_export_at_a_time_and_a_client_that_disconnects_frees_it(
    database_url: str, tmp_path: Path
) -> None:
    async with deployment(database_url, tmp_path) as server, account(server) as who:
        thread = await own_thread(who)
        for number in range(12):
            await upload_noise(thread, number)
        reader, writer = await slow_client(server.url, dict(who.http.cookies))
        assert b"200" in await reader.readline()
        refused = await who.http.get("/api/me/export")
        assert (refused.status_code, refused.json()["code"]) == (429, "rate_limited")
        assert "retry-after" in refused.headers
        writer.transport.abort()
        await until_exported(who)


async def slow_client(url: str, cookies: dict[str, str]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A client that requests an export and has a small receive buffer."""
    address = urlsplit(url)
    taking = socket.socket()
    taking.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    taking.connect((address.hostname, address.port))
    reader, writer = await asyncio.open_connection(sock=taking, limit=4096)
    cookie = "; ".join(f"{name}={value}" for name, value in cookies.items())
    head = ["GET /api/me/export HTTP/1.1", f"Host: {address.netloc}", f"Cookie: {cookie}", "Accept: */*", "", ""]
    writer.write("\r\n".join(head).encode())
    await writer.drain()
    return reader, writer


async def upload_noise(thread: Any, number: int) -> str:
    """An upload that does not compress, and is larger than the socket buffers."""
    stream = hashlib.shake_256(bytes([number])).digest(1 << 20)
    return await upload(thread, b"\x89PNG\r\n\x1a\n" + stream, "image/png", "noise.png")


async def until_exported(who: Any) -> None:
    """Wait until an export of the account succeeds."""
    async with asyncio.timeout(20):
        while (await who.http.get("/api/me/export")).status_code == 429:
            await asyncio.sleep(0.05)


@pytest.fixture
async def archive(database_url: str, tmp_path: Path) -> AsyncIterator[dict[str, bytes]]:
    """The files of an archive."""
    async with (
        deployment(database_url, tmp_path / "here") as server,
        account(server) as who,
        account(server, "Zeratul") as friend,
    ):
        await fill_account(who, friend)
        yield files_of(await archive_of(who))


def changed(files: dict[str, bytes], name: str, **fields: Any) -> dict[str, bytes]:
    """The same files, with other values in the first line of one of them."""
    first, *rest = files[name].splitlines(keepends=True)
    line = msgspec.json.decode(first)
    line["data"] |= fields
    return files | {name: msgspec.json.encode(line) + b"\n" + b"".join(rest)}


def without(files: dict[str, bytes], *names: str) -> dict[str, bytes]:
    """The same files without these, of which the manifest does not tell either."""
    manifest = msgspec.json.decode(files[MANIFEST])
    manifest["files"] = [entry for entry in manifest["files"] if entry["name"] not in names]
    left = {name: content for name, content in files.items() if name not in names}
    return left | {MANIFEST: msgspec.json.encode(manifest)}


FOREIGN = "01890000-0000-7000-8000-000000000000"


async def test_an_invalid_archive_is_refused_and_leaves_nothing(
    archive: dict[str, bytes], elsewhere_url: str, tmp_path: Path
) -> None:
    blob = next(name for name in archive if name.startswith("blobs/"))
    manifest = msgspec.json.decode(archive[MANIFEST])
    wrong: list[tuple[dict[str, bytes], str, bool]] = [
        ({"a.txt": b""}, "'a.txt' does not belong in an archive", True),
        (archive | {"../../etc/passwd": b"x"}, "'../../etc/passwd' does not belong in an archive", True),
        (archive | {"blobs/../user.jsonl": b"x"}, "does not belong in an archive", True),
        ({name: data for name, data in archive.items() if name != MANIFEST}, "not a Khala archive", True),
        (archive | {MANIFEST: b'{"format":"zip"}'}, "not a Khala archive", False),
        (archive | {MANIFEST: msgspec.json.encode(manifest | {"version": 2})}, "version 2", False),
        (archive | {MANIFEST: msgspec.json.encode(manifest | {"more": 1})}, "unknown field", False),
        (archive | {"runs.jsonl": archive["runs.jsonl"] + b"{}\n"}, "its size differs", False),
        (archive | {"user.jsonl": archive["user.jsonl"].replace(b"Tassadar", b"Zeratul!")}, "not match the man", False),
        (archive | {blob: b"x" * len(archive[blob])}, "does not match its hash", False),
        ({name: data for name, data in archive.items() if name != blob}, "blobs do not match the manifest", False),
        (archive | {"todos.jsonl": b"{}"}, "line 1 is too long or incomplete", True),
        (archive | {"todos.jsonl": b"[]\n"}, "todos.jsonl, line 1", True),
        (changed(archive, "todos.jsonl", more=1), "unknown field `more`", True),
        (changed(archive, "messages.jsonl", content={"not": "blocks"}), "messages.jsonl, line 1", True),
        (changed(archive, "messages.jsonl", createdAt="0001-01-01T00:00:00Z"), "a time from 1970 to 9998", True),
        (changed(archive, "threads.jsonl", updatedAt="9999-12-31T23:59:59.999999Z"), "a time from 1970", True),
        (changed(archive, "messages.jsonl", threadId=FOREIGN), "thread that is not in the archive", True),
        (changed(archive, "messages.jsonl", parentId=FOREIGN), "follows one of another thread", True),
        (changed(archive, "runs.jsonl", userMessageId=FOREIGN), "a run whose messages", True),
        (changed(archive, "parts.jsonl", runId=FOREIGN), "parts whose run", True),
        (changed(archive, "runs.jsonl", partsLayout="00"), "runs.jsonl, line 1", True),
        (changed(archive, "runs.jsonl", partsLayout=EMPTY_LAYOUT, status="queued"), "with packed parts", True),
        (changed(archive, "receipts.jsonl", runId=FOREIGN), "receipts whose run", True),
        (changed(archive, "threads.jsonl", activeLeaf=FOREIGN), "whose active message", True),
        (changed(archive, "messages.jsonl", role="god"), "database rejected", True),
        (changed(archive, "receipts.jsonl", costUsd="NaN"), "a number of at least 0", True),
        (changed(archive, "todos.jsonl", text="\0"), "database rejected", True),
        (changed(archive, "files.jsonl", path="../a"), "files.jsonl, line 1", True),
        (changed(archive, "blobs.jsonl", mediaType="text/html\r\nX: y"), "media type", True),
        (changed(archive, "blobs.jsonl", size=1), "size of a blob differs from its line", True),
        (changed(archive, "tools.jsonl", parameters={"type": 5}), "tools.jsonl, line 1", True),
        (changed(archive, "plans.jsonl", threadId=FOREIGN), "thread that is not in the archive", True),
        (changed(archive, "plans.jsonl", state={}), "its state is not readable", True),
        (changed(archive, "plans.jsonl", status="stopped"), "its status is stopped, and its state says idle", True),
        (changed(archive, "plans.jsonl", eventSeq=2), "it claims 2 events and has 1", True),
        (changed(archive, "steps.jsonl", progress={"status": "completed"}), "'a' is not what its events fold to", True),
        (changed(archive, "steps.jsonl", planId=FOREIGN), "database rejected", True),
        (changed(archive, "events.jsonl", data={"type": "created"}), "its event 1 is not readable", True),
        (without(archive, "todos.jsonl"), "each file of lines", True),
        (changed(archive, "user.jsonl", id=FOREIGN), "different users", True),
    ]
    async with store_of(None, tmp_path / "there", elsewhere_url) as (db, blob_service):
        empty = await row_counts(db)
        for number, (files, why, honest) in enumerate(wrong):
            path = packed(files, tmp_path / f"{number}.zip", honest=honest)
            with pytest.raises(ArchiveRefusedError, match=why.replace("(", r"\(").replace("..", r"\.\.")):
                await import_into(db, blob_service, path)
            assert await row_counts(db) | {"objects": 0} == empty, why


async def test_an_archive_that_unpacks_beyond_the_limit_is_refused_before_it_is_unpacked(
    archive: dict[str, bytes], tmp_path: Path
) -> None:
    bomb = archive | {"user.jsonl": b" " * (64 << 20)}
    path = packed(bomb, tmp_path / "bomb.zip")
    assert path.stat().st_size < 2 << 20
    with pytest.raises(ArchiveRefusedError, match="more than the limit of 1,048,576"):
        ArchiveReader(path, max_bytes=1 << 20)


async def test_an_archive_gets_no_access_to_data_of_other_accounts(
    archive: dict[str, bytes], elsewhere_url: str, tmp_path: Path
) -> None:
    """The author of an archive can write anything into it about people who have accounts here."""
    async with deployment(elsewhere_url, tmp_path / "there") as server, account(server, "Victim") as victim:
        theirs = await own_thread(victim, "Theirs")
        async with store_of(None, tmp_path / "there", elsewhere_url) as (db, blob_service):
            secret = await upload_secret(theirs)
            before = await row_counts(db)
            for name, fields, why in (
                ("threads.jsonl", {"id": theirs.id}, "not in the archive|exists already"),
                ("messages.jsonl", {"threadId": theirs.id}, "not in the archive"),
                ("members.jsonl", {"threadId": theirs.id, "userId": victim.id}, "not in the archive"),
            ):
                path = packed(changed(archive, name, **fields), tmp_path / "forged.zip")
                with pytest.raises(ArchiveRefusedError, match=why):
                    await import_into(db, blob_service, path, trusted=True)
            assert await row_counts(db) | {"objects": 0} == before | {"objects": 0}
            forged = changed(archive, "messages.jsonl", authorId=victim.id)
            forged = changed(forged, "members.jsonl", userId=victim.id)
            identity = {"issuer": "https://id.example.com", "subject": "victim", "createdAt": "2026-01-01T00:00:00Z"}
            forged["identities.jsonl"] = msgspec.json.encode({"type": "identity", "data": identity}) + b"\n"
            forged = changed(forged, "runs.jsonl", status="queued", userId=victim.id)
            forged = changed(forged, "plans.jsonl", userId=victim.id)
            forged = with_claimed_bytes(forged, secret)
            done = await import_into(db, blob_service, packed(forged, tmp_path / "forged.zip"))
            assert {"member", "identity"}.isdisjoint(done.counts)
            async with db.driver() as driver:
                assert await driver.fetchval("SELECT count(*) FROM memberships") == 0
                assert await driver.fetchval("SELECT count(*) FROM identities") == 0
                for query in (
                    "SELECT count(*) FROM messages WHERE author_id = $1",
                    "SELECT count(*) FROM runs WHERE user_id = $1",
                    "SELECT count(*) FROM plans WHERE user_id = $1",
                ):
                    assert await driver.fetchval(query, victim.id) == 0
                statuses = "SELECT count(*) FROM runs WHERE status IN ('queued', 'running', 'blocked')"
                assert await driver.fetchval(statuses) == 0, "an import starts no run"
                sha256 = hashlib.sha256(secret).digest()
                assert await driver.fetchval("SELECT count(*) FROM blobs WHERE sha256 = $1", sha256) == 1


async def upload_secret(thread: Any) -> bytes:
    """Bytes that another user has stored here."""
    secret = b"the victim's own words"
    await upload(thread, secret, "text/plain", "secret.txt")
    return secret


def with_claimed_bytes(files: dict[str, bytes], content: bytes) -> dict[str, bytes]:
    """An archive that refers to bytes that it does not contain, as an attack on an object that is stored here."""
    sha256 = hashlib.sha256(content).hexdigest()
    files = changed(files, "blobs.jsonl", sha256=sha256, size=len(content))
    named = {msgspec.json.decode(line)["data"]["sha256"] for line in files["blobs.jsonl"].splitlines()}
    files = {name: data for name, data in files.items() if not name.startswith("blobs/") or name[6:] in named}
    manifest = msgspec.json.decode(files[MANIFEST])
    manifest["missing"] = [{"sha256": sha256, "size": len(content), "reason": "gone"}]
    return files | {MANIFEST: msgspec.json.encode(manifest)}


async def test_an_archive_from_before_plans_is_imported(
    archive: dict[str, bytes], elsewhere_url: str, tmp_path: Path
) -> None:
    older = without(archive, "plans.jsonl", "steps.jsonl", "events.jsonl")
    async with store_of(None, tmp_path / "there", elsewhere_url) as (db, blob_service):
        done = await import_into(db, blob_service, packed(older, tmp_path / "older.zip"))
    assert (done.counts["plan"], done.counts["thread"]) == (0, 2)


async def test_a_plan_that_was_going_on_is_imported_as_paused_and_verifies(
    db: Database, database_url: str, elsewhere_url: str, tmp_path: Path
) -> None:
    async with deployment(database_url, tmp_path / "here") as server, account(server) as who:
        thread = await own_thread(who)
        plan = ThreadPlan(db, thread, Caller(user_id=UUID(who.id)))
        await plan.create(step("a", "/hang=1"), step("b"))
        await plan.command(Start())
        await plan.wait(lambda stored: stored.plan.steps["a"].run_id is not None)
        archive = await archive_of(who)
        await plan.command(Stop())
    (tmp_path / "archive.zip").write_bytes(archive)
    async with store_of(None, tmp_path / "there", elsewhere_url) as (there, blob_service):
        done = await import_into(there, blob_service, tmp_path / "archive.zip")
        assert any("1 plans were going on" in note for note in done.notes)
        imported = await stored_plan(there, plan.id)
        assert (imported.plan.status, imported.plan.pause_reason) == ("paused", "requested")
        assert [one.status for one in imported.plan.steps.values()] == ["open", "open"]
        assert (imported.user_id, imported.requester_key_id) == (UUID(who.id), None)
        assert await plan_leases.claim(there, most=1, owner="test", lease_seconds=1) == []
        assert [difference async for difference in find_differences(there, VerifyProgress())] == []


async def test_an_unfinished_run_is_imported_as_canceled_and_verifies(
    db: Database, database_url: str, elsewhere_url: str, tmp_path: Path
) -> None:
    async with deployment(database_url, tmp_path / "here") as server, account(server) as who:
        thread = await own_thread(who)
        sent = await thread.send("/words=5000 /pace=40")
        await until_text_stored(db)
        archive = await archive_of(who)
        (await who.http.post(f"/api/runs/{sent['runId']}/cancel", json={})).raise_for_status()
    (tmp_path / "archive.zip").write_bytes(archive)
    async with store_of(None, tmp_path / "there", elsewhere_url) as (there, blob_service):
        done = await import_into(there, blob_service, tmp_path / "archive.zip")
        assert any("1 runs had not ended" in note for note in done.notes)
        async with there.driver() as driver:
            assert await driver.fetchval("SELECT status FROM runs") == "canceled"
        assert [difference async for difference in find_differences(there, VerifyProgress())] == []


async def until_text_stored(db: Database) -> None:
    """Wait until part of an answer is stored."""
    async with asyncio.timeout(20), db.driver() as driver:
        while not await driver.fetchval("SELECT count(*) FROM message_parts"):
            await asyncio.sleep(0.05)


async def test_an_existing_account_is_not_merged_with_an_imported_one(database_url: str, tmp_path: Path) -> None:
    async with deployment(database_url, tmp_path) as server, account(server) as who:
        (tmp_path / "archive.zip").write_bytes(await archive_of(who))
        async with store_of(None, tmp_path, database_url) as (db, blob_service):
            with pytest.raises(ArchiveRefusedError, match=r"exists already\. An import creates"):
                await import_into(db, blob_service, tmp_path / "archive.zip")


@pytest.mark.timeout(300)
async def test_an_operator_imports_an_account_and_gives_it_a_password(
    database_url: str, elsewhere_url: str, tmp_path: Path
) -> None:
    async with deployment(database_url, tmp_path / "here") as server, account(server) as who:
        await own_thread(who, "Shakuras")
        path = tmp_path / "archive.zip"
        path.write_bytes(await archive_of(who))
    env = {**os.environ, "DATABASE_URL": elsewhere_url, "KHALA_HOME": str(tmp_path / "there")}

    async def khala_import(*words: str, stdin: str = "", code: int = 0) -> str:
        command = [sys.executable, "-m", "khala", "import", str(path), *words]
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *command, env=env, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe
        )
        out, errors = await asyncio.wait_for(process.communicate(stdin.encode()), 100)
        said_back = (out + errors).decode()
        assert process.returncode == code, said_back
        return said_back

    assert "Nobody can sign in to this account yet" in await khala_import()
    assert "8 to 1024 characters" in await khala_import("--password-stdin", stdin="short\n", code=1)
    output = await khala_import("--password-stdin", "--email", "New@Example.com", stdin=f"{PASSWORD}\n")
    assert "nothing was added" in output
    assert "new@example.com" in output
    assert "already has a password" in await khala_import("--password-stdin", stdin=f"{PASSWORD}\n")
    path.write_bytes(b"no archive")
    assert "is not a ZIP file" in await khala_import(code=1)
    async with deployment(elsewhere_url, tmp_path / "there") as server, client(server.url) as http:
        login = {"email": "new@example.com", "password": PASSWORD}
        (await http.post("/api/auth/login", json=login)).raise_for_status()
        listed = (await http.get("/api/threads")).json()["items"]
        assert [thread["title"] for thread in listed] == ["Shakuras"]
