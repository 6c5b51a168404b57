"""Presence: who is here now, in every process, and which processes are alive.

A process's row is locked before its participants' rows, by the process itself and by whoever clears up after it.
"""

from collections import defaultdict
from collections.abc import Sequence
from uuid import UUID

import msgspec

from khala.domain.frames import Participant
from khala.store.postgres import rows
from khala.store.postgres.database import PRESENCE_CHANNEL, Driver, payload_of

MAX_LISTED = 50
"""Participants of a thread that are told."""
PROCESS_TIMEOUT_SECONDS = 8
"""Seconds of silence after which a process is taken for dead."""

BEAT = f"""
    WITH before AS (SELECT beat_at FROM processes WHERE id = $1)
    INSERT INTO processes (id, beat_at) VALUES ($1, clock_timestamp())
    ON CONFLICT (id) DO UPDATE SET beat_at = excluded.beat_at
    RETURNING coalesce((SELECT beat_at < clock_timestamp() - interval '{PROCESS_TIMEOUT_SECONDS} s' FROM before), true)
"""

SAY = """
    INSERT INTO presences (thread_id, participant_id, process_id, user_id, name, state, changed_at)
    SELECT thread_id, participant_id, $1, user_id, name, state::jsonb, clock_timestamp()
    FROM unnest($2::uuid[], $3::uuid[], $4::uuid[], $5::text[], $6::text[])
        AS said (thread_id, participant_id, user_id, name, state)
    ON CONFLICT (thread_id, participant_id) DO UPDATE SET process_id = excluded.process_id,
        user_id = excluded.user_id, name = excluded.name, state = excluded.state, changed_at = excluded.changed_at
"""

LEAVE = """
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

COMPANY = f"""
    SELECT threads.id AS thread_id, threads.access_id, found.* FROM threads LEFT JOIN LATERAL (
        SELECT participant_id, user_id, name, state, count(*) OVER () AS present FROM presences
        JOIN processes ON processes.id = presences.process_id
         AND processes.beat_at > clock_timestamp() - interval '{PROCESS_TIMEOUT_SECONDS} s'
        WHERE presences.thread_id = threads.id ORDER BY changed_at DESC, participant_id LIMIT {MAX_LISTED}
    ) AS found ON true
    WHERE threads.id = ANY($1::uuid[]) AND threads.deleted_at IS NULL
"""


class PresenceRow(msgspec.Struct, frozen=True, kw_only=True):
    """A participant as a process knows it; `state` is JSON text."""

    thread_id: UUID
    participant_id: UUID
    user_id: UUID | None
    name: str | None
    state: str


class PresenceList(msgspec.Struct, frozen=True):
    """Who is present in a thread, how many more there are, and the thread's `access_id` at that moment."""

    access_id: UUID
    participants: tuple[Participant, ...]
    more: int


async def record_heartbeat(driver: Driver, process_id: UUID) -> bool:
    """The process is alive. Returns whether others took it for dead before, and all that it had said for gone."""
    return bool(await driver.fetchval(BEAT, process_id))


async def write(
    driver: Driver, process_id: UUID, said: Sequence[PresenceRow], left: Sequence[tuple[UUID, UUID]]
) -> bool:
    """Say these and take those, as (thread, participant), away; listeners are told. Returns as `beat` does."""
    async with driver.transaction():
        made = await record_heartbeat(driver, process_id)
        if left:
            await driver.execute(LEAVE, *map(list, zip(*left, strict=True)))
        if said:
            columns = zip(*((x.thread_id, x.participant_id, x.user_id, x.name, x.state) for x in said), strict=True)
            await driver.execute(SAY, process_id, *map(list, columns))
        await _notify(driver, {one.thread_id for one in said} | {thread_id for thread_id, _ in left})
    return made


async def clear(driver: Driver, process_id: UUID | None = None) -> None:
    """Take away what dead processes said, or this one, which ends; listeners are told."""
    async with driver.transaction():
        found = await driver.fetch(CLEAR, process_id)
        await _notify(driver, {row["thread_id"] for row in found})


async def read_lists(driver: Driver, thread_ids: Sequence[UUID]) -> dict[UUID, PresenceList]:
    """Who is present in these threads, by living processes; a deleted thread is not in the answer. One query."""
    groups: dict[UUID, list[rows.Record]] = defaultdict(list)
    for row in await driver.fetch(COMPANY, thread_ids):
        groups[row["thread_id"]].append(row)
    return {thread_id: _company(found) for thread_id, found in groups.items()}


def _company(found: Sequence[rows.Record]) -> PresenceList:
    present = [row for row in found if row["participant_id"] is not None]
    more = present[0]["present"] - len(present) if present else 0
    return PresenceList(found[0]["access_id"], tuple(map(_participant, present)), more)


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
