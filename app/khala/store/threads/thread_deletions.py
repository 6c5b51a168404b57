"""Undoes deletions of threads, for as long as what they have taken is recorded."""

from uuid import UUID

from sqlalchemy import select

from khala.domain.access import Action, Caller, hashes_match
from khala.domain.chat import Thread
from khala.domain.errors import Forbidden, ThreadNotFound
from khala.store.accounts import account_feed, audit
from khala.store.accounts.account_marks import USER_IS_PRESENT
from khala.store.postgres import rows
from khala.store.postgres.database import Database, Driver, driver_of
from khala.store.postgres.notifications import notify_drivers, notify_threads
from khala.store.postgres.retries import retried
from khala.store.runs import runs
from khala.store.schema.tables import threads as thread_table
from khala.store.threads import thread_lists, threads
from khala.store.threads.reset_marks import IS_PLAN, IS_RUN

FORGET = "DELETE FROM thread_deletions WHERE thread_id = $1"
LOCK = """
    SELECT thread_deletions.* FROM threads
    JOIN thread_deletions ON thread_deletions.thread_id = threads.id AND expires_at > clock_timestamp()
    WHERE threads.id = $1 AND threads.deleted_at IS NOT NULL AND threads.purged_at IS NULL
    FOR UPDATE OF threads
"""
MEMBERS = """
    SELECT (member ->> 'user_id')::uuid AS user_id, member ->> 'role' AS role
    FROM thread_deletions, jsonb_array_elements(members) AS member WHERE thread_id = $1
"""
REOPEN = """
    UPDATE threads SET deleted_at = NULL, owner_id = gone.owner_id, anon_key_hash = gone.anon_key_hash,
        title = gone.title, visibility = CASE WHEN gone.visibility = 'link' THEN 'private' ELSE gone.visibility END,
        client_metadata = gone.client_metadata, access_id = gen_random_uuid(), revision = threads.revision + 1,
        meta_revision = threads.revision + 1, updated_at = clock_timestamp()
    FROM thread_deletions AS gone WHERE threads.id = $1 AND gone.thread_id = threads.id
    RETURNING threads.revision
"""
INTERRUPTED = f"""
    UPDATE runs SET status = 'queued', finished_at = NULL FROM (
        SELECT id FROM runs WHERE thread_id = $1 AND status = 'canceled' AND finish IS NULL AND parts_layout IS NULL
          AND {IS_RUN}
        ORDER BY id FOR NO KEY UPDATE
    ) AS due WHERE runs.id = due.id
    RETURNING runs.*, false AS held
"""
"""The runs that the deletion took from their executors. No part says that they have ended."""
GO_ON = f"""
    WITH due AS (
        SELECT id FROM plans WHERE thread_id = $1 AND status = 'stopped' AND {IS_PLAN}
          AND state ->> 'status' IN ('running', 'pausing', 'stopping')
        ORDER BY id FOR NO KEY UPDATE
    )
    UPDATE plans SET status = state ->> 'status' FROM due WHERE plans.id = due.id RETURNING plans.id
"""
"""The plans that the deletion took from their drivers. Their events do not say so."""
LOCK_USERS = """
    SELECT id FROM users WHERE id = ANY ($1::uuid[]) AND blocked_at IS NULL
      AND NOT EXISTS (SELECT FROM deleted_accounts WHERE deleted_accounts.user_id = users.id)
    ORDER BY id FOR NO KEY UPDATE
"""
ADD_MEMBERS = """
    INSERT INTO memberships (thread_id, user_id, role)
    SELECT $1, user_id, role FROM unnest($2::uuid[], $3::text[]) AS member (user_id, role)
    ON CONFLICT DO NOTHING
"""
LIST_AGAIN = "UPDATE listings SET gone = false WHERE thread_id = $1 AND user_id = ANY ($2::uuid[])"


@retried
async def restore(db: Database, thread_id: UUID, caller: Caller) -> Thread:
    """Undo the deletion of the thread, by one of its owners. A thread that is not deleted stays as it is.

    Raises `ThreadNotFound` if the deletion can't be undone any more, and `Forbidden`.
    """
    async with db.transaction() as connection:
        # The statements after this one see what a deletion or another restore has committed meanwhile.
        await connection.execute(select(thread_table.c.id).where(thread_table.c.id == thread_id).with_for_update())
        driver = await driver_of(connection)
        gone = await driver.fetchrow(LOCK, thread_id)
        if gone is None:
            row = await threads.lock_authorized(connection, thread_id, caller, Action.DELETE_THREAD)
            return rows.thread(row._mapping)
        members = await driver.fetch(MEMBERS, thread_id)
        await _check_owner(driver, gone, members, caller)
        revision = await driver.fetchval(REOPEN, thread_id)
        plan_ids = {row["id"] for row in await driver.fetch(GO_ON, thread_id)}
        if plan_ids:
            await notify_drivers(driver, plan_ids)
        interrupted = await driver.fetch(INTERRUPTED, thread_id)
        await runs.cancel_runs(driver, interrupted, revision=revision)
        await _list_again(driver, thread_id, gone["owner_id"], {row["user_id"]: row["role"] for row in members})
        await driver.execute(FORGET, thread_id)
        await audit.record(connection, "thread_restored", caller, thread_id=thread_id)
        await notify_threads(driver, [thread_id])
        return rows.thread((await threads.lock(connection, thread_id))._mapping)


async def _check_owner(driver: Driver, gone: rows.Record, members: list[rows.Record], caller: Caller) -> None:
    """Raise `Forbidden` unless the caller owned the thread, and `ThreadNotFound` if its first owner is gone."""
    owners = {gone["owner_id"], *(row["user_id"] for row in members if row["role"] == "owner")} - {None}
    by_account = caller.user_id in owners and all(await account_feed.valid_credentials(driver, [caller]))
    if not by_account and not hashes_match(gone["anon_key_hash"], caller.anon_key_hash):
        raise Forbidden("Only an owner of this thread can restore it.")
    if gone["owner_id"] is not None and not await driver.fetchval(USER_IS_PRESENT, gone["owner_id"]):
        raise ThreadNotFound("There is no such thread.")


async def _list_again(driver: Driver, thread_id: UUID, owner_id: UUID | None, roles: dict[UUID, str]) -> None:
    """Give the members their roles again, and add the thread to everybody's list where it was."""
    wanted = [*roles, *([] if owner_id is None else [owner_id])]
    present = [row["id"] for row in await driver.fetch(LOCK_USERS, wanted)]
    again = [user_id for user_id in present if user_id in roles]
    await driver.execute(ADD_MEMBERS, thread_id, again, [roles[user_id] for user_id in again])
    await driver.execute(LIST_AGAIN, thread_id, present)
    await thread_lists.mark_changed(driver, [thread_id], user_ids=present)
