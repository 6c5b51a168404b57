"""Folders of threads, with the settings that people give them: of accounts, and of guests by their key.

The name of a folder stands at each thread that a person keeps there: in `listings`, or for guests in `guest_listings`.
A row of `thread_folders` has the settings of a folder, which then exists without threads, too.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

import msgspec

from khala.domain.access import Caller, author_id_of_key
from khala.domain.chat import FolderSettings, ThreadFolder
from khala.domain.errors import Conflict, NotFound
from khala.store.memories.memory_settings import subject_of
from khala.store.postgres.database import Database, Driver
from khala.store.postgres.retries import retried
from khala.store.postgres.rows import Record
from khala.store.threads import thread_lists
from khala.store.tools import workspace_owners

MAX_FOLDERS = 500
NO_FOLDER = "You have no folder of this name."
TOO_MANY = f"A person has at most {MAX_FOLDERS} folders. Delete one first."

FOLDERS = f"""
    WITH kept AS (
        SELECT folder AS name, count(*)::int AS threads FROM (
            SELECT folder FROM listings JOIN threads ON threads.id = listings.thread_id AND threads.deleted_at IS NULL
            WHERE user_id = $1 AND NOT gone AND folder IS NOT NULL
            UNION ALL
            SELECT folder FROM threads JOIN guest_listings ON guest_listings.thread_id = threads.id
            WHERE threads.anon_key_hash = $2 AND threads.deleted_at IS NULL AND folder IS NOT NULL
        ) AS filed WHERE coalesce(folder = $4, true) GROUP BY folder
    ), made AS (
        SELECT DISTINCT ON (name) name, agent, instructions FROM thread_folders
        WHERE subject_id = ANY ($3::uuid[]) AND coalesce(name = $4, true) ORDER BY name, anon_key_hash IS NOT NULL
    )
    SELECT name, coalesce(threads, 0) AS threads, agent, instructions FROM kept FULL JOIN made USING (name)
    ORDER BY name LIMIT {MAX_FOLDERS}
"""
"""The folders of the account `$1` and of the key `$2`, or the one with the name `$4`. `$3` are the ids of both."""
SET = """
    INSERT INTO thread_folders (subject_id, name, anon_key_hash, instructions, agent) VALUES ($1, $2, $3, $4, $5)
    ON CONFLICT (subject_id, name) DO UPDATE
    SET instructions = excluded.instructions, agent = excluded.agent, changed_at = now()
"""
MAKE = """
    INSERT INTO thread_folders (subject_id, name, anon_key_hash) VALUES ($1, $2, $3)
    ON CONFLICT (subject_id, name) DO NOTHING
"""
RENAME = "UPDATE thread_folders SET name = $3, changed_at = now() WHERE subject_id = ANY ($1::uuid[]) AND name = $2"
DELETE = "DELETE FROM thread_folders WHERE subject_id = ANY ($1::uuid[]) AND name = $2"
HAS_THREAD = "SELECT EXISTS (SELECT FROM threads WHERE anon_key_hash = $1 AND deleted_at IS NULL)"
LOCK_GUEST_THREADS = """
    SELECT threads.id FROM threads JOIN guest_listings ON guest_listings.thread_id = threads.id
    WHERE threads.anon_key_hash = $1 AND folder = $2 ORDER BY threads.id FOR NO KEY UPDATE OF threads
"""
REFILE_GUEST_THREADS = "UPDATE guest_listings SET folder = $3 WHERE thread_id = ANY ($1::uuid[]) AND folder = $2"
REFILE_THREADS = "UPDATE listings SET folder = $3 WHERE user_id = $1 AND folder = $2 RETURNING thread_id, gone"
"""Also entries that are gone: a deletion that is undone brings them back."""
COPY = f"""
    INSERT INTO thread_folders (subject_id, name, instructions, agent)
    SELECT $2, name, instructions, agent FROM thread_folders AS guest
    WHERE subject_id = $1 AND NOT EXISTS (SELECT FROM thread_folders WHERE subject_id = $2 AND name = guest.name)
    ORDER BY name LIMIT greatest(0, {MAX_FOLDERS} - (SELECT count(*) FROM thread_folders WHERE subject_id = $2))
"""


class FolderChanges(msgspec.Struct, frozen=True, kw_only=True):
    """Changes of a folder. Fields that are unset stay as they are; None removes a setting."""

    name: str | msgspec.UnsetType = msgspec.UNSET
    instructions: str | msgspec.UnsetType | None = msgspec.UNSET
    agent: str | msgspec.UnsetType | None = msgspec.UNSET

    def applied_to(self, before: FolderSettings) -> FolderSettings:
        """The changed settings. The name stays."""
        given = {"instructions": self.instructions, "agent": self.agent}
        return msgspec.structs.replace(before, **{k: v for k, v in given.items() if v is not msgspec.UNSET})

    @property
    def only_renames(self) -> bool:
        """Whether no setting is changed."""
        return self.name is not msgspec.UNSET and self.instructions is self.agent is msgspec.UNSET


async def read_all(db: Database, caller: Caller) -> list[ThreadFolder]:
    """The caller's folders by name, those of the account and those of the anonymous key."""
    async with db.driver() as driver:
        found = await _find(driver, caller)
    return [
        ThreadFolder(
            name=row["name"],
            threads=row["threads"],
            agent=row["agent"],
            has_instructions=row["instructions"] is not None,
        )
        for row in found
    ]


async def read(db: Database, caller: Caller, name: str) -> FolderSettings:
    """The caller's folder with this name. Raises `NotFound`."""
    async with db.driver() as driver:
        found = await _read(driver, caller, name)
    if found is None:
        raise NotFound(NO_FOLDER)
    return found


@retried
async def change(db: Database, caller: Caller, name: str, changes: FolderChanges) -> FolderSettings:
    """Change the caller's folder, or make it if there is none and it is not to be renamed.

    A new name is that of all its threads, and of the settings. Raises `NotFound`, also for a key that opens no thread,
    `Conflict` if the new name is taken or there are too many folders, and `Unauthorized`, also if the account was
    deleted.
    """
    async with _changing(db, caller, name) as (driver, thread_ids):
        if changes.name is not msgspec.UNSET and changes.name != name:
            await _rename(driver, caller, name, changes.name, thread_ids)
            name = changes.name
        before = await _read(driver, caller, name)
        if before is None and changes.only_renames:
            raise NotFound(NO_FOLDER)
        if before is not None and changes.only_renames:
            return before
        if caller.user_id is None and not await driver.fetchval(HAS_THREAD, caller.anon_key_hash):
            raise NotFound("This key opens no thread. Create one first.")
        if before is None and len(await _find(driver, caller)) >= MAX_FOLDERS:
            raise Conflict(TOO_MANY)
        changed = changes.applied_to(before or FolderSettings(name=name, threads=0))
        key_hash = None if caller.user_id is not None else caller.anon_key_hash
        await driver.execute(SET, subject_of(caller), name, key_hash, changed.instructions, changed.agent)
        return changed


@retried
async def remove(db: Database, caller: Caller, name: str) -> None:
    """Delete the caller's folder and its settings, if there is one. Its threads are in no folder then."""
    async with _changing(db, caller, name) as (driver, thread_ids):
        await _refile(driver, caller, name, None, thread_ids)
        await driver.execute(DELETE, _subjects(caller), name)


async def make(driver: Driver, caller: Caller, name: str) -> None:
    """Make the caller's folder unless it has settings already.

    The caller of this function holds the locks of `change`. Raises `Conflict` if there are too many folders.
    """
    if not await _find(driver, caller, name) and len(await _find(driver, caller)) >= MAX_FOLDERS:
        raise Conflict(TOO_MANY)
    key_hash = None if caller.user_id is not None else caller.anon_key_hash
    await driver.execute(MAKE, subject_of(caller), name, key_hash)


async def copy(driver: Driver, key_id: UUID, user_id: UUID) -> None:
    """Give the user the settings of a guest's folders, unless the user has settings for a folder of the same name.

    The guest keeps them for the other threads of the key, whose author id is `key_id`. The caller holds the lock of the
    user.
    """
    await driver.execute(COPY, key_id, user_id)


@asynccontextmanager
async def _changing(db: Database, caller: Caller, name: str) -> AsyncIterator[tuple[Driver, list[UUID]]]:
    """A transaction in which nobody else changes the caller's folders, and the guest's threads in this one."""
    subject_of(caller)
    async with db.driver() as driver, driver.transaction():
        key_hash = caller.anon_key_hash
        locked = [] if key_hash is None else await driver.fetch(LOCK_GUEST_THREADS, key_hash, name)
        if caller.user_id is not None:
            await thread_lists.lock_user(driver, caller.user_id)
        for subject_id in sorted(_subjects(caller)):
            await workspace_owners.lock(driver, subject_id)
        yield driver, [row["id"] for row in locked]


async def _rename(driver: Driver, caller: Caller, name: str, new_name: str, guest_thread_ids: list[UUID]) -> None:
    if not await _find(driver, caller, name):
        raise NotFound(NO_FOLDER)
    if await _find(driver, caller, new_name):
        raise Conflict(f"You have a folder {new_name} already.")
    await _refile(driver, caller, name, new_name, guest_thread_ids)
    await driver.execute(RENAME, _subjects(caller), name, new_name)


async def _refile(
    driver: Driver, caller: Caller, name: str, new_name: str | None, guest_thread_ids: list[UUID]
) -> None:
    """Move all threads of the folder into another one, or into none."""
    if guest_thread_ids:
        await driver.execute(REFILE_GUEST_THREADS, guest_thread_ids, name, new_name)
    if caller.user_id is None:
        return
    entries = await driver.fetch(REFILE_THREADS, caller.user_id, name, new_name)
    listed = [row["thread_id"] for row in entries if not row["gone"]]
    if listed:
        await thread_lists.mark_changed(driver, listed, user_ids=[caller.user_id])


def _subjects(caller: Caller) -> list[UUID]:
    of_key = () if caller.anon_key_hash is None else (author_id_of_key(caller.anon_key_hash),)
    return [*filter(None, (caller.user_id,)), *of_key]


async def _find(driver: Driver, caller: Caller, name: str | None = None) -> list[Record]:
    arguments = caller.user_id, caller.anon_key_hash, _subjects(caller), name
    found: list[Record] = await driver.fetch(FOLDERS, *arguments)
    return found


async def _read(driver: Driver, caller: Caller, name: str) -> FolderSettings | None:
    found = await _find(driver, caller, name)
    return FolderSettings(**found[0]) if found else None
