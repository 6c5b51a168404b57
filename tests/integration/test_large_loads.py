"""Large loads: outputs larger than memory allows, threads with thousands of calls, and hundreds of calls that hang."""

import asyncio
import contextlib
import hashlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import websockets
from sqlalchemy import text

from khala.domain import ids
from khala.store.postgres.database import Database
from tests.integration.test_agents import verified
from tests.support import postgres
from tests.support.agents import PECULIAR, Agent, act, call, rules, with_peculiar
from tests.support.callers import Person, person
from tests.support.client import Thread
from tests.support.in_process import InProcessServer, khala
from tests.support.server import Server, ended

MIB = 1 << 20
MOST_GROWTH = 16 * MIB
MOST_RESPONSE = 8 * MIB
STALL_SECONDS = 30.0
"""Time in which a run stores at least one part, on a busy machine, too."""
HANG_SECONDS = 600
"""Longer than the test: another thread that waits for a call that hangs never goes on."""
PARTS = "SELECT count(*) FROM message_parts WHERE run_id = $1"


class PeakMemory:
    """The peak memory of a process, sampled every 20 ms."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self.most = self.now()

    def now(self) -> int:
        return int(self._process.memory_info().rss)

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator["PeakMemory"]:
        self.most = self.now()
        watching = asyncio.create_task(self._watch())
        try:
            yield self
        finally:
            watching.cancel()

    async def _watch(self) -> None:
        while True:
            self.most = max(self.most, self.now())
            await asyncio.sleep(0.02)


async def new_owned_thread(http: httpx.AsyncClient, owner: Person) -> Thread:
    """A new thread of the user, requested with the user's token."""
    made = (await http.post("/api/threads", json={}, headers=owner.headers)).raise_for_status().json()
    thread = Thread(http, made["thread"]["id"], "")
    thread.headers = owner.headers
    return thread


async def print_bytes(thread: Thread, size: int) -> dict[str, Any]:
    """Let a program print so many bytes; returns the card of the call."""
    code = f"yes a | tr -d '\\n' | head -c {size}"
    agent = await act(thread, call("run_code", language="shell", code=code) + " /say Printed.")
    assert (await agent.ended(within=60))["status"] == "final"
    (card,) = await agent.cards()
    assert card["state"] == "completed", card
    return card


async def sha256_of(thread: Thread, blob_id: str) -> tuple[str, int]:
    """The SHA-256 and the size of a blob as served."""
    found, size = hashlib.sha256(), 0
    async with thread.http.stream("GET", f"/api/blobs/{blob_id}", headers=thread.headers) as response:
        assert response.status_code == 200
        async for chunk in response.aiter_bytes():
            found.update(chunk)
            size += len(chunk)
    return found.hexdigest(), size


@pytest.mark.timeout(180)
async def test_a_hundred_megabytes_of_output_are_one_blob_and_never_in_memory(
    database_url: str, db: Database, tmp_path: Path
) -> None:
    env = {"DATABASE_URL": database_url, "KHALA_MODEL": "demo", "KHALA_COOLDOWN_MS": "0"}
    server = Server(tmp_path / "server.log", env)
    size = 100 * MIB
    with ended(server):
        server.start()
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:
            thread = await new_owned_thread(http, await person(db))
            await rules(thread, run_code="allow")
            await print_bytes(thread, MIB)  # loads everything that is loaded once
            memory = PeakMemory(server.pid)
            before = memory.now()
            async with memory.watched():
                card = await print_bytes(thread, size)
                grown = memory.most - before
            print(f"printing: {grown / MIB:.1f} MiB more")
            assert grown < MOST_GROWTH
            blob = card.get("blob")
            assert blob is not None, card
            assert (blob["size"], "output" in card) == (size, False)
            async with memory.watched():
                assert await sha256_of(thread, blob["blobId"]) == (blob["sha256"], size)
                grown = memory.most - before
            print(f"and reading: {grown / MIB:.1f} MiB more")
            assert grown < MOST_GROWTH
        assert not server.crashes()
    whole = hashlib.sha256()
    for _ in range(100):
        whole.update(b"a" * MIB)
    assert blob["sha256"] == whole.hexdigest()
    async with db.driver() as driver:
        assert await driver.fetchval("SELECT count(*) FROM blobs WHERE size = $1", size) == 1
        assert await driver.fetchval("SELECT max(pg_column_size(data)) FROM message_parts") < 4096
    await verified(database_url)


async def copy_answer(database_url: str, thread: Thread, message_id: str, times: int) -> None:
    """Append so many copies of the answer to the thread."""
    db = Database(database_url)
    async with db.transaction() as connection:
        for number in range(1, times + 1):
            command = """
                INSERT INTO messages (id, thread_id, position, parent_id, role, status, content, revision)
                SELECT :new, thread_id, position + :number, id, role, status, content, revision
                FROM messages WHERE id = :id
            """
            await connection.execute(text(command), {"new": ids.new(), "number": number, "id": message_id})
    await db.close()


async def first_frame(server: InProcessServer, thread: Thread) -> tuple[dict[str, Any], int]:
    """The first snapshot frame of the socket, and its size in bytes."""
    protocol = websockets.Subprotocol("khala.v1")
    async with websockets.connect(server.socket_url, subprotocols=[protocol], max_size=None) as feed:
        subscribe = {"type": "subscribe", "threadId": thread.id, "anonKey": thread.key}
        await feed.send(json.dumps(subscribe))
        while True:
            frame = await feed.recv()
            found = json.loads(frame)
            if found["type"] == "snapshot":
                return found, len(frame.encode() if isinstance(frame, str) else frame)


async def ended_with_progress(database_url: str, agent: Agent) -> dict[str, Any]:
    """Wait until the run has ended, for as long as it stores further parts."""
    async with postgres.connected(database_url) as store:
        stored = -1
        while True:
            try:
                return await agent.ended(within=STALL_SECONDS)
            except TimeoutError:
                before, stored = stored, await store.fetchval(PARTS, agent.run_id)
                assert stored > before, f"the run makes no progress after {stored} parts"


@pytest.mark.timeout(240)
async def test_ten_thousand_calls_in_a_thread_are_read_in_pages_of_bounded_size(database_url: str) -> None:
    async with khala(database_url, KHALA_WELCOME="", KHALA_COOLDOWN_MS="0") as server:
        thread = await server.thread()
        await (await act(thread, call("write_file", path="long.txt", content="0123456789 " * 500))).ended()
        steps = [f"/times=200 {call('read_file', path='long.txt')} {call('glob', pattern=f'{n}*')}" for n in range(5)]
        agent = await act(thread, " /then ".join(steps) + " /say Read.")
        run = await ended_with_progress(database_url, agent)
        assert run["status"] == "final"
        cards = await agent.cards()
        assert len(cards) == 1000
        assert {card["state"] for card in cards} == {"completed"}
        await copy_answer(database_url, thread, agent.answer, 9)
        await assert_pages(server, thread)
    await verified(database_url)


async def assert_pages(server: InProcessServer, thread: Thread) -> None:
    path = f"/api/threads/{thread.id}"
    response = await server.http.get(path, headers=thread.headers)
    print(f"snapshot: {len(response.content) / MIB:.1f} MiB in {response.elapsed.total_seconds():.2f} s")
    assert len(response.content) < MOST_RESPONSE
    frame, size = await first_frame(server, thread)
    print(f"frame: {size / MIB:.1f} MiB")
    assert size < MOST_RESPONSE
    page = response.json()
    assert [message["id"] for message in frame["messages"]] == [message["id"] for message in page["messages"]]
    assert page["hasMore"]
    found, more = page["messages"], page["hasMore"]
    while more:
        older = await server.http.get(
            f"{path}/messages", params={"before": found[0]["id"], "limit": 100}, headers=thread.headers
        )
        assert len(older.raise_for_status().content) < MOST_RESPONSE
        assert older.json()["items"]
        found, more = older.json()["items"] + found, older.json()["hasMore"]
    calls = [block for result in found for block in result["content"] if block["type"] == "tool"]
    assert len(calls) == 1 + 10_000
    assert len({result["id"] for result in found}) == len(found) == 2 + 2 + 9


@pytest.mark.timeout(120)
async def test_two_hundred_calls_that_hang_delay_no_other_thread(database_url: str, tmp_path: Path) -> None:
    async with with_peculiar(database_url, tmp_path, TIMEOUT=str(HANG_SECONDS)) as (server, _):
        thread, other = await server.thread(), await server.thread()
        await rules(thread, _all="allow")
        hanging = await act(thread, f"/times=200 {call(PECULIAR + 'hang')}")
        async with asyncio.timeout(40):
            while await hanging.states() != ["running"] * 200:
                await asyncio.sleep(0.1)
        for _ in range(3):
            quick = await act(other, f"{call('todo_list')} {call('glob', pattern='*')} /say Quick.")
            run = await quick.ended()
            assert (run["status"], await quick.states()) == ("final", ["completed"] * 2)
        assert (await hanging.run())["status"] == "running"
        await hanging.cancel()
        assert (await hanging.ended(within=15))["status"] == "canceled"
        assert await hanging.states() == ["cancelled"] * 200
    await verified(database_url)
