"""The export of everything that a user owns, as JSON lines, one thread at a time."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from uuid import UUID

import msgspec

from khala.domain.accounts import User
from khala.domain.chat import WireStruct
from khala.domain.errors import PlanDamaged
from khala.store.plans import plan_feed
from khala.store.postgres import rows
from khala.store.postgres.database import Database
from khala.store.runs import parts, receipts
from khala.store.streams import stream_export
from khala.store.threads.reset_marks import IS_PLAN, first_position
from khala.store.tools import todos, user_tools, workspace_files

PAGE_ROWS = 500
"""Rows in memory at once. No transaction stays open while a slow client reads them."""

NEXT_THREAD = f"""
    SELECT {rows.THREAD_COLUMNS} FROM threads WHERE owner_id = $1 AND deleted_at IS NULL AND (created_at, id) > ($2, $3)
    ORDER BY created_at, id LIMIT 1
"""
MESSAGES = f"""
    SELECT * FROM messages WHERE thread_id = $1 AND position > $2 AND position >= {first_position("$1")}
    ORDER BY position LIMIT {PAGE_ROWS}
"""
RUN_IDS = f"SELECT id FROM runs WHERE thread_id = $1 AND position >= {first_position('$1')} ORDER BY position, id"
"""The ids of all runs of a thread: they are small, and no index has the runs of a thread in their order."""
RUNS = """
    SELECT runs.id, runs.thread_id, runs.message_id, runs.status, runs.epoch, runs.steps, runs.cancel_requested_at,
           runs.created_at, runs.finish, messages.finish AS message_finish
    FROM runs LEFT JOIN messages ON messages.id = runs.message_id AND messages.thread_id = runs.thread_id
    WHERE runs.id = ANY($1::uuid[]) AND runs.thread_id IS NOT DISTINCT FROM $2 ORDER BY runs.position, runs.id
"""
NEXT_PLAN = f"""
    SELECT * FROM plans WHERE thread_id = $1 AND {IS_PLAN} AND (created_at, id) > ($2, $3)
    ORDER BY created_at, id LIMIT 1
"""
FIRST_MOMENT = datetime.min.replace(tzinfo=UTC)


class ExportedFile(WireStruct, frozen=True, kw_only=True):
    """A file of the workspace; its bytes are written in base64."""

    path: str
    content: bytes


class DamagedPlan(WireStruct, frozen=True, kw_only=True):
    """A plan that can't be read whole. `khala verify` finds it, too."""

    plan_id: UUID
    error: str


async def export_lines(db: Database, user: User) -> AsyncIterator[bytes]:
    """The export: the user, their workspace and their streams, then each thread with its messages, runs and plans."""
    yield _line("user", user)
    async for line in _workspace(db, user.id):
        yield line
    async for entry in stream_export.entries(db, user.id):
        yield _line("stream" if isinstance(entry, stream_export.ExportedStream) else "chunk", entry)
    last: tuple[datetime, UUID] = (FIRST_MOMENT, UUID(int=0))
    while thread := await _first(db, NEXT_THREAD, user.id, *last):
        last = thread["created_at"], thread["id"]
        yield _line("thread", rows.thread(thread))
        async for message in _messages(db, thread["id"]):
            yield _line("message", rows.message(message))
        async for run in _runs(db, thread["id"]):
            yield _line("run", rows.run(run, run["message_finish"]))
            async for line in _of_run(db, thread["id"], run["id"]):
                yield line
        async for line in _plans(db, thread["id"]):
            yield line


async def _workspace(db: Database, user_id: UUID) -> AsyncIterator[bytes]:
    """Files, one at a time, then todos and tools."""
    async with db.driver() as driver:
        entries = await workspace_files.entries(driver, user_id)
    for entry in entries:
        async with db.driver() as driver:
            contents = await workspace_files.contents(driver, user_id, [entry.path])
        for path, content in contents.items():
            yield _line("file", ExportedFile(path=path, content=content))
    async with db.driver() as driver:
        for todo in await todos.of_owner(driver, user_id):
            yield _line("todo", todo)
        for tool in await user_tools.of_user(driver, user_id):
            yield _line("tool", tool)


async def _of_run(db: Database, thread_id: UUID, run_id: UUID) -> AsyncIterator[bytes]:
    after, more = -1, True
    while more:
        async with db.driver() as driver:
            page = await parts.of_run(driver, thread_id, run_id, after=after, limit=PAGE_ROWS)
        for part in page:
            yield _line("part", part)
        more, after = len(page) == PAGE_ROWS, page[-1].seq if page else after
    async with db.driver() as driver:
        entries = await receipts.of_run(driver, thread_id, run_id)
    for receipt in entries:
        yield _line("receipt", receipt)


async def _plans(db: Database, thread_id: UUID) -> AsyncIterator[bytes]:
    """The plans of a thread: each one, its steps and its events, as over REST."""
    last: tuple[datetime, UUID] = (FIRST_MOMENT, UUID(int=0))
    while plan := await _first(db, NEXT_PLAN, thread_id, *last):
        last = plan["created_at"], plan["id"]
        try:
            yield _line("plan", plan_feed.detail(plan))
            async with db.driver() as driver:
                steps = await plan_feed.steps(driver, plan)
            for step in steps:
                yield _line("step", step)
            async for line in _plan_events(db, plan):
                yield line
        except PlanDamaged as error:
            yield _line("damaged", DamagedPlan(plan_id=plan["id"], error=error.message))


async def _plan_events(db: Database, plan: rows.Record) -> AsyncIterator[bytes]:
    after, more = 0, True
    while more:
        async with db.driver() as driver:
            page = await plan_feed.events(driver, plan, after=after, limit=PAGE_ROWS)
        for event in page:
            yield _line("event", event)
        more, after = len(page) == PAGE_ROWS, page[-1].seq if page else after


async def _first(db: Database, query: str, *values: object) -> rows.Record | None:
    async with db.driver() as driver:
        row: rows.Record | None = await driver.fetchrow(query, *values)
        return row


async def _messages(db: Database, thread_id: UUID) -> AsyncIterator[rows.Record]:
    position, more = -1, True
    while more:
        async with db.driver() as driver:
            page = await driver.fetch(MESSAGES, thread_id, position)
        for row in page:
            yield row
        more, position = len(page) == PAGE_ROWS, page[-1]["position"] if page else position


async def _runs(db: Database, thread_id: UUID) -> AsyncIterator[rows.Record]:
    async with db.driver() as driver:
        run_ids = [row["id"] for row in await driver.fetch(RUN_IDS, thread_id)]
    for start in range(0, len(run_ids), PAGE_ROWS):
        async with db.driver() as driver:
            page = await driver.fetch(RUNS, run_ids[start : start + PAGE_ROWS], thread_id)
        for row in page:
            yield row


def _line(kind: str, data: msgspec.Struct) -> bytes:
    return msgspec.json.encode({"type": kind, "data": data}) + b"\n"
