"""Claims: transfer an anonymous thread to an account, in place and in one transaction."""

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import case, delete, func, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from khala.domain.access import Caller, author_id_of_key, hashes_match
from khala.domain.chat import ACTIVE, Thread
from khala.domain.errors import Forbidden
from khala.store.accounts import accounts, audit
from khala.store.budgets import ledger
from khala.store.memories import memories, memory_proposals
from khala.store.plans import plan_leases
from khala.store.postgres import rows
from khala.store.postgres.database import Database, driver_of
from khala.store.postgres.retries import retried
from khala.store.schema.tables import approvals, memberships, messages, runs
from khala.store.schema.tables import threads as threads_table
from khala.store.sharing import invitations
from khala.store.threads import feedback, thread_folders, thread_listings, thread_lists, threads
from khala.store.threads.reset_marks import IS_MESSAGE
from khala.store.tools import todos, workspace_files
from khala.store.webhooks import outbox


@retried
async def claim(db: Database, thread_id: UUID, key_hash: bytes, caller: Caller) -> Thread:
    """Make the caller the thread's owner. Its key no longer gives access. Returns the thread.

    Runs and plans continue, and links and members stay. Subscriptions with only the key end. Runs and plans requested
    with the key act for the new owner from now on; those requested through links continue with a guest's rights.
    Repeating a claim changes nothing.
    """
    user_id = accounts.require_account(caller)
    async with db.transaction() as connection:
        row = await threads.lock(connection, thread_id)
        if row.owner_id != user_id:
            if not hashes_match(row.anon_key_hash, key_hash):
                raise Forbidden("You can't claim this thread: the key is wrong, or the thread has an owner.")
            await _transfer(connection, thread_id, key_hash, user_id)
            await audit.record(connection, "claimed", caller, thread_id=thread_id)
        return rows.thread((await threads.lock(connection, thread_id))._mapping)


async def _transfer(connection: AsyncConnection, thread_id: UUID, key_hash: bytes, user_id: UUID) -> None:
    driver = await driver_of(connection)
    await plan_leases.transfer(driver, thread_id, author_id_of_key(key_hash), user_id)
    active = select(runs.c.id).where(runs.c.thread_id == thread_id, runs.c.status.in_(ACTIVE))
    # Locked in the order of ids, as heartbeats do.
    ordered = active.order_by(runs.c.id).with_for_update(key_share=True)
    active_ids = [row.id for row in await connection.execute(ordered)]
    if active_ids:
        await connection.execute(update(runs).where(runs.c.id.in_(active_ids)).values(fairness_key=user_id))
        await _transfer_runs(connection, active_ids, key_hash, user_id)
    revision = await threads.bump(
        connection,
        thread_id,
        owner_id=user_id,
        anon_key_hash=None,
        tool_rules_by=case(
            (threads_table.c.tool_rules_by == author_id_of_key(key_hash), user_id), else_=threads_table.c.tool_rules_by
        ),
        access_id=func.gen_random_uuid(),
        meta_revision=threads_table.c.revision + 1,
        updated_at=threads_table.c.updated_at,  # a claim is no activity: lists keep their order
    )
    await outbox.record_one(driver, "thread.claimed", thread_id)
    written = (messages.c.thread_id == thread_id) & (messages.c.author_id == author_id_of_key(key_hash))
    name = await accounts.name_of(driver, user_id)
    new_author = {"author_id": user_id, "author_name": name, "revision": revision}
    await connection.execute(update(messages).where(written, text(IS_MESSAGE)).values(**new_author))
    await ledger.move_to_user(connection, thread_id, user_id)
    member = (memberships.c.thread_id == thread_id) & (memberships.c.user_id == user_id)
    await connection.execute(delete(memberships).where(member))
    await thread_lists.lock_user(driver, user_id)
    if await threads.expiry(driver, thread_id) is None:
        await thread_lists.add_entry(driver, thread_id, user_id)
    await feedback.move(driver, thread_id, author_id_of_key(key_hash), user_id)
    await thread_listings.move(driver, thread_id, user_id)
    await thread_folders.copy(driver, author_id_of_key(key_hash), user_id)
    await invitations.remove(driver, thread_id, user_id)
    # Workspace owners are locked after threads and users, both of which are locked here.
    await workspace_files.move_all(driver, thread_id, user_id, f"claimed/{str(thread_id)[:8]}")
    await todos.move_all(driver, thread_id, user_id)
    await memories.move_all(driver, thread_id, user_id)
    await memory_proposals.move_all(driver, thread_id, author_id_of_key(key_hash), user_id)


async def _transfer_runs(connection: AsyncConnection, run_ids: Sequence[UUID], key_hash: bytes, user_id: UUID) -> None:
    """Transfer the runs that the guest with this key requested to the user, so that tools act for the user.

    Pending approvals were requested for calls with the guest's rights, so only the new owner may approve them.
    """
    requested = runs.c.id.in_(run_ids) & runs.c.user_id.is_(None) & (runs.c.asker_key_id == author_id_of_key(key_hash))
    moved = await connection.execute(update(runs).where(requested).values(user_id=user_id).returning(runs.c.id))
    moved_ids = [row.id for row in moved]
    waiting = approvals.c.run_id.in_(moved_ids) & (approvals.c.state == "pending")
    await connection.execute(update(approvals).where(waiting).values(asker_only=True))
