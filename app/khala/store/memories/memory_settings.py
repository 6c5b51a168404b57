"""Settings of memory: of accounts, of guests by their key, and of threads."""

from collections.abc import Sequence
from uuid import UUID

import msgspec

from khala.domain.access import Action, Caller, author_id_of_key
from khala.domain.errors import Forbidden, Unauthorized
from khala.domain.memories import Extraction, MemorySettings, ThreadMemorySettings
from khala.domain.preferences import FolderInstructions
from khala.store.accounts import account_marks
from khala.store.memories import extraction_jobs
from khala.store.postgres import rows
from khala.store.postgres.database import Database, Driver
from khala.store.postgres.retries import retried
from khala.store.sharing import access
from khala.store.tools import workspace_owners

READ = "SELECT recall, extraction FROM memory_settings WHERE subject_id = $1"
SET = """
    INSERT INTO memory_settings (subject_id, anon_key_hash, recall, extraction) VALUES ($1, $2, $3, $4)
    ON CONFLICT (subject_id) DO UPDATE SET
        recall = coalesce(excluded.recall, memory_settings.recall),
        extraction = coalesce(excluded.extraction, memory_settings.extraction), changed_at = now()
"""
SET_PERSONAL = """
    INSERT INTO memory_settings (subject_id, personal) VALUES ($1, $2)
    ON CONFLICT (subject_id) DO UPDATE SET personal = excluded.personal, changed_at = now()
"""
READ_MANY = """
    SELECT asked.run_id, recall, extraction, preferences.instructions, model,
           folders.name AS folder, folders.instructions AS folder_instructions,
           EXISTS (SELECT FROM folder_files AS file
                   WHERE file.user_id = folders.subject_id AND file.folder = folders.name) AS has_folder_files
    FROM unnest($1::uuid[], $2::uuid[], $3::uuid[]) AS asked (run_id, subject_id, thread_id)
    LEFT JOIN memory_settings USING (subject_id) LEFT JOIN preferences USING (subject_id)
    LEFT JOIN listings AS mine
     ON mine.user_id = asked.subject_id AND mine.thread_id = asked.thread_id AND NOT mine.gone
    LEFT JOIN guest_listings AS guest ON guest.thread_id = asked.thread_id
    LEFT JOIN thread_folders AS folders
     ON folders.subject_id = asked.subject_id AND folders.name = coalesce(mine.folder, guest.folder)
    AND CASE WHEN folders.anon_key_hash IS NULL THEN mine.folder IS NOT NULL ELSE folders.anon_key_hash = (
            SELECT threads.anon_key_hash FROM threads WHERE threads.id = asked.thread_id)
        END
"""
"""Settings of the requesters of runs. The folder of a thread is the requester's: on the list of the user, or for a
guest with the thread's key."""
LOCK_THREAD = "SELECT owner_id FROM threads WHERE id = $1 AND deleted_at IS NULL FOR KEY SHARE"


class MemorySettingChanges(msgspec.Struct, frozen=True, kw_only=True):
    """Changes of settings. None leaves a setting as it is."""

    recall: bool | None = None
    extraction: Extraction | None = None


class RunRequester(msgspec.Struct, frozen=True, kw_only=True):
    """The user who requested a run (None for a guest), and their settings. `subject_id` is None without a key.

    `extraction` is None if the operator's default counts.
    """

    user_id: UUID | None = None
    subject_id: UUID | None = None
    recall: bool = True
    extraction: Extraction | None = None
    instructions: str | None = None
    """Their own instructions to the model in all chats."""
    model: str | None = None
    """The model that they prefer."""
    folder: FolderInstructions | None = None
    """Their instructions for the folder in which they keep the thread."""
    has_folder_files: bool = False
    """Whether that folder has files."""

    @property
    def all_instructions(self) -> tuple[str | None, FolderInstructions | None]:
        """Their own instructions, and those for the folder."""
        return self.instructions, self.folder


def subject_of(caller: Caller) -> UUID:
    """The id under which the caller's settings and proposals are stored. Raises `Unauthorized`.

    Several people may use a share key, so it has no settings.
    """
    if caller.user_id is not None:
        return caller.user_id
    if caller.anon_key_hash is None:
        raise Unauthorized("Sign in, or send the key of your anonymous threads.")
    return author_id_of_key(caller.anon_key_hash)


async def read(driver: Driver, subject_id: UUID, *, default: Extraction) -> MemorySettings:
    """The settings of a user, or of a guest by the author id of their key. `default`: of the extraction."""
    row = await driver.fetchrow(READ, subject_id)
    recall, extraction = (None, None) if row is None else (row["recall"], row["extraction"])
    return MemorySettings(recall=True if recall is None else recall, extraction=extraction or default)


async def read_requesters(driver: Driver, runs: Sequence[rows.Record]) -> dict[UUID, RunRequester]:
    """The requesters of runs, with their settings, by run."""
    subjects = {row["id"]: row["user_id"] or row["asker_key_id"] for row in runs}
    known = [(row["id"], subjects[row["id"]], row["thread_id"]) for row in runs if subjects[row["id"]] is not None]
    found = await driver.fetch(READ_MANY, *zip(*known, strict=True)) if known else []
    settings = {row["run_id"]: row for row in found}
    return {row["id"]: _requester(row["user_id"], subjects[row["id"]], settings.get(row["id"])) for row in runs}


def _requester(user_id: UUID | None, subject_id: UUID | None, stored: rows.Record | None) -> RunRequester:
    if stored is None:
        return RunRequester(user_id=user_id, subject_id=subject_id)
    return RunRequester(
        user_id=user_id,
        subject_id=subject_id,
        recall=stored["recall"] is not False,
        extraction=stored["extraction"],
        instructions=stored["instructions"],
        model=stored["model"],
        folder=_folder(stored),
        has_folder_files=stored["has_folder_files"],
    )


def _folder(stored: rows.Record) -> FolderInstructions | None:
    text = stored["folder_instructions"]
    return None if text is None else FolderInstructions(name=stored["folder"], text=text)


@retried
async def change(db: Database, caller: Caller, changes: MemorySettingChanges) -> None:
    """Change the caller's settings. Raises `Unauthorized`, also if the account was deleted."""
    subject_id = subject_of(caller)
    key_hash = None if caller.user_id is not None else caller.anon_key_hash
    async with db.driver() as driver, driver.transaction():
        if caller.user_id is not None:
            await account_marks.lock_account(driver, caller.user_id)
        await workspace_owners.lock(driver, subject_id)
        await driver.execute(SET, subject_id, key_hash, changes.recall, changes.extraction)
        if changes.extraction == "off":
            await extraction_jobs.forget(driver, subject_id)


async def read_of_thread(driver: Driver, thread_id: UUID, caller: Caller) -> ThreadMemorySettings:
    """The settings of a thread. Raises `ThreadNotFound`, and `Forbidden` unless the caller may read the thread."""
    await access.authorize(driver, thread_id, caller, Action.READ_THREAD)
    personal = await driver.fetchval("SELECT personal FROM memory_settings WHERE subject_id = $1", thread_id)
    return ThreadMemorySettings(personal=bool(personal))


@retried
async def set_personal(db: Database, thread_id: UUID, caller: Caller, *, personal: bool) -> None:
    """Decide whether runs of the thread's owner use the owner's personal memories, although others can read the thread.

    Only the account that owns the thread decides. Raises `ThreadNotFound` and `Forbidden`.
    """
    async with db.driver() as driver, driver.transaction():
        owner_id = await driver.fetchval(LOCK_THREAD, thread_id)
        await access.authorize(driver, thread_id, caller, Action.READ_THREAD)
        if owner_id is None or owner_id != caller.user_id:
            raise Forbidden("Only the account that owns this thread decides about its own memories.")
        await driver.execute(SET_PERSONAL, thread_id, personal)
