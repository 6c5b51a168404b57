"""Accounts with data of every kind that an export contains."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID, uuid4

import httpx
import msgspec

from khala.archive.importer import ArchiveImportResult, ImportOptions, import_archive
from khala.archive.reader import ArchiveReader
from khala.blobs.blob_service import BlobService
from khala.blobs.store_url import open_store
from khala.domain.access import Caller
from khala.store.postgres.database import Database
from tests.support.client import Thread, client
from tests.support.in_process import InProcessServer, khala
from tests.support.stored_plans import new_plan

PASSWORD = "en taro adun"
FILE = b"kept beside the database\n" * 500
IMAGE = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 300
LONG = "a line of a file\n" * 500
"""More than one part may contain."""


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """A user who is signed in, with an address and the password `PASSWORD`."""

    http: httpx.AsyncClient
    id: str
    email: str
    database_url: str


@contextlib.asynccontextmanager
async def account(server: InProcessServer, name: str = "Tassadar") -> AsyncIterator[Account]:
    """A new account."""
    async with client(server.url) as http:
        email = f"{uuid4().hex}@example.com"
        body = {"email": email, "password": PASSWORD, "name": name}
        made = (await http.post("/api/auth/register", json=body)).raise_for_status().json()
        yield Account(http=http, id=made["id"], email=email, database_url=server.database_url)


async def own_thread(account: Account, title: str | None = None) -> Thread:
    """A new thread of this account."""
    body = {} if title is None else {"title": title}
    made = (await account.http.post("/api/threads", json=body)).raise_for_status().json()
    thread = Thread(account.http, made["thread"]["id"], "")
    thread.headers = {}
    return thread


async def upload(thread: Thread, content: bytes, media_type: str, name: str) -> str:
    """Upload a file to the thread; returns its blob id."""
    path, headers = f"/api/threads/{thread.id}/blobs", {"Content-Type": media_type}
    made = await thread.http.post(path, content=content, headers=headers, params={"name": name})
    return str(made.raise_for_status().json()["blobId"])


async def fill_account(account: Account, member: Account) -> Thread:
    """Create data of every kind; returns the thread that has most of it."""
    thread, other = await own_thread(account, "Shakuras"), await own_thread(account)
    files = [await upload(thread, FILE, "text/plain", "notes.txt"), await upload(thread, IMAGE, "image/png", "a.png")]
    sent = await thread.send("/words=7", attachments=files)
    assert (await thread.ended(sent["runId"]))["status"] == "final"
    written = msgspec.json.encode({"path": "long.txt", "content": LONG}).decode()
    read = '/call read_file {"path":"long.txt"} /then /call todo_add {"text":"Probe"}'
    text = f"/call write_file {written} /then {read}"
    sent = await thread.send(text, options={"autopilot": True})
    assert (await thread.ended(sent["runId"]))["status"] == "final"
    feedback = f"/api/messages/{sent['assistantMessageId']}/feedback"
    await upload(other, b"waits for a message", "text/plain", "waits.txt")
    rules = {"items": [{"pattern": "fetch_*", "action": "ask"}]}
    tool = {
        "name": "shout", "description": "Loud.", "parameters": {"type": "object"}, "language": "python",
        "code": "print(1)",
    }  # fmt: skip
    for verb, path, body in (
        ("PUT", feedback, {"rating": "down", "reason": "Too short"}),
        ("PATCH", "/api/me/preferences", {"instructions": "Rhyme."}),
        ("PATCH", f"/api/threads/{thread.id}/listing", {"pinned": True, "folder": "Trips"}),
        ("PATCH", "/api/me/folder?name=Trips", {"instructions": "We go by train."}),
        ("PUT", "/api/me/tool-rules", rules),
        ("PUT", f"/api/threads/{thread.id}/tool-rules", rules),
        ("POST", "/api/tools", tool),
        ("POST", "/api/tools/shout/decision", {"approved": True}),
        ("POST", "/api/tokens", {"name": "CI"}),
        ("POST", "/api/memories", {"text": "I live in Aiur", "keywords": "home"}),
        ("POST", "/api/agents", {"name": "poet", "title": "Poet", "budget": {"usd": "0.5"}}),
        ("PATCH", "/api/agents/poet", {"instructions": "Rhyme.", "examples": ["A poem"]}),
        ("POST", "/api/agents/poet/link", {}),
        ("POST", "/api/memories", {"text": "This is about Shakuras", "threadId": thread.id}),
    ):
        (await account.http.request(verb, path, json=body)).raise_for_status()
    await add_folder_file(account, "Trips", f"The train of {account.id}".encode())
    await add_plan(account, thread)
    await join_by_link(account, thread, member)
    return thread


async def add_folder_file(account: Account, folder: str, content: bytes) -> None:
    """Add a file to a folder of the account."""
    params = {"name": folder, "file": "plan.txt"}
    (await account.http.post("/api/me/folder/files", params=params, content=content)).raise_for_status()


async def add_plan(account: Account, thread: Thread) -> UUID:
    """An idle plan of two steps in the thread."""
    db = Database(account.database_url)
    try:
        return await new_plan(db, UUID(thread.id), Caller(user_id=user_id(account)))
    finally:
        await db.close()


async def join_by_link(account: Account, thread: Thread, member: Account) -> None:
    """The member joins the thread by a link."""
    link = (
        (await account.http.post(f"/api/threads/{thread.id}/links", json={"role": "editor"})).raise_for_status().json()
    )
    headers = {"X-Share-Key": link["shareKey"]}
    (await member.http.post(f"/api/threads/{thread.id}/join", headers=headers)).raise_for_status()


async def archive_of(account: Account) -> bytes:
    """The export of this account."""
    answer = (await account.http.get("/api/me/export")).raise_for_status()
    assert answer.headers["content-type"] == "application/zip"
    return answer.content


@contextlib.asynccontextmanager
async def store_of(url: str | None, home: Path, database_url: str) -> AsyncIterator[tuple[Database, BlobService]]:
    """The database and the blob service of a deployment."""
    db, store = Database(database_url, timeout=None), open_store(url, home)
    spool = home / "spool"
    spool.mkdir(parents=True, exist_ok=True)
    try:
        yield db, BlobService(db, store, folder=spool)
    finally:
        await store.aclose()
        await db.close()


async def import_into(db: Database, blob_service: BlobService, path: Path, **options: object) -> ArchiveImportResult:
    """Import the archive at this path."""
    with ArchiveReader(path, max_bytes=1 << 30) as reader:
        return await import_archive(db, blob_service, reader, ImportOptions(**options))  # type: ignore[arg-type]


@contextlib.asynccontextmanager
async def deployment(database_url: str, home: Path, url: str | None = None) -> AsyncIterator[InProcessServer]:
    """A server with its own blob storage."""
    env = {"KHALA_HOME": str(home)} | ({"BLOB_URL": url} if url else {})
    async with khala(database_url, with_executor=True, **env) as server:
        yield server


def user_id(account: Account) -> UUID:
    """The id of this account's user."""
    return UUID(account.id)
