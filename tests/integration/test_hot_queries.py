"""Hot queries name the threads whose rows they read, so that the tables can be distributed by thread id.

Statements that don't are listed here with the reason. The list is exact: an unneeded entry fails the test.
"""

import asyncio
import re
from typing import Any

import pytest

from khala.domain.plans.commands import Start
from khala.domain.tool_relevance import MAX_RELEVANT_TOOLS
from khala.store.postgres.database import Database, driver_url
from khala.store.runs import parts
from tests.support import postgres
from tests.support.agents import act, call, rules
from tests.support.callers import owned_thread, person
from tests.support.client import Thread
from tests.support.embeddings_server import serving_embeddings
from tests.support.frames import socket
from tests.support.in_process import InProcessServer, khala
from tests.support.plans import ThreadPlan, step
from tests.support.statements import has_plan, nodes, plan, recorded, unrestricted_tables
from tests.support.store import batch, lease_of, new_thread

QUEUE = "the queue is all threads': an executor looks for work anywhere"
HOUSEKEEPING = "what has expired or died is looked for everywhere, by an index of its own"
"""Where the tables are distributed, these ask every node: docs/scaling.md says what each would need."""

DUE = "schedules belong to accounts, and the first that is due may be anyone's; an index has them by time"
NOTIFIED = "notifications of many threads wait for push services, and the first that is due may be anyone's"
OWNER = "the runs of an owner, who has many threads, are limited; an index begins with the owner"
SPACE = "the memories of a space belong to a user and to many threads; an index begins with the space"
VERSIONS = "an old version of an agent is deleted unless an active run has it; an index has the active runs"
SEARCHED = "one process prepares messages and memories of all threads for searches"
EVENTS = "an endpoint gets the events of many threads; an index begins with the endpoint"
EXCUSED: dict[str, tuple[set[str], str]] = {
    r"^WITH active AS MATERIALIZED \( SELECT id, thread_id, position, plan_id, fairness_key": ({"runs"}, QUEUE),
    r"^SELECT EXISTS \(SELECT FROM runs WHERE status IN \('queued', 'running', 'blocked'\)": ({"runs"}, QUEUE),
    r"^SELECT DISTINCT remote_owner_id, options": ({"runs"}, QUEUE),
    r"^WITH thread AS MATERIALIZED \( SELECT id, owner_id, anon_key_hash, active_leaf": ({"runs"}, QUEUE),
    r"^WITH picked AS MATERIALIZED \( SELECT .* FROM plans": ({"plans"}, QUEUE),
    r"^SELECT extract\(epoch FROM min\(coalesce\(lease_expires_at": ({"plans"}, QUEUE),
    r"^WITH RECURSIVE waiting AS \( \(SELECT endpoint_id, due_at FROM webhook_deliveries": (
        {"webhook_deliveries"},
        EVENTS,
    ),
    r"^SELECT extract\(epoch FROM due_at - clock_timestamp\(\)\)::float FROM schedules": ({"schedules"}, DUE),
    r"^UPDATE push_messages SET due_at = .* ORDER BY due_at": ({"push_messages"}, NOTIFIED),
    r"^SELECT extract\(epoch FROM due_at - .*FROM push_messages": ({"push_messages"}, NOTIFIED),
    r"^SELECT plans.event_seq, plans.epoch, \( SELECT count": ({"runs"}, OWNER),
    r"^WITH bumped AS \( UPDATE users SET revision": ({"runs"}, OWNER),
    r"EXISTS \(SELECT FROM memories WHERE space_id = ": ({"memories"}, SPACE),
    r"^WITH RECURSIVE known AS \( \(SELECT agent": ({"memories"}, SPACE),
    r"^WITH asking AS MATERIALIZED .* FROM memories": ({"memories"}, SPACE),
    r"^SELECT count\(\*\) FROM memories WHERE owner_id": ({"memories"}, SPACE),
    r"^UPDATE memories SET used_at": ({"memories"}, SPACE),
    r"^INSERT INTO vector_spaces": ({"memories"}, SEARCHED),
    r"^WITH made AS .* SELECT id, space_id FROM memories WHERE id = ": ({"memories"}, SEARCHED),
    r"FROM memories WHERE generation < ": ({"memories"}, SEARCHED),
    r"^DELETE FROM agents": ({"runs"}, VERSIONS),
    r"FROM search_queue": ({"search_queue"}, SEARCHED),
    r"FROM passage_queue": ({"passage_queue"}, SEARCHED),
    r"FROM blobs WHERE attached AND signature IS NULL": ({"blobs"}, SEARCHED),
    r"^SELECT id FROM threads WHERE id > \$1 AND deleted_at IS NULL ORDER BY id": ({"threads"}, SEARCHED),
    r"^WITH dead AS \( SELECT id FROM processes": ({"presences"}, HOUSEKEEPING),
    r"FROM approvals WHERE state = 'pending' AND expires_at": ({"approvals"}, HOUSEKEEPING),
}
"""By what a statement looks like, the tables in which it names no thread, and why."""


async def use_everything(server: InProcessServer, db: Database) -> None:
    """Run everything that users and executors do frequently."""
    thread = await server.thread()
    observer = server.observer(thread)
    async with observer.following():
        await observer.until(lambda view: view.revision is not None)
        await send_and_wait(thread, "/words=40 /pace=100")
        sent = await thread.send("/words=4000 /pace=20")
        await observer.until(lambda view: "word19 " in view.text(sent["assistantMessageId"]))
        (await thread.http.post(f"/api/runs/{sent['runId']}/cancel", headers=thread.headers)).raise_for_status()
        await thread.ended(sent["runId"])
        await approve_a_call(thread)
        await execute_a_plan(db, thread)
    await chat_twice(thread)
    snapshot = await thread.snapshot()
    oldest = snapshot["messages"][1]["id"]
    path = f"/api/threads/{thread.id}/messages?before={oldest}"
    (await thread.http.get(path, headers=thread.headers)).raise_for_status()
    await follow_together(server, db)
    await remember_and_route(server, db)


async def chat_twice(thread: Thread) -> None:
    """Ask as the AI SDK does, send the request again, and read the chat."""
    question = {"id": "question", "role": "user", "parts": [{"type": "text", "text": "/echo Hello"}]}
    for _ in range(2):
        body = {"id": thread.id, "messages": [question]}
        (await thread.http.post("/api/chat", json=body, headers=thread.headers)).raise_for_status()
    for path in ("", "/stream"):
        (await thread.http.get(f"/api/chat/{thread.id}{path}", headers=thread.headers)).raise_for_status()


async def send_and_wait(thread: Thread, text: str) -> None:
    sent = await thread.send(text)
    await thread.ended(sent["runId"])


async def execute_a_plan(db: Database, thread: Thread) -> None:
    """Let a driver execute a plan of two steps, and read it."""
    executed = ThreadPlan(db, thread)
    await executed.create(step("a"), step("b", depends_on=("a",)))
    await executed.command(Start())
    stored = await executed.wait(lambda stored: stored.plan.status == "stopped")
    assert stored.plan.end == "completed"
    for path in ("", "/steps", "/events"):
        (await thread.http.get(f"/api/plans/{executed.id}{path}", headers=thread.headers)).raise_for_status()


async def approve_a_call(thread: Thread) -> None:
    """Let an agent ask for approval before a call."""
    await rules(thread, delete_file="ask")
    written, deleted = call("write_file", path="a.txt", content="a"), call("delete_file", path="a.txt")
    agent = await act(thread, f"{written} /then {deleted}")
    await agent.status("blocked")
    (await agent.decide((await agent.cards())[-1]["toolCallId"], approved=True)).raise_for_status()
    await agent.ended()


async def follow_together(server: InProcessServer, db: Database) -> None:
    """A signed-in user follows a thread and the thread list, and is present."""
    artanis = await person(db, "Artanis")
    thread_id = str(await owned_thread(db, artanis))
    async with socket(server, additional_headers=artanis.headers) as feed:
        for frame in (
            {"type": "subscribe", "threadId": thread_id},
            {"type": "watch"},
            {"type": "presence", "threadId": thread_id, "state": {"typing": True}},
        ):
            await feed.send(frame)
        kinds: set[str] = set()
        async with asyncio.timeout(20):
            sent = await server.http.post(
                f"/api/threads/{thread_id}/send", json={"text": "/words=5"}, headers=artanis.headers
            )
            run_id = sent.raise_for_status().json()["runId"]
            while not {"snapshot", "delta", "account", "presence"} <= kinds:
                kinds.add((await feed.next())["type"])
            while (await server.http.get(f"/api/runs/{run_id}", headers=artanis.headers)).json()["status"] != "final":
                await asyncio.sleep(0.05)
            await find_by_meaning(server, artanis.headers)


async def find_by_meaning(server: InProcessServer, headers: dict[str, str]) -> None:
    """Search until the answer is found in other words."""
    while True:
        found = await server.http.get("/api/search", params={"q": "term1"}, headers=headers)
        if any(hit["by"] == "meaning" for hit in found.raise_for_status().json()["items"]):
            return
        await asyncio.sleep(0.2)


async def remember_and_route(server: InProcessServer, db: Database) -> None:
    """A signed-in user's tasks are routed, by meaning, and their runs are told memories and get the relevant tools."""
    tassadar = await person(db, "Tassadar")
    thread = Thread(server.http, str(await owned_thread(db, tassadar)), "")
    thread.headers = tassadar.headers
    kennel = {"title": "Kennel", "description": "word1", "instructions": "Be kind.", "tools": ["*"]}
    for verb, path, body in (
        ("PATCH", "me/memory", {"extraction": "on"}),
        ("POST", "agents", {"name": "kennel", **kennel}),
        ("POST", "memories", {"text": "The crystal is in Aiur"}),
        ("POST", "memories", {"text": "The crystal is cold", "scope": "agent", "agent": "kennel"}),
        ("POST", "memories", {"text": "The crystal is here", "threadId": thread.id}),
    ):
        answer = await server.http.request(verb, f"/api/{path}", json=body, headers=thread.headers)
        answer.raise_for_status()
    for path in (
        "memories?q=crystal", f"memories?q=crystal&threadId={thread.id}", "memories?superseded=include",
        "search?q=crystal", f"search?q=crystal&threadId={thread.id}",
    ):  # fmt: skip
        assert (await server.http.get(f"/api/{path}", headers=thread.headers)).raise_for_status().json()["items"]
    async with asyncio.timeout(20):
        while await route(server, thread, "term1 crystal") != "meaning":
            await asyncio.sleep(0.2)
        while not {"route", "memory", "meaning"} <= await kinds_of_run(thread):
            await asyncio.sleep(0.2)
    agent = await act(thread, f"{call('memory_search', query='crystal')} /then {call('memory_list')}")
    assert (await agent.ended())["status"] == "final"


async def route(server: InProcessServer, thread: Thread, text: str) -> str:
    """Preview a run; returns by what its agent is chosen."""
    answer = await server.http.post("/api/route", json={"text": text}, headers=thread.headers)
    return str(answer.raise_for_status().json()["by"])


async def kinds_of_run(thread: Thread) -> set[str]:
    """Send a task to the agent that fits it best; returns the kinds of the run's parts, and how tools are chosen."""
    functions = [{"name": f"own_{number}", "description": f"Number {number}"} for number in range(MAX_RELEVANT_TOOLS)]
    agent = await act(thread, "term1 of the crystal /words=5", agent="auto", functions=functions)
    await agent.ended()
    context = await thread.http.get(f"/api/runs/{agent.run_id}/context", headers=thread.headers)
    calls = context.raise_for_status().json()["calls"]
    by = {left.get("by") for call in calls for section in call["sections"] for left in section["leftOut"]}
    return {part["kind"] for part in await agent.parts()} | by


async def test_hot_queries_name_their_threads(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with recorded(monkeypatch) as seen:
        db = Database(database_url)
        await leave_unanalysed(db)
        async with (
            serving_embeddings([("word1", "term1")]) as embeddings,
            khala(
                database_url,
                KHALA_LEASE_SECONDS="1",
                KHALA_EMBEDDINGS="openai:near",
                KHALA_EMBEDDINGS_URL=embeddings.url,
            ) as server,
        ):
            await use_everything(server, db)
    unexcused: dict[str, set[str]] = {}
    needed: set[str] = set()
    wide: set[str] = set()
    async with db.driver() as driver:
        for statement in filter(has_plan, tuple(seen)):
            missing = set(await unrestricted_tables(driver, statement))
            excuses = [pattern for pattern in EXCUSED if re.search(pattern, statement)]
            unexcused[statement] = missing.difference(*(EXCUSED[pattern][0] for pattern in excuses))
            needed.update(pattern for pattern in excuses if missing & EXCUSED[pattern][0])
            if any(map(scans_other_runs, nodes(await plan(driver, statement)))):
                wide.add(statement)
    await db.close()
    assert {statement: tables for statement, tables in unexcused.items() if tables} == {}, (
        "these statements name no thread"
    )
    assert set(EXCUSED) - needed == set(), "these exceptions are not needed any more"
    assert wide == set(), "these statements need the rows of one run, and scan all rows of its thread"


async def leave_unanalysed(db: Database) -> None:
    """Let no autovacuum worker analyse the tables, which would change their plans."""
    async with db.driver() as driver:
        tables = await driver.fetch("SELECT oid::regclass::text FROM pg_class WHERE relkind = 'r' AND oid > 16383")
        for (table,) in tables:
            await driver.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")


def scans_other_runs(node: dict[str, Any]) -> bool:
    """Whether a scan reads parts or receipts of other runs to find those of one run.

    The tables are never analysed here: without statistics a planner chooses the wrong one of two indexes.
    """
    if node.get("Relation Name") not in ("message_parts", "receipts"):
        return False
    bitmaps = str(node.get("Recheck Cond", ""))
    return "run_id = " in str(node.get("Filter", "")) or ("run_id = " in bitmaps and "thread_id = " in bitmaps)


@pytest.mark.parametrize(
    ("condition", "wide"),
    [
        ("run_id = $1", False),
        ("run_id = $1 AND thread_id IS NOT DISTINCT FROM $2", False),
        ("run_id = $1 AND thread_id = $2", True),
        ("thread_id = $1 AND seq > $2", False),
    ],
)
async def test_a_scan_of_a_whole_thread_is_detected(db: Database, condition: str, *, wide: bool) -> None:
    async with db.driver() as driver:
        whole = await plan(driver, f"SELECT * FROM receipts WHERE {condition}")
    assert any(map(scans_other_runs, nodes(whole))) == wide


@pytest.mark.parametrize(
    ("statement", "missing"),
    [
        ("SELECT * FROM message_parts WHERE run_id = $1", ["message_parts"]),
        ("SELECT * FROM message_parts WHERE thread_id = $1", []),
        ("SELECT * FROM message_parts AS part JOIN threads ON threads.id = part.thread_id", []),
        ("SELECT * FROM message_parts AS part JOIN runs ON runs.id = part.run_id", ["message_parts", "runs"]),
        ("SELECT * FROM messages WHERE thread_id = ANY($1::uuid[]) AND thread_id <> $2", []),
        ("SELECT * FROM messages WHERE thread_id <> $1", ["messages"]),
        ("UPDATE runs SET steps = 1 WHERE id = $1", ["runs"]),
        ("DELETE FROM runs WHERE thread_id = $1 AND id = $2", []),
        ("INSERT INTO todos (owner_id, id, text) SELECT id, 1, '' FROM threads", ["threads"]),
        ("SELECT * FROM users WHERE id = $1", []),
    ],
)
async def test_a_statement_that_names_no_thread_is_detected(db: Database, statement: str, missing: list[str]) -> None:
    async with db.driver() as driver:
        assert await unrestricted_tables(driver, statement) == missing


MANY = """
    INSERT INTO threads (id) SELECT gen_random_uuid() FROM generate_series(1, 5000);
    INSERT INTO message_parts (run_id, seq, message_id, thread_id, kind, data, revision)
    SELECT gen_random_uuid(), 0, gen_random_uuid(), gen_random_uuid(), 'text-delta', '{}', 1
    FROM generate_series(1, 5000);
"""
SCANNED = "SELECT sum(seq_tup_read)::int FROM pg_stat_xact_user_tables WHERE relname IN ('threads', 'message_parts')"


async def test_an_append_that_was_planned_for_empty_tables_scans_none(db: Database) -> None:
    lease = await lease_of(db, await new_thread(db))
    async with db.driver() as driver:
        for seq in range(10):
            assert (await parts.append(driver, [batch(lease, seq, "word ")])).stored == {lease.run_id: 1}
        async with postgres.connected(driver_url(db.url)) as other:
            await other.execute(MANY)
        async with driver.transaction():
            before = await driver.fetchval(SCANNED)
            assert (await parts.append(driver, [batch(lease, 10, "word ")])).stored == {lease.run_id: 1}
            assert await driver.fetchval(SCANNED) == before
