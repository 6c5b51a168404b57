"""Threads: their life cycle, and the row lock that every change in a thread requires."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import (
    ARRAY,
    Row,
    Uuid,
    any_,
    bindparam,
    delete,
    func,
    insert,
    select,
    text,
    update,
)
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from khala.domain import ids
from khala.domain.access import Action, Caller
from khala.domain.chat import Thread
from khala.domain.errors import Conflict, Forbidden, InvalidInput, ThreadNotFound, Unauthorized
from khala.domain.fold import TextBlock
from khala.domain.webhooks import WebhookEvent
from khala.store.accounts import audit
from khala.store.accounts.account_marks import USER_IS_PRESENT
from khala.store.budgets import ledger
from khala.store.plans import plan_leases
from khala.store.postgres import rows
from khala.store.postgres.database import (
    Database,
    Driver,
    driver_of,
)
from khala.store.postgres.notifications import (
    RUNS_CHANNEL,
    THREADS_CHANNEL,
    notify,
)
from khala.store.postgres.retries import retried
from khala.store.runs import leases, requesters
from khala.store.schema.tables import (
    ephemeral_threads,
    files,
    memberships,
    memories,
    memory_extractions,
    memory_proposals,
    messages,
    share_links,
    threads,
    title_jobs,
    todos,
)
from khala.store.sharing import access, invitations
from khala.store.threads import deletion_records, reset_marks, thread_lists
from khala.store.threads.deletion_records import NO_UNDO
from khala.store.threads.reset_marks import IS_MESSAGE
from khala.store.webhooks import outbox

IS_OF_ACCOUNT = "SELECT EXISTS (SELECT FROM users WHERE id = $1)"
"""A guest's files, memories and budgets are those of the thread's id, and an account's those of the account's id."""
EXPIRY = "SELECT expires_at FROM ephemeral_threads WHERE thread_id = $1"


async def lock(connection: AsyncConnection, thread_id: UUID) -> Row[Any]:
    """Lock the thread's row until the transaction ends, and return it. Raises `ThreadNotFound`."""
    temporary = select(ephemeral_threads.c.expires_at).where(
        ephemeral_threads.c.thread_id == thread_id, ~ephemeral_threads.c.recalls
    )
    query = select(threads, temporary.scalar_subquery().label("expires_at"))
    query = query.where(threads.c.id == thread_id, threads.c.deleted_at.is_(None))
    query = query.with_for_update(of=threads)
    row = (await connection.execute(query)).first()
    if row is None:
        raise ThreadNotFound("There is no such thread.")
    return row


async def lock_authorized(connection: AsyncConnection, thread_id: UUID, caller: Caller, action: Action) -> Row[Any]:
    """As `lock`. Also raises `Forbidden` unless the caller may do this."""
    row = await lock(connection, thread_id)
    await access.authorize(await driver_of(connection), thread_id, caller, action)
    return row


async def bump(connection: AsyncConnection, thread_id: UUID, **changes: Any) -> int:
    """Increment the thread's revision, and set these columns. Observers are notified at the commit.

    Without an `updated_at` among the changes, it is the current time.
    """
    values = {"revision": threads.c.revision + 1, "updated_at": text("clock_timestamp()")} | changes
    command = update(threads).where(threads.c.id == thread_id).values(values).returning(threads.c.revision)
    revision: int = (await connection.execute(command)).scalar_one()
    await notify(connection, THREADS_CHANNEL, str(thread_id))
    return revision


async def continue_from(connection: AsyncConnection, thread_id: UUID, message_id: UUID) -> int:
    """Increment the thread's revision, and make this message the end of its active branch."""
    return await bump(connection, thread_id, meta_revision=threads.c.revision + 1, active_leaf=message_id)


@retried
async def create(
    db: Database,
    thread_id: UUID,
    caller: Caller,
    *,
    title: str | None,
    welcome: str,
    lifetime: timedelta | None = None,
    reserved: bool = False,
    recalls: bool = True,
    client_metadata: Mapping[str, str] | None = None,
) -> tuple[Thread, bool]:
    """Create a thread with a welcome message, unless it exists. Returns the thread, and whether it is new.

    A user with an account owns the thread. A guest has access to it by the anonymous key. With `lifetime`, the thread
    expires after that time. Unless it `recalls`, its runs use no memories but those of the thread. Raises
    `InvalidInput` for a new thread with a reserved id, unless the server has made it for this caller (`reserved`).
    """
    ownership = {"anon_key_hash": caller.anon_key_hash} if caller.user_id is None else {"owner_id": caller.user_id}
    async with db.transaction() as connection:
        created = await connection.execute(
            upsert(threads)
            .values(id=thread_id, title=title, client_metadata=client_metadata and dict(client_metadata), **ownership)
            .on_conflict_do_nothing()
            .returning(threads.c.id)
        )
        new = created.first() is not None
        if new and caller.only_thread is not None:
            raise Forbidden("A thread token opens one thread, and creates none.")
        if new and thread_id.version == ids.RESERVED_VERSION and not reserved:
            raise InvalidInput("A UUID of version 8 cannot be the id of a new thread. Use version 4 or 7.", path="id")
        driver = await driver_of(connection)
        if new and thread_id != caller.user_id and await driver.fetchval(IS_OF_ACCOUNT, thread_id):
            raise InvalidInput("This is the id of an account. Use a new UUID.", path="id")
        await _lock_own(connection, thread_id, caller)
        if new:
            await _write_welcome(connection, thread_id, welcome)
            await outbox.record_one(driver, "thread.created", thread_id)
            await add_to_list(connection, thread_id, caller, lifetime, recalls=recalls)
        return rows.thread((await lock(connection, thread_id))._mapping), new


async def add_to_list(
    connection: AsyncConnection, thread_id: UUID, caller: Caller, lifetime: timedelta | None, *, recalls: bool = True
) -> None:
    """Add a new thread to its owner's list. A thread with a `lifetime` is on no list, but its expiry is stored."""
    if lifetime is not None:
        if caller.user_id is not None:
            await thread_lists.lock_user(await driver_of(connection), caller.user_id)
        expiry = {"thread_id": thread_id, "expires_at": func.clock_timestamp() + lifetime, "recalls": recalls}
        await connection.execute(insert(ephemeral_threads).values(expiry))
    elif caller.user_id is not None:
        await thread_lists.add_entry(await driver_of(connection), thread_id, caller.user_id)


async def expiry(driver: Driver, thread_id: UUID) -> datetime | None:
    """The end of an ephemeral thread; None for others."""
    expires_at: datetime | None = await driver.fetchval(EXPIRY, thread_id)
    return expires_at


async def _lock_own(connection: AsyncConnection, thread_id: UUID, caller: Caller) -> None:
    try:
        await lock_authorized(connection, thread_id, caller, Action.CREATE_THREAD)
    except ThreadNotFound as error:
        await _check_present(connection, caller)
        raise Conflict("A thread with this id was deleted. Create one with another id.") from error


async def _check_present(connection: AsyncConnection, caller: Caller) -> None:
    driver = await driver_of(connection)
    if caller.user_id is not None and not await driver.fetchval(USER_IS_PRESENT, caller.user_id):
        raise Unauthorized("This account was deleted.")


async def _write_welcome(
    connection: AsyncConnection, thread_id: UUID, welcome: str, *, position: int = 1, **changes: Any
) -> None:
    revision = threads.c.revision + 1
    row = await bump(connection, thread_id, meta_revision=revision, **changes)
    if not welcome:
        return
    message_id = ids.new()
    # Also after a reset: by its time, clients tell it from messages that somebody has appended.
    created_at = select(threads.c.created_at).where(threads.c.id == thread_id).scalar_subquery()
    await connection.execute(
        insert(messages).values(
            id=message_id,
            thread_id=thread_id,
            created_at=created_at,
            position=position,
            role="assistant",
            status="final",
            content=(TextBlock(text=welcome),),
            revision=row,
        )
    )
    await connection.execute(update(threads).where(threads.c.id == thread_id).values(active_leaf=message_id))


@retried
async def update_thread(
    db: Database,
    thread_id: UUID,
    caller: Caller,
    *,
    title: str | msgspec.UnsetType | None = msgspec.UNSET,
    visibility: str | msgspec.UnsetType = msgspec.UNSET,
    active_leaf: UUID | msgspec.UnsetType = msgspec.UNSET,
) -> Thread:
    """Change the thread's title (None removes it), its active leaf, or its visibility.

    `private` revokes all share links and thread tokens. Raises `InvalidInput` if `active_leaf` is not a message of the
    thread.
    """
    async with db.transaction() as connection:
        action = Action.EDIT_THREAD if visibility is msgspec.UNSET else Action.SET_VISIBILITY
        row = await lock_authorized(connection, thread_id, caller, action)
        changes: dict[str, Any] = {}
        if title is not msgspec.UNSET and title != row.title:
            changes["title"] = title
        if active_leaf is not msgspec.UNSET and active_leaf != row.active_leaf:
            await _check_message(connection, thread_id, active_leaf)
            changes["active_leaf"] = active_leaf
        if visibility is not msgspec.UNSET and visibility != row.visibility:
            changes |= {"visibility": visibility, "access_id": func.gen_random_uuid()}
            await audit.record(connection, "visibility_set", caller, thread_id=thread_id, visibility=visibility)
        # Thread tokens may exist while the thread is private.
        if visibility == "private" and await _revoke_links(connection, thread_id):
            changes["access_id"] = func.gen_random_uuid()
        if changes:
            await update_metadata(connection, thread_id, **changes)
        return rows.thread((await lock(connection, thread_id))._mapping)


async def _revoke_links(connection: AsyncConnection, thread_id: UUID) -> bool:
    """Revoke all links and tokens. Returns whether there was any."""
    gone = delete(share_links).where(share_links.c.thread_id == thread_id).returning(share_links.c.key_hash)
    key_hashes = [row.key_hash for row in await connection.execute(gone)]
    await requesters.cancel_runs_of_links(await driver_of(connection), thread_id, key_hashes)
    return bool(key_hashes)


async def _revoke_tokens(connection: AsyncConnection, thread_id: UUID) -> bool:
    """Revoke all thread tokens, of a thread without active runs. Returns whether there was any."""
    mine = (share_links.c.thread_id == thread_id) & (share_links.c.kind == "token")
    gone = await connection.execute(delete(share_links).where(mine).returning(share_links.c.id))
    return gone.first() is not None


async def _check_message(connection: AsyncConnection, thread_id: UUID, message_id: UUID) -> None:
    this = (messages.c.id == message_id, messages.c.thread_id == thread_id)
    query = select(messages.c.id).where(*this, text(IS_MESSAGE))
    if (await connection.execute(query)).first() is None:
        raise InvalidInput("This is not a message of this thread.", path="activeLeaf")


async def update_metadata(connection: AsyncConnection, thread_id: UUID, **changes: Any) -> None:
    """Change columns of the thread. Its observers and the thread lists of its members are notified."""
    await bump(connection, thread_id, meta_revision=threads.c.revision + 1, **changes)
    await thread_lists.mark_changed(await driver_of(connection), [thread_id])


END_SCHEDULES = """
    UPDATE schedules SET status = 'ended', reason = 'thread_deleted', occurrence_at = NULL, due_at = NULL,
           lease_expires_at = NULL, epoch = epoch + 1, updated_at = clock_timestamp()
    WHERE thread_id = ANY($1::uuid[]) AND status <> 'ended'
"""


@retried
async def remove(db: Database, thread_id: UUID, caller: Caller, *, undo: timedelta = NO_UNDO) -> None:
    """Delete the thread. It is closed at once, its active runs lose their lease, and its contents are purged later.

    Within the time `undo`, the deletion can be undone: see `thread_deletions`.
    """
    async with db.transaction() as connection:
        await lock_authorized(connection, thread_id, caller, Action.DELETE_THREAD)
        await deletion_records.record(await driver_of(connection), thread_id, undo)
        await close(connection, [thread_id])
        await audit.record(connection, "thread_deleted", caller, thread_id=thread_id)


async def close(connection: AsyncConnection, thread_ids: Sequence[UUID]) -> None:
    """Close these threads for all users, permanently. The caller holds their locks."""
    driver = await driver_of(connection)
    await plan_leases.revoke(driver, thread_ids)
    active = await leases.lock_active_runs(driver, thread_ids)
    await leases.revoke(driver, active)
    await ledger.settle_deleted(driver, active)
    await thread_lists.lock_users_of(driver, thread_ids)
    await thread_lists.mark_changed(driver, thread_ids, gone=True)
    await invitations.close(driver, thread_ids)
    await driver.execute(END_SCHEDULES, thread_ids)
    in_threads = any_(bindparam("ids", list(thread_ids), type_=ARRAY(Uuid)))
    for table in (memberships, share_links, ephemeral_threads):
        await connection.execute(delete(table).where(table.c.thread_id == in_threads))
    # Before the owner is gone, whose webhooks get the event.
    await outbox.record(driver, [WebhookEvent(type="thread.deleted", thread_id=each, data={}) for each in thread_ids])
    closed = {"owner_id": None, "anon_key_hash": None, "title": None, "visibility": "private", "client_metadata": None}
    await connection.execute(
        update(threads).where(threads.c.id == in_threads).values(**closed, deleted_at=func.clock_timestamp())
    )
    await driver.execute("SELECT pg_notify($1, id::text) FROM unnest($2::uuid[]) AS id", THREADS_CHANNEL, thread_ids)
    await notify(connection, RUNS_CHANNEL, "")


@retried
async def reset(db: Database, thread_id: UUID, caller: Caller, *, welcome: str) -> Thread:
    """Mark the thread's contents as deleted, and write the welcome message again. Observers restart from a snapshot.

    The marked rows are purged later: the cost of a reset does not depend on the size of the thread.
    """
    async with db.transaction() as connection:
        row = await lock_authorized(connection, thread_id, caller, Action.RESET_THREAD)
        driver = await driver_of(connection)
        revision = row.revision + 1
        position = await reset_marks.mark(driver, thread_id, revision)
        await plan_leases.revoke(driver, [thread_id])
        active = await leases.lock_active_runs(driver, [thread_id])
        await leases.revoke(driver, active)
        changes: dict[str, Any] = {"reset_revision": revision, "active_leaf": None}
        if await _revoke_tokens(connection, thread_id):
            changes["access_id"] = func.gen_random_uuid()
        await _write_welcome(connection, thread_id, welcome, position=position, **changes)
        await ledger.settle_deleted(driver, active)
        # The workspace of a guest, which has a maximum size.
        for table in (files, todos):
            await connection.execute(delete(table).where(table.c.owner_id == thread_id))
        # Proposals first: one that is being accepted is a memory then.
        for table in (title_jobs, memory_extractions, memory_proposals, memories):
            await connection.execute(delete(table).where(table.c.thread_id == thread_id))
        await thread_lists.mark_changed(driver, [thread_id])
        await notify(connection, RUNS_CHANNEL, "")
        return rows.thread((await lock(connection, thread_id))._mapping)
