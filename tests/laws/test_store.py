"""Laws of the store, on a real Postgres: deltas lead from any snapshot to any later one; appends are idempotent."""

import asyncio
import os
from concurrent.futures import ProcessPoolExecutor
from threading import Barrier
from typing import Any, TypeAlias
from uuid import UUID

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from khala.domain.chat import Message, Thread
from khala.domain.fold import fold
from khala.domain.parts import PartData, TextDelta
from khala.domain.thread_changes import Delta, Snapshot
from khala.store.postgres.database import Database
from khala.store.runs.leases import Lease
from khala.store.threads import thread_feed, threads
from tests.support.forked import CONTEXT
from tests.support.store import CALLER, ask, batch, ending, lease_of, new_thread, notice, write

bounded = settings(max_examples=25, suppress_health_check=list(HealthCheck))

steps = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from(["text", "text", "notice", "end", "rename", "choose"])),
    min_size=1,
    max_size=14,
)


async def _snapshot(db: Database, thread_id: UUID) -> Snapshot:
    async with db.snapshot() as driver:
        return await thread_feed.read_snapshot(driver, thread_id, limit=100)


def _applied(before: Snapshot, delta: Delta) -> dict[UUID, Message]:
    """Apply a delta to a snapshot as a client does: heads by id, contents by folding the parts."""
    messages = {message.id: message for message in before.messages}
    for head in delta.messages:
        known = messages.get(head.id)
        if head.content is None:
            content, seq = (known.content, known.seq) if known else (None, 0)
            head = msgspec.structs.replace(head, content=content, seq=seq)
        messages[head.id] = head
    for part in delta.parts:
        message = messages[part.message_id]
        assert part.seq == message.seq
        content = fold(message.content or (), [part.read()])
        messages[message.id] = msgspec.structs.replace(message, content=content, seq=part.seq + 1)
    return messages


def _comparable(messages: dict[UUID, Message]) -> list[Any]:
    return [(m.id, m.status, m.seq, m.content or (), m.finish) for m in messages.values()]


def _without_revision(thread: Thread) -> Thread:
    """The thread without the fields that every change sets."""
    return msgspec.structs.replace(thread, revision=0, updated_at=thread.created_at)


async def _running(db: Database, thread_id: UUID) -> Lease:
    """Start a run of the thread, concurrent with its other runs."""
    sent = await ask(db, thread_id)
    async with db.transaction() as connection:
        await connection.execute(
            text("UPDATE runs SET status = 'running', epoch = 1 WHERE id = :id"), {"id": sent.run_id}
        )
    return Lease(run_id=sent.run_id, thread_id=thread_id, message_id=sent.assistant_message_id, epoch=1)


async def _play(db: Database, script: list[tuple[int, str]]) -> None:
    """Interleave three runs of one thread, and bring every snapshot on the way forward to the last one."""
    thread_id = await new_thread(db, welcome="hello")
    leases = [await _running(db, thread_id) for _ in range(3)]
    written: list[list[PartData]] = [[], [], []]
    snapshots = [await _snapshot(db, thread_id)]
    for run, change in script:
        await _step(db, leases[run], written[run], change)
        snapshots.append(await _snapshot(db, thread_id))
    await _compare(db, thread_id, snapshots)


async def _step(db: Database, lease: Lease, written: list[PartData], change: str) -> None:
    if change == "rename":
        await threads.update_thread(db, lease.thread_id, CALLER, title=f"title {lease.run_id} {len(written)}")
    elif change == "choose":
        await threads.update_thread(db, lease.thread_id, CALLER, active_leaf=lease.message_id)
    elif change == "end":
        await write(db, ending(lease, len(written), fold((), written)))
    else:
        part = notice() if change == "notice" else TextDelta(text=f"{len(written)} ")
        if (await write(db, batch(lease, len(written), part))) == {lease.run_id: 1}:
            written.append(part)


async def _compare(db: Database, thread_id: UUID, snapshots: list[Snapshot]) -> None:
    last = snapshots[-1]
    for earlier in snapshots:
        cursors = {thread_id: earlier.revision}
        async with db.snapshot() as driver:
            read = (await thread_feed.read_changes(driver, cursors))[thread_id]
        async with db.driver() as driver:
            one_query = await thread_feed.read_changes_in_one_query(driver, cursors)
        change = read.change
        assert one_query == (
            {} if isinstance(change, Delta) and (change.thread or change.messages) else {thread_id: read}
        )
        if earlier.revision == last.revision:
            assert change == thread_feed.Unchanged()
        else:
            assert isinstance(change, Delta)
            assert (change.since, change.revision) == (earlier.revision, last.revision)
            assert _comparable(_applied(earlier, change)) == _comparable({m.id: m for m in last.messages})
            assert _without_revision(change.thread or earlier.thread) == _without_revision(last.thread)


def test_a_snapshot_and_the_deltas_after_it_give_every_later_snapshot(database_url: str) -> None:
    @bounded
    @given(steps)
    def law(script: list[tuple[int, str]]) -> None:
        asyncio.run(_with(database_url, script))

    law()


async def _with(database_url: str, script: list[tuple[int, str]]) -> None:
    db = Database(database_url, pool_size=4)
    try:
        await _play(db, script)
    finally:
        await db.close()


WRITERS, PROCESSES, SENDS = 16, 2, 10


async def test_revisions_have_no_gaps_under_sixteen_connections_of_two_processes(db: Database) -> None:
    thread_id = await new_thread(db)
    start = (await _snapshot(db, thread_id)).revision
    ready = CONTEXT.Barrier(PROCESSES)
    with ProcessPoolExecutor(PROCESSES, mp_context=CONTEXT, initializer=_set_barrier, initargs=(ready,)) as processes:
        writing = [processes.submit(_write_in_a_process, db.url, thread_id) for _ in range(PROCESSES)]
        found = [writer for one in writing for writer in await asyncio.wrap_future(one)]
    assert len({process for process, _, _ in found}) == PROCESSES
    assert len({connection for _, connection, _ in found}) == WRITERS
    assert all(revisions == sorted(revisions) for _, _, revisions in found)
    every = sorted(revision for _, _, revisions in found for revision in revisions)
    assert every == list(range(start + 1, start + 1 + WRITERS * SENDS))
    assert (await _snapshot(db, thread_id)).revision == start + WRITERS * SENDS


_ready: Barrier | None = None
"""In a writing process: the barrier at which it waits for the others."""


def _set_barrier(ready: Barrier) -> None:
    global _ready
    _ready = ready


Writer: TypeAlias = tuple[int, int, list[int]]
"""The pid of the process, the pid of its Postgres backend, and the revisions of its sends."""


def _write_in_a_process(url: str, thread_id: UUID) -> list[Writer]:
    return asyncio.run(_write_together(url, thread_id))


async def _write_together(url: str, thread_id: UUID) -> list[Writer]:
    """Send by half of the writers, each on its only connection, once all writers of all processes are connected."""
    databases = [Database(url, pool_size=1) for _ in range(WRITERS // PROCESSES)]
    connections = await asyncio.gather(*map(_connection_of, databases))
    assert _ready
    await asyncio.to_thread(_ready.wait, 60)

    async def sends(database: Database) -> list[int]:
        return [(await ask(database, thread_id)).revision for _ in range(SENDS)]

    try:
        found = await asyncio.gather(*map(sends, databases))
    finally:
        await asyncio.gather(*(database.close() for database in databases))
    return [(os.getpid(), connection, revisions) for connection, revisions in zip(connections, found, strict=True)]


async def _connection_of(database: Database) -> int:
    async with database.transaction() as connection:
        return int((await connection.execute(text("SELECT pg_backend_pid()"))).scalar_one())


async def test_revisions_have_no_gaps_while_runs_of_many_threads_are_appended_together(db: Database) -> None:
    leases = [await lease_of(db, await new_thread(db)) for _ in range(6)]
    start = [(await _snapshot(db, lease.thread_id)).revision for lease in leases]

    async def append_parts(runs: list[int]) -> None:
        for seq in range(20):
            await write(db, *(batch(leases[run], seq, f"{seq} ") for run in runs))

    await asyncio.gather(append_parts([0, 1, 2]), append_parts([3, 4]), append_parts([5]))
    for lease, before in zip(leases, start, strict=True):
        assert (await _snapshot(db, lease.thread_id)).revision == before + 20


async def test_repeating_an_append_any_number_of_times_changes_nothing(db: Database) -> None:
    lease = await lease_of(db, await new_thread(db))
    appended = batch(lease, 0, "a", "b", "c")
    assert await write(db, appended) == {lease.run_id: 3}
    once = await _snapshot(db, lease.thread_id)
    for _ in range(5):
        assert await write(db, appended) == {lease.run_id: 0}
    assert await _snapshot(db, lease.thread_id) == once
    last = ending(lease, 3, once.messages[-1].content or ())
    assert await write(db, last) == {lease.run_id: 1}
    ended = await _snapshot(db, lease.thread_id)
    for _ in range(5):
        assert await write(db, last) == {lease.run_id: 0}
    assert await _snapshot(db, lease.thread_id) == ended
