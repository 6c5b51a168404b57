"""Presence: the participants who have threads open now, by process, and which processes are alive.

Both a process and the process that cleans up after it lock the process's row before the rows of its participants.
"""

from collections import defaultdict
from collections.abc import Sequence
from uuid import UUID

import msgspec

from khala.domain.frames import Participant
from khala.store.postgres import rows
from khala.store.postgres.database import (
    Driver,
)
from khala.store.postgres.notifications import (
    PRESENCE_CHANNEL,
    payload_of,
)

MAX_LISTED = 50
"""Participants in the presence list of a thread."""
PROCESS_TIMEOUT_SECONDS = 8
"""Seconds without a heartbeat after which a process counts as dead."""

HEARTBEAT = f"""
    WITH before AS (SELECT beat_at FROM processes WHERE id = $1)
    INSERT INTO processes (id, beat_at) VALUES ($1, clock_timestamp())
    ON CONFLICT (id) DO UPDATE SET beat_at = excluded.beat_at
    RETURNING coalesce((SELECT beat_at < clock_timestamp() - interval '{PROCESS_TIMEOUT_SECONDS} s' FROM before), true)
"""

UPSERT = """
    INSERT INTO presences (thread_id, participant_id, process_id, user_id, name, state, changed_at)
    SELECT thread_id, participant_id, $1, user_id, name, state::jsonb, clock_timestamp()
    FROM unnest($2::uuid[], $3::uuid[], $4::uuid[], $5::text[], $6::text[])
        AS entry (thread_id, participant_id, user_id, name, state)
    ON CONFLICT (thread_id, participant_id) DO UPDATE SET process_id = excluded.process_id,
        user_id = excluded.user_id, name = excluded.name, state = excluded.state, changed_at = excluded.changed_at
"""

DELETE = """
    DELETE FROM presences USING unnest($1::uuid[], $2::uuid[]) AS left_ (thread_id, participant_id)
    WHERE presences.thread_id = left_.thread_id AND presences.participant_id = left_.participant_id
"""

CLEAR = f"""
    WITH dead AS (
        SELECT id FROM processes WHERE id = $1 OR ($1 IS NULL
            AND beat_at < clock_timestamp() - interval '{PROCESS_TIMEOUT_SECONDS} s') FOR UPDATE SKIP LOCKED
    ), cleared AS (
        DELETE FROM presences USING dead WHERE presences.process_id = dead.id RETURNING presences.thread_id
    ), ended AS (
        DELETE FROM processes USING dead WHERE processes.id = dead.id
    )
    SELECT DISTINCT thread_id FROM cleared
"""

READ_LISTS = f"""
    SELECT threads.id AS thread_id, threads.access_id, found.* FROM threads LEFT JOIN LATERAL (
        SELECT participant_id, user_id, name, state, count(*) OVER () AS present FROM presences
        JOIN processes ON processes.id = presences.process_id
         AND processes.beat_at > clock_timestamp() - interval '{PROCESS_TIMEOUT_SECONDS} s'
        WHERE presences.thread_id = threads.id ORDER BY changed_at DESC, participant_id LIMIT {MAX_LISTED}
    ) AS found ON true
    WHERE threads.id = ANY($1::uuid[]) AND threads.deleted_at IS NULL
"""


class PresenceRow(msgspec.Struct, frozen=True, kw_only=True):
    """A participant of one thread, as its process reports it; `state` is JSON text."""

    thread_id: UUID
    participant_id: UUID
    user_id: UUID | None
    name: str | None
    state: str


class PresenceList(msgspec.Struct, frozen=True):
    """The participants of a thread, the number of participants left out, and the thread's `access_id` at the read."""

    access_id: UUID
    participants: tuple[Participant, ...]
    more: int


async def record_heartbeat(driver: Driver, process_id: UUID) -> bool:
    """Record that the process is alive. Returns whether it counted as dead before, so that its rows may be gone."""
    return bool(await driver.fetchval(HEARTBEAT, process_id))


async def write(
    driver: Driver, process_id: UUID, present: Sequence[PresenceRow], absent: Sequence[tuple[UUID, UUID]]
) -> bool:
    """Store the `present` rows, remove the `absent` ones by (thread, participant), and notify.

    Returns what `record_heartbeat` returns.
    """
    async with driver.transaction():
        was_dead = await record_heartbeat(driver, process_id)
        if absent:
            await driver.execute(DELETE, *map(list, zip(*absent, strict=True)))
        if present:
            entries = [(row.thread_id, row.participant_id, row.user_id, row.name, row.state) for row in present]
            await driver.execute(UPSERT, process_id, *map(list, zip(*entries, strict=True)))
        await _notify(driver, {row.thread_id for row in present} | {thread_id for thread_id, _ in absent})
    return was_dead


async def clear(driver: Driver, process_id: UUID | None = None) -> None:
    """Remove the rows of dead processes, or of the process `process_id`, which is shutting down, and notify."""
    async with driver.transaction():
        cleared = await driver.fetch(CLEAR, process_id)
        await _notify(driver, {row["thread_id"] for row in cleared})


async def read_lists(driver: Driver, thread_ids: Sequence[UUID]) -> dict[UUID, PresenceList]:
    """The presence lists of these threads, by one query. Deleted threads and dead processes are left out."""
    groups: dict[UUID, list[rows.Record]] = defaultdict(list)
    for row in await driver.fetch(READ_LISTS, thread_ids):
        groups[row["thread_id"]].append(row)
    return {thread_id: _presence_list(records) for thread_id, records in groups.items()}


def _presence_list(records: Sequence[rows.Record]) -> PresenceList:
    present = [row for row in records if row["participant_id"] is not None]
    more = present[0]["present"] - len(present) if present else 0
    return PresenceList(records[0]["access_id"], tuple(map(_participant, present)), more)


def _participant(row: rows.Record) -> Participant:
    return Participant(
        id=row["participant_id"],
        user_id=row["user_id"],
        name=row["name"],
        anonymous=row["user_id"] is None,
        state=msgspec.Raw(row["state"].encode()),
    )


async def _notify(driver: Driver, thread_ids: set[UUID]) -> None:
    if thread_ids:
        payload = payload_of(thread_ids)
        await driver.execute("SELECT pg_notify($1, $2)", PRESENCE_CHANNEL, payload)
