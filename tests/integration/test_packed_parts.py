"""Parts of runs that ended long ago are packed, and every reader sees the same parts and text as before."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from sqlalchemy.ext.asyncio import AsyncConnection

from khala.domain import ids
from khala.domain.fold import TextBlock, fold
from khala.domain.packed_parts import plain_layout
from khala.domain.parts import Part, PartData, ReasoningDelta, Step, TextDelta, ToolCall, ToolResult
from khala.domain.thread_changes import Delta
from khala.store.operations import part_packing
from khala.store.operations.retention import RetentionPolicy, count_due, purge
from khala.store.operations.verify import VerifyProgress, find_differences
from khala.store.postgres.database import Database
from khala.store.runs import detail_tokens, packed_parts, parts
from khala.store.runs.leases import Lease
from khala.store.threads import thread_feed, threads
from khala.store.threads.thread_feed import SnapshotNeeded
from tests.support.agents import act, call
from tests.support.client import Thread, View
from tests.support.frames import socket
from tests.support.in_process import InProcessServer, khala
from tests.support.server import command
from tests.support.store import CALLER, batch, ending, lease_of, new_thread, notice, write

MONTH = RetentionPolicy(idle=timedelta(0), parts=timedelta(days=30))
DATA: list[PartData] = [
    Step(step=1, max_steps=20, tool_count=2),
    ReasoningDelta(text="Perhaps a file."),
    TextDelta(text="I look. "),
    TextDelta(text="“One” moment… 🌒 "),
    ToolCall(tool_call_id="a", step=1, tool="read_file", args={"path": "a.txt"}),
    ToolResult(tool_call_id="a", ok=True, summary="Read.", duration_ms=3, output={"lines": [1, 2.5, None]}),
    notice(),
    TextDelta(text="It says "),
    TextDelta(text="nothing."),
]
PACKED_RUNS = "SELECT id FROM runs WHERE parts_layout IS NOT NULL"
TEXT = "I look. “One” moment… 🌒 It says nothing."


async def fetch(db: Database, query: str, *arguments: Any) -> list[tuple[Any, ...]]:
    async with db.driver() as driver:
        return [tuple(row) for row in await driver.fetch(query, *arguments)]


async def counts(db: Database) -> tuple[int, int]:
    """The numbers of parts that are rows, and of packed runs."""
    ((rows, packed),) = await fetch(
        db, "SELECT (SELECT count(*) FROM message_parts), (SELECT count(parts_layout) FROM runs)"
    )
    return rows, packed


async def aged(db: Database, *run_ids: UUID | str, days: float = 31) -> None:
    """Let these runs have ended so many days ago."""
    query = "UPDATE runs SET finished_at = now() - $2 * interval '1 day' WHERE id = ANY($1::uuid[])"
    await fetch(db, query, [UUID(str(run_id)) for run_id in run_ids], days)


@pytest.fixture(autouse=True)
def _all_ids_are_old(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids of runs begin with their time, which a test cannot change: take them for older than they are."""
    before = ids.before
    monkeypatch.setattr(ids, "before", lambda moment: before(moment + timedelta(days=365)))


async def answer(db: Database, thread_id: UUID | None = None, *, days: float = 31) -> Lease:
    """An answer that ended so many days ago."""
    lease = await lease_of(db, thread_id or await new_thread(db))
    for seq, data in enumerate(DATA):
        await write(db, batch(lease, seq, data))
    await write(db, ending(lease, len(DATA), fold((), DATA)))
    await aged(db, lease.run_id, days=days)
    return lease


async def parts_of(db: Database, lease: Lease, *, after: int = -1, limit: int | None = None) -> list[Part]:
    async with db.driver() as driver:
        return await parts.of_run(driver, lease.thread_id, lease.run_id, after=after, limit=limit)


def facts(found: list[Part]) -> list[tuple[Any, ...]]:
    """Everything about these parts that packing keeps exactly."""
    return [(part.run_id, part.message_id, part.seq, part.kind, json.loads(bytes(part.data))) for part in found]


async def problems(db: Database) -> list[str]:
    return [difference.problem async for difference in find_differences(db, VerifyProgress())]


async def test_packed_parts_read_as_before_and_verify(db: Database) -> None:
    lease = await answer(db)
    before = await parts_of(db, lease)
    assert (await count_due(db, MONTH))["packed runs"] == 1
    assert (await purge(db, MONTH))["packed runs"] == 1
    assert await counts(db) == (0, 1)
    after = await parts_of(db, lease)
    assert facts(after) == facts(before)
    for part, was in zip(after, before, strict=True):
        assert abs(part.created_at - was.created_at) < timedelta(milliseconds=1)
    assert facts(await parts_of(db, lease, after=3, limit=4)) == facts(before)[4:8]
    assert await parts_of(db, lease, after=len(before) - 1) == []
    ((layout,),) = await fetch(db, "SELECT parts_layout FROM runs")
    assert b"nothing." not in plain_layout(layout)
    assert await fetch(db, "SELECT finish FROM runs") == [(None,)], "the finish is stored once"
    assert b"read_file" in plain_layout(layout), "parts of tools stay as they are"
    assert await problems(db) == []
    assert (await count_due(db, MONTH))["packed runs"] == 0
    assert (await purge(db, MONTH))["packed runs"] == 0


async def test_only_runs_that_ended_long_ago_are_packed(db: Database) -> None:
    young, old = await answer(db, days=29), await answer(db, days=31)
    active, gone = await lease_of(db, await new_thread(db)), await answer(db, days=31)
    await write(db, batch(active, 0, "Not ended."))
    await threads.remove(db, gone.thread_id, CALLER)
    assert (await purge(db, RetentionPolicy(idle=timedelta(0))))["packed runs"] == 0, "0 keeps all"
    assert (await purge(db, MONTH))["packed runs"] == 1
    assert [run for (run,) in await fetch(db, PACKED_RUNS)] == [old.run_id]
    assert len(await parts_of(db, young)) == len(DATA) + 1
    assert await write(db, batch(active, 1, "Goes on.")) == {active.run_id: 1}


async def test_an_observer_with_an_old_cursor_gets_a_snapshot_and_a_younger_one_a_delta(db: Database) -> None:
    thread_id = await new_thread(db)
    old, later = await answer(db, thread_id), await answer(db, thread_id, days=1)
    ((newest,),) = await fetch(db, "SELECT max(revision) FROM message_parts WHERE run_id = $1", old.run_id)
    await purge(db, MONTH)
    assert await fetch(db, "SELECT packed_revision FROM threads WHERE id = $1", thread_id) == [(newest,)]
    for after in range(newest):
        async with db.snapshot() as driver:
            change = (await thread_feed.read_changes(driver, {thread_id: after}))[thread_id].change
        assert isinstance(change, SnapshotNeeded)
        assert not change.reset
    async with db.snapshot() as driver:
        change = (await thread_feed.read_changes(driver, {thread_id: newest}))[thread_id].change
    assert isinstance(change, Delta)
    assert {part.run_id for part in change.parts} == {later.run_id}
    assert len(change.parts) == len(DATA) + 1


async def streamed(server: InProcessServer) -> tuple[Thread, dict[str, Any], str]:
    """A thread with a finished answer, and its text."""
    thread = await server.thread()
    sent = await thread.send("/words=80 /pace=500")
    await thread.ended(sent["runId"])
    content = (await thread.snapshot())["messages"][-1]["content"]
    return thread, sent, "".join(block["text"] for block in content if block["type"] == "text")


async def test_old_cursors_over_websocket_and_events_end_with_the_exact_text(db: Database, database_url: str) -> None:
    async with khala(database_url) as server:
        thread, sent, text = await streamed(server)
        before, run = await thread.parts(sent["runId"]), await thread.run(sent["runId"])
        revision = (await thread.snapshot())["revision"]
        await aged(db, sent["runId"])
        assert (await purge(db, MONTH))["packed runs"] == 1
        for after in (0, 1, revision // 2, revision - 1):
            async with socket(server) as feed:
                view = View(thread.id)
                view.apply(frame := await feed.subscribe(thread, after=after))
                assert (frame["type"], frame.get("reset")) == ("snapshot", None)
                assert view.text(sent["assistantMessageId"]) == text
                later = await thread.send("/words=3 /pace=1000")
                while later["assistantMessageId"] not in view.finished:
                    view.apply(await feed.next())
                assert view.text(sent["assistantMessageId"]) == text
            headers = thread.headers | {"Last-Event-ID": str(after)}
            async with server.http.stream("GET", f"/api/threads/{thread.id}/events", headers=headers) as events:
                lines = events.aiter_lines()
                while not (line := await anext(lines)).startswith("data:"):
                    pass
            assert text in json.dumps(json.loads(line.removeprefix("data:")), ensure_ascii=False)
        after_packing = await thread.parts(sent["runId"])
        assert [(part["seq"], part["kind"], part["data"]) for part in after_packing] == [
            (part["seq"], part["kind"], part["data"]) for part in before
        ]
        assert run["finish"]["reason"] == "stop"
        assert await thread.run(sent["runId"]) == run
        canceled = await server.http.post(f"/api/runs/{sent['runId']}/cancel", headers=thread.headers)
        assert (canceled.status_code, canceled.json()) == (200, run)
    assert await problems(db) == []


async def test_the_details_of_a_tool_call_can_be_read_after_packing(db: Database, database_url: str) -> None:
    async with khala(database_url) as server:
        thread = await server.thread()
        agent = await act(thread, call("todo_list"))
        await agent.ended()
        ((run_id, thread_id),) = await fetch(db, "SELECT id, thread_id FROM runs")
        (card,) = await agent.cards()
        async with db.driver() as driver:
            made = await detail_tokens.create(
                driver,
                thread_id=thread_id,
                run_id=run_id,
                calls=[card["toolCallId"]],
                lifetime=timedelta(hours=1),
            )
        path = f"/autopilot/detail/{made[card['toolCallId']]}"
        before = (await server.http.get(path, headers=thread.headers)).raise_for_status().json()
        await aged(db, run_id)
        assert (await purge(db, MONTH))["packed runs"] == 1
        assert (await server.http.get(path, headers=thread.headers)).json() == before


DAMAGES = {
    "a text of the content": "UPDATE messages SET content = replace(content::text, 'nothing.', 'nothing!')::jsonb"
    " WHERE run_id = $1",
    "a whole text block": "UPDATE messages SET content = content - 0 WHERE run_id = $1",
    "an output of the content": "UPDATE messages SET content = replace(content::text, '2.5', '3.5')::jsonb"
    " WHERE run_id = $1",
    "the finish": "UPDATE messages SET finish = jsonb_set(finish, '{reason}', '\"length\"') WHERE run_id = $1",
    "another finish of the run": 'UPDATE runs SET finish = \'{"reason": "length", "usage": {}}\' WHERE id = $1',
    "the digest": "UPDATE runs SET parts_digest = sha256(parts_digest) WHERE id = $1",
    "no digest": "UPDATE runs SET parts_digest = NULL WHERE id = $1",
    "a layout that is cut off": "UPDATE runs SET parts_layout = substr(parts_layout, 1, octet_length(parts_layout) - 4)"
    " WHERE id = $1",
    "a layout that is not readable": "UPDATE runs SET parts_layout = '\\x00' WHERE id = $1",
    "no layout": "UPDATE runs SET parts_layout = NULL WHERE id = $1",
    "a part beside it": "INSERT INTO message_parts (run_id, seq, message_id, thread_id, kind, data, revision)"
    " SELECT id, 0, message_id, thread_id, 'text-delta', '{\"text\": \"\"}', 1 FROM runs WHERE id = $1",
}


@pytest.mark.parametrize("damage", DAMAGES)
async def test_verify_reports_a_damaged_packed_run_and_no_other(db: Database, damage: str) -> None:
    damaged, _ = await answer(db), await answer(db)
    await purge(db, MONTH)
    assert await problems(db) == []
    await fetch(db, DAMAGES[damage], damaged.run_id)
    found = [difference.place async for difference in find_differences(db, VerifyProgress())]
    assert set(found) == {f"message {damaged.message_id} of thread {damaged.thread_id}"}


async def test_verify_reports_a_changed_character_of_a_layout(db: Database) -> None:
    lease = await answer(db)
    await purge(db, MONTH)
    ((layout,),) = await fetch(db, "SELECT parts_layout FROM runs")
    damaged = plain_layout(layout).replace(b"Perhaps", b"Perhapz")
    assert damaged != plain_layout(layout)
    await fetch(db, "UPDATE runs SET parts_layout = $2 WHERE id = $1", lease.run_id, damaged)
    assert len(await problems(db)) == 1


async def test_verify_reports_a_thread_whose_packed_revision_is_above_its_own(db: Database) -> None:
    lease = await answer(db)
    await purge(db, MONTH)
    await fetch(db, "UPDATE threads SET packed_revision = 1000 WHERE id = $1", lease.thread_id)
    assert len(await problems(db)) == 1


@pytest.mark.parametrize("content", ['[{"type": "text", "text": "Other."}]', "[]", '{"no": "blocks"}', None])
async def test_a_run_that_was_damaged_before_is_packed_with_all_its_text(db: Database, content: str | None) -> None:
    lease = await answer(db)
    before = await parts_of(db, lease)
    await fetch(db, "UPDATE messages SET content = $2::jsonb WHERE run_id = $1", lease.run_id, content)
    reported = await problems(db)
    assert len(reported) == 1
    assert (await purge(db, MONTH))["packed runs"] == 1
    assert facts(await parts_of(db, lease)) == facts(before)
    assert await problems(db) == reported


async def test_a_finish_that_differs_between_run_and_message_is_packed_as_it_is(db: Database) -> None:
    lease = await answer(db)
    before = await parts_of(db, lease)
    await fetch(db, "UPDATE runs SET finish = jsonb_set(finish, '{reason}', '\"length\"') WHERE id = $1", lease.run_id)
    reported = await problems(db)
    assert reported == ["its finish is not its run's"]
    assert (await purge(db, MONTH))["packed runs"] == 1
    assert facts(await parts_of(db, lease)) == facts(before)
    assert await problems(db) == reported


async def test_a_part_beside_packed_ones_replaces_nothing(db: Database) -> None:
    lease = await answer(db)
    await purge(db, MONTH)
    await fetch(db, DAMAGES["a part beside it"], lease.run_id)
    before = await fetch(db, "SELECT parts_layout, parts_digest FROM runs")
    assert (await purge(db, MONTH))["packed runs"] == 0
    assert await fetch(db, "SELECT parts_layout, parts_digest FROM runs") == before
    assert await counts(db) == (1, 1)


async def test_a_reader_beside_the_packing_always_sees_all_parts(db: Database) -> None:
    leases = [await answer(db) for _ in range(8)]
    whole = {lease.run_id: facts(await parts_of(db, lease)) for lease in leases}
    packing = asyncio.create_task(purge(db, MONTH))
    reads = 0
    while not packing.done() or reads < len(leases):
        lease = leases[reads % len(leases)]
        assert facts(await parts_of(db, lease)) == whole[lease.run_id]
        async with db.snapshot() as driver:
            change = (await thread_feed.read_changes(driver, {lease.thread_id: 1}))[lease.thread_id].change
        assert isinstance(change, SnapshotNeeded) or len(change.parts) == len(DATA) + 1  # type: ignore[union-attr]
        reads += 1
    assert (await packing)["packed runs"] == len(leases)


async def test_packing_that_ends_half_way_loses_nothing_and_continues(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part_packing, "MAX_BATCH_PARTS", 1)
    leases = [await answer(db) for _ in range(3)]
    whole = [facts(await parts_of(db, lease)) for lease in leases]
    set_revisions, batches = packed_parts.SET_REVISIONS, 0

    pack_runs = packed_parts.pack_runs

    async def crash_in_the_second(driver: Any, due: Any) -> tuple[int, int]:
        nonlocal batches
        batches += 1
        if batches == 2:
            monkeypatch.setattr(packed_parts, "SET_REVISIONS", "SELECT 1 / 0, $1::uuid[], $2::bigint[]")
        return await pack_runs(driver, due)

    monkeypatch.setattr(packed_parts, "pack_runs", crash_in_the_second)
    with pytest.raises(asyncpg.DivisionByZeroError):
        await purge(db, MONTH)
    assert await counts(db) == (2 * (len(DATA) + 1), 1)
    assert [facts(await parts_of(db, lease)) for lease in leases] == whole
    monkeypatch.setattr(packed_parts, "SET_REVISIONS", set_revisions)
    assert (await purge(db, MONTH))["packed runs"] == 2
    assert await counts(db) == (0, 3)
    assert [facts(await parts_of(db, lease)) for lease in leases] == whole
    assert await problems(db) == []


async def test_a_thread_that_is_locked_is_packed_the_next_time(db: Database) -> None:
    held, free = await answer(db), await answer(db)
    async with db.transaction() as connection:
        await lock_thread(connection, held.thread_id)
        assert (await purge(db, MONTH))["packed runs"] == 1
        assert [run for (run,) in await fetch(db, PACKED_RUNS)] == [free.run_id]
    assert (await purge(db, MONTH))["packed runs"] == 1


async def lock_thread(connection: AsyncConnection, thread_id: UUID) -> None:
    await connection.exec_driver_sql(f"SELECT FROM threads WHERE id = '{thread_id}' FOR UPDATE")


async def test_a_pass_reaches_runs_behind_many_that_are_not_due(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_parts, "MAX_SCANNED_RUNS", 2)
    for _ in range(5):
        await answer(db, days=1)
    due = [await answer(db), await answer(db)]
    await answer(db, days=1)
    assert (await purge(db, MONTH))["packed runs"] == 2
    packed = await fetch(db, "SELECT id FROM runs WHERE parts_layout IS NOT NULL ORDER BY 1")
    assert packed == [(lease.run_id,) for lease in due]


async def test_a_reset_and_a_deletion_delete_packed_parts(db: Database) -> None:
    one, other = await answer(db), await answer(db)
    await purge(db, MONTH)
    await threads.reset(db, one.thread_id, CALLER, welcome="")
    await purge(db, MONTH)
    assert await fetch(db, PACKED_RUNS) == [(other.run_id,)]
    await threads.remove(db, other.thread_id, CALLER)
    await purge(db, MONTH)
    assert await counts(db) == (0, 0)
    assert await problems(db) == []


async def test_runs_that_a_reset_has_deleted_are_purged_and_not_packed(db: Database) -> None:
    lease = await answer(db)
    await threads.reset(db, lease.thread_id, CALLER, welcome="")
    assert (await count_due(db, MONTH))["packed runs"] == 0
    async with db.transaction() as connection:
        assert await part_packing.PartPacker(MONTH.parts).pack_next(connection) == {}
    assert await counts(db) == (len(DATA) + 1, 0)


async def test_the_command_packs_by_its_setting(db: Database, database_url: str) -> None:
    # The command is another process, whose ids cannot be taken for older: this run has an old id.
    lease = await answer(db)
    old = UUID(int=(ids.before(datetime.now(UTC) - timedelta(days=800)).int | lease.run_id.int & ((1 << 80) - 1)))
    for statement in (
        "UPDATE runs SET id = $2 WHERE id = $1",
        "UPDATE messages SET run_id = $2 WHERE run_id = $1",
        "UPDATE message_parts SET run_id = $2 WHERE run_id = $1",
    ):
        await fetch(db, statement, lease.run_id, old)
    env = {"DATABASE_URL": database_url}
    for days, packed in (("0", 0), ("40", 0), ("30", 1)):
        dry = await asyncio.to_thread(command, env | {"KHALA_PARTS_DAYS": days}, "purge", "--dry-run")
        assert f"{packed:>9,} packed runs" in dry.stdout.splitlines(), dry.stderr
        done = await asyncio.to_thread(command, env | {"KHALA_PARTS_DAYS": days}, "purge")
        assert f"{packed:>9,} packed runs" in done.stdout.splitlines(), done.stderr
    assert await counts(db) == (0, 1)


async def test_a_packed_answer_folds_to_its_content(db: Database) -> None:
    lease = await answer(db)
    await purge(db, MONTH)
    async with db.snapshot() as driver:
        message = (await thread_feed.read_snapshot(driver, lease.thread_id, limit=10)).messages[-1]
    assert fold((), [part.read() for part in await parts_of(db, lease)]) == message.content
    assert "".join(block.text for block in message.content or () if isinstance(block, TextBlock)) == TEXT
