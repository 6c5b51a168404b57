"""Durable streams in the database: whose they are, how many there may be, and how they go."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
import pytest_asyncio

from khala.store.accounts import account_removal
from khala.store.operations import retention
from khala.store.operations.retention import RetentionPolicy
from khala.store.postgres.database import Database
from tests.support.callers import person
from tests.support.in_process import InProcessServer
from tests.support.shared_server import shared

pytestmark = pytest.mark.asyncio(loop_scope="module")

POLICY = RetentionPolicy(idle=timedelta(0))
TEXT = {"Content-Type": "text/plain"}


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def server(postgres_url: str, template: str) -> AsyncIterator[InProcessServer]:
    async with shared(
        postgres_url,
        template,
        with_executor=False,
        KHALA_STREAMS_PER_ACCOUNT="3",
        KHALA_STREAM_BYTES="20",
        KHALA_STREAM_BYTES_PER_ACCOUNT="30",
    ) as inside:
        yield inside


async def count(store: Database, table: str) -> int:
    async with store.driver() as driver:
        found: int = await driver.fetchval(f"SELECT count(*) FROM {table}")
        return found


async def test_streams_of_an_account_are_its_own_bounded_exported_and_deleted_with_it(
    server: InProcessServer, store: Database
) -> None:
    http, mine, other = server.http, await person(store), await person(store)
    path = "/v1/stream/notes/a"
    assert (await http.put(path, headers=TEXT)).status_code == 401, "streams belong to accounts"
    made = await http.put(path, headers=mine.headers | TEXT, content=b"En taro ")
    assert (made.status_code, made.headers["Location"]) == (201, f"{server.url}{path}")
    assert (await http.get(path, headers=other.headers)).status_code == 404
    assert (await http.put(path, headers=other.headers | TEXT)).status_code == 201, "names are an account's own"
    assert (await http.post(path, headers=mine.headers | TEXT, content=b"Adun")).status_code == 204
    assert (await http.post(path, headers=mine.headers | TEXT, content=b"x" * 9)).status_code == 413
    fork = mine.headers | {"Stream-Forked-From": path}
    assert (await http.put("/v1/stream/notes/b", headers=fork, content=b"!")).status_code == 201
    assert (await http.get("/v1/stream/notes/b", headers=mine.headers)).text == "En taro Adun!"
    assert (await http.put("/v1/stream/notes/c", headers=mine.headers)).status_code == 201
    assert (await http.put("/v1/stream/notes/d", headers=mine.headers)).status_code == 429
    assert (await http.put("/v1/stream/threads/a", headers=mine.headers)).status_code == 405

    export = await http.get("/api/me/export", headers=mine.headers | {"Accept": "application/jsonl"})
    lines = [json.loads(line) for line in export.text.splitlines()]
    assert [line["data"]["name"] for line in lines if line["type"] == "stream"] == ["notes/a", "notes/b", "notes/c"]
    assert len([line for line in lines if line["type"] == "chunk"]) == 3

    await account_removal.remove(store, mine.caller, mine.id)
    async with store.driver() as driver:
        owners = [row["user_id"] for row in await driver.fetch("SELECT user_id FROM streams")]
    assert owners == [other.id]
    assert await count(store, "stream_chunks") == 0


async def test_all_streams_of_an_account_share_a_limit_that_deletions_free(
    server: InProcessServer, store: Database
) -> None:
    http, mine, other = server.http, await person(store), await person(store)
    assert (await http.put("/v1/stream/a", headers=mine.headers | TEXT, content=b"x" * 18)).status_code == 201
    refused = await http.put("/v1/stream/b", headers=mine.headers | TEXT, content=b"x" * 13)
    assert (refused.status_code, refused.json()["code"]) == (413, "payload_too_large")
    named = {name: refused.json()[name] for name in ("limit", "scope", "most")}
    assert named == {"limit": "stream_bytes", "scope": "account", "most": "30"}
    assert (await http.put("/v1/stream/b", headers=mine.headers | TEXT)).status_code == 201
    for size, status in ((11, 204), (2, 413), (1, 204), (1, 413)):
        appended = await http.post("/v1/stream/b", headers=mine.headers | TEXT, content=b"x" * size)
        assert appended.status_code == status, size
    assert appended.json()["limit"] == "stream_bytes"
    assert (await http.put("/v1/stream/b", headers=other.headers | TEXT, content=b"x" * 20)).status_code == 201
    assert (await http.delete("/v1/stream/a", headers=mine.headers)).status_code == 204
    assert (await http.post("/v1/stream/b", headers=mine.headers | TEXT, content=b"x" * 8)).status_code == 204


async def test_the_purge_deletes_expired_streams_but_no_source_before_its_forks(
    server: InProcessServer, store: Database
) -> None:
    http, mine = server.http, await person(store)
    soon = mine.headers | TEXT | {"Stream-Expires-At": "2030-01-01T00:00:00Z"}
    await http.put("/v1/stream/source", headers=soon, content=b"inherited")
    fork = mine.headers | {"Stream-Forked-From": "/v1/stream/source", "Stream-TTL": "600"}
    await http.put("/v1/stream/fork", headers=fork)
    async with store.driver() as driver:
        await driver.execute("UPDATE streams SET expires_at = now() WHERE name = 'source'")
    assert (await http.get("/v1/stream/source", headers=mine.headers)).status_code == 404
    assert (await retention.purge(store, POLICY))["streams"] == 0
    assert (await http.get("/v1/stream/fork", headers=mine.headers)).text == "inherited"
    async with store.driver() as driver:
        await driver.execute("UPDATE streams SET expires_at = now() WHERE name = 'fork'")
    assert (await retention.count_due(store, POLICY))["streams"] == 1
    deleted = await retention.purge(store, POLICY)
    deleted = {kind: deleted[kind] + more for kind, more in (await retention.purge(store, POLICY)).items()}
    assert deleted["streams"] == 2
    async with store.driver() as driver:
        assert await driver.fetchval("SELECT count(*) FROM streams WHERE user_id = $1", mine.id) == 0


@pytest.mark.parametrize("time", ["0001-01-01T00:00:00Z", "1969-12-31T23:59:59Z", "9999-12-31T23:59:59.999999Z"])
async def test_a_stream_never_has_an_expiry_that_postgres_stores_as_infinite(
    server: InProcessServer, store: Database, time: str
) -> None:
    mine = await person(store)
    refused = await server.http.put("/v1/stream/a", headers=mine.headers | TEXT | {"Stream-Expires-At": time})
    assert refused.status_code == 400
    assert (await server.http.get("/v1/stream/a", headers=mine.headers)).status_code == 404


async def test_a_browser_shows_a_stream_without_scripts_and_executes_none(
    server: InProcessServer, store: Database
) -> None:
    http, mine = server.http, await person(store)
    kinds = {"page": "text/html", "code": "text/javascript"}
    for name, kind in kinds.items():
        await http.put(f"/v1/stream/{name}", headers=mine.headers | {"Content-Type": kind}, content=b"alert()")
    for name, kind in kinds.items():
        for query in ("", "?offset=now", "?offset=-1&live=sse"):
            async with http.stream("GET", f"/v1/stream/{name}{query}", headers=mine.headers) as read:
                assert read.headers["Content-Type"].startswith("text/event-stream" if "sse" in query else kind)
                assert read.headers["Content-Security-Policy"] == "sandbox; default-src 'none'"
                assert read.headers["X-Content-Type-Options"] == "nosniff"
    for use in ("script", "style", "worker", "serviceworker"):
        refused = await http.get("/v1/stream/code", headers=mine.headers | {"Sec-Fetch-Dest": use})
        assert refused.status_code == 403
    shown = await http.get("/v1/stream/code", headers=mine.headers | {"Sec-Fetch-Dest": "empty"})
    assert shown.status_code == 200


async def test_an_append_of_too_many_messages_is_refused_and_delays_no_other(
    server: InProcessServer, store: Database
) -> None:
    mine = await person(store)
    kind = mine.headers | {"Content-Type": "application/json"}
    await server.http.put("/v1/stream/list", headers=kind)
    many, one = await asyncio.gather(
        server.http.post("/v1/stream/list", headers=kind, content=b"[1" + b",1" * 100_000 + b"]"),
        server.http.post("/v1/stream/list", headers=kind, content=b"1"),
    )
    assert (many.status_code, one.status_code) == (413, 204)
