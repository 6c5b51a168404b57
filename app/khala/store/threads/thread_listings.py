"""Pinned and archived threads and folders: of accounts on their list, of guests by the key of the thread."""

from uuid import UUID

import msgspec

from khala.domain.access import Action, Caller, author_id_of_key, hashes_match
from khala.domain.chat import ThreadListing
from khala.domain.errors import Forbidden
from khala.store.postgres.database import Database, Driver, driver_of
from khala.store.postgres.retries import retried
from khala.store.sharing import access
from khala.store.threads import thread_lists, threads
from khala.store.tools import workspace_owners

LOCK_USER = "SELECT FROM users WHERE id = $1 FOR NO KEY UPDATE"
READ = "SELECT pinned, archived, folder FROM listings WHERE user_id = $1 AND thread_id = $2 AND NOT gone"
SET = "UPDATE listings SET pinned = $3, archived = $4, folder = $5 WHERE user_id = $1 AND thread_id = $2"
READ_GUEST = "SELECT pinned, archived, folder FROM guest_listings WHERE thread_id = $1"
SET_GUEST = """
    INSERT INTO guest_listings (thread_id, pinned, archived, folder) VALUES ($1, $2, $3, $4)
    ON CONFLICT (thread_id) DO UPDATE
    SET pinned = excluded.pinned, archived = excluded.archived, folder = excluded.folder
"""
MOVE = """
    WITH guest AS (DELETE FROM guest_listings WHERE thread_id = $1 RETURNING *)
    UPDATE listings SET pinned = guest.pinned, archived = guest.archived, folder = guest.folder FROM guest
    WHERE listings.user_id = $2 AND listings.thread_id = guest.thread_id
"""
NOT_LISTED = ThreadListing(pinned=False, archived=False)


class ThreadListingChanges(msgspec.Struct, frozen=True, kw_only=True):
    """Changes of where a thread is kept. Fields that are unset stay as they are; None takes it out of its folder."""

    pinned: bool | msgspec.UnsetType = msgspec.UNSET
    archived: bool | msgspec.UnsetType = msgspec.UNSET
    folder: str | msgspec.UnsetType | None = msgspec.UNSET

    def applied_to(self, listing: ThreadListing) -> ThreadListing:
        """The changed listing."""
        given = {name: value for name in self.__struct_fields__ if (value := getattr(self, name)) is not msgspec.UNSET}
        return msgspec.structs.replace(listing, **given)


async def change(db: Database, thread_id: UUID, caller: Caller, changes: ThreadListingChanges) -> ThreadListing:
    """Change where the caller keeps the thread.

    Raises the errors of `access.authorize`, and `Forbidden` if the thread is on no list of the caller.
    """
    async with db.driver() as driver:
        await access.authorize(driver, thread_id, caller, Action.READ_THREAD)
    if caller.user_id is not None:
        changed = await _change_of_user(db, thread_id, caller.user_id, changes)
        if changed is not None:
            return changed
    return await _change_of_guest(db, thread_id, caller, changes)


@retried
async def _change_of_user(
    db: Database, thread_id: UUID, user_id: UUID, changes: ThreadListingChanges
) -> ThreadListing | None:
    """Change the entry of the user's list; None if the list has no such entry."""
    async with db.driver() as driver, driver.transaction():
        await driver.execute(LOCK_USER, user_id)
        row = await driver.fetchrow(READ, user_id, thread_id)
        if row is None:
            return None
        before = ThreadListing(**row)
        changed = changes.applied_to(before)
        if changed != before:
            await driver.execute(SET, user_id, thread_id, changed.pinned, changed.archived, changed.folder)
            await thread_lists.mark_changed(driver, [thread_id], user_ids=[user_id])
        return changed


@retried
async def _change_of_guest(
    db: Database, thread_id: UUID, caller: Caller, changes: ThreadListingChanges
) -> ThreadListing:
    async with db.transaction() as connection:
        thread = await threads.lock_authorized(connection, thread_id, caller, Action.READ_THREAD)
        if not hashes_match(thread.anon_key_hash, caller.anon_key_hash):
            raise Forbidden("This thread is not on your list. Sign in as a member, or send its key.")
        driver = await driver_of(connection)
        # A folder that is being renamed gets no thread under its earlier name.
        await workspace_owners.lock(driver, author_id_of_key(thread.anon_key_hash))
        row = await driver.fetchrow(READ_GUEST, thread_id)
        changed = changes.applied_to(NOT_LISTED if row is None else ThreadListing(**row))
        await driver.execute(SET_GUEST, thread_id, changed.pinned, changed.archived, changed.folder)
        return changed


async def move(driver: Driver, thread_id: UUID, user_id: UUID) -> None:
    """Take what the guest has chosen to the list of the user who claims the thread.

    The caller holds the locks of the thread and the user.
    """
    await driver.execute(MOVE, thread_id, user_id)
