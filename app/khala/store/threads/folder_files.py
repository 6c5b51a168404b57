"""Files of folders: references of accounts to objects, which go with the folder and its name."""

from datetime import datetime
from typing import Any
from uuid import UUID

from khala.domain.access import Caller
from khala.domain.chat import FolderFile
from khala.domain.errors import Conflict, PayloadTooLarge
from khala.store.blobs import blobs
from khala.store.blobs.blobs import StorageQuota, StoredFile
from khala.store.postgres.database import Database, Driver
from khala.store.postgres.retries import retried
from khala.store.threads import thread_folders, thread_lists
from khala.store.tools import workspace_owners

MAX_FILES = 30
"""Files in one folder."""
MAX_TOTAL_BYTES = 100 << 20
"""Bytes of all files in one folder."""

COLUMNS = "id, user_id, folder, sha256, size, media_type, name, created_at"
OF_FOLDER = f"SELECT {COLUMNS} FROM folder_files WHERE user_id = $1 AND folder = $2 ORDER BY name, id"
OF_THREAD = """
    SELECT {columns} FROM listings JOIN folder_files AS file
      ON file.user_id = listings.user_id AND file.folder = listings.folder
    WHERE listings.user_id = $1 AND listings.thread_id = $2 AND NOT gone AND coalesce(file.id = $3, true)
    ORDER BY file.name, file.id
""".format(columns=", ".join(f"file.{column}" for column in COLUMNS.split(", ")))
FIND = f"SELECT {COLUMNS} FROM folder_files WHERE user_id = $1 AND id = $2"
USAGE = """
    SELECT count(*) FILTER (WHERE folder = $2) AS files,
           coalesce(sum(size) FILTER (WHERE folder = $2), 0)::bigint AS bytes,
           coalesce(sum(size), 0)::bigint AS all_bytes,
           (SELECT budget_plan FROM users WHERE id = $1) AS budget_plan
    FROM folder_files WHERE user_id = $1
"""
INSERT = f"INSERT INTO folder_files ({COLUMNS}) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)"
DELETE = "DELETE FROM folder_files WHERE user_id = $1 AND id = $2"


class StoredFolderFile(StoredFile, frozen=True, kw_only=True):
    """An account's reference to an object, in one of its folders."""

    user_id: UUID
    folder: str
    name: str
    created_at: datetime

    @property
    def entry(self) -> FolderFile:
        """The file on the wire."""
        return FolderFile(
            id=self.id, name=self.name, size=self.size, media_type=self.media_type, created_at=self.created_at
        )


async def read_all(driver: Driver, user_id: UUID, folder: str) -> list[StoredFolderFile]:
    """The files of the account's folder, by name."""
    return [_file(row) for row in await driver.fetch(OF_FOLDER, user_id, folder)]


async def of_thread(driver: Driver, user_id: UUID, thread_id: UUID) -> list[StoredFolderFile]:
    """The files of the folder in which the account keeps the thread now, by name."""
    return [_file(row) for row in await driver.fetch(OF_THREAD, user_id, thread_id, None)]


async def find_in_thread(driver: Driver, user_id: UUID, thread_id: UUID, file_id: UUID) -> StoredFolderFile | None:
    """The file, if it is in the folder in which the account keeps the thread now."""
    row = await driver.fetchrow(OF_THREAD, user_id, thread_id, file_id)
    return None if row is None else _file(row)


async def find(driver: Driver, user_id: UUID, file_id: UUID) -> StoredFolderFile | None:
    """The account's file, if there is one."""
    row = await driver.fetchrow(FIND, user_id, file_id)
    return None if row is None else _file(row)


async def check_quota(
    driver: Driver, user_id: UUID, folder: str, size: int, quota: StorageQuota, *, files: int
) -> None:
    """Check that the folder and the account may store `size` more bytes in `files` more files.

    All folders of an account have the quota of one thread. Raises `Conflict` for too many files, and `PayloadTooLarge`.
    """
    usage = await driver.fetchrow(USAGE, user_id, folder)
    if usage is None or usage["files"] + files > MAX_FILES:
        raise Conflict(f"A folder has at most {MAX_FILES} files. Remove one first.")
    if usage["bytes"] + size > MAX_TOTAL_BYTES:
        raise PayloadTooLarge(f"The files of a folder have at most {MAX_TOTAL_BYTES >> 20} MB.")
    most_bytes = quota.of_plan(usage["budget_plan"])
    if usage["all_bytes"] + size > most_bytes:
        raise PayloadTooLarge(f"The files of all your folders have at most {most_bytes:,} bytes.")


async def find_or_check(driver: Driver, new: StoredFolderFile, quota: StorageQuota) -> StoredFolderFile | None:
    """The same file if the folder has it, None if the new one may be added.

    Raises `Conflict` for another file of the same name and for too many files, and `PayloadTooLarge`.
    """
    same = [file for file in await read_all(driver, new.user_id, new.folder) if file.name == new.name]
    if same and same[0].sha256 == new.sha256:
        return same[0]
    if same:
        raise Conflict(f"The folder has a file {new.name} already. Remove it first, or give this one another name.")
    await check_quota(driver, new.user_id, new.folder, new.size, quota, files=1)
    return None


@retried
async def add(db: Database, new: StoredFolderFile, *, put: bool, quota: StorageQuota) -> StoredFolderFile | None:
    """Add a file to a folder, which is made if there is none. Its object is stored or was just `put`.

    The same file again is the one that the folder has. None if the object was garbage-collected meanwhile. Raises
    `Conflict` for another file of the same name and for too many files or folders, `PayloadTooLarge`, and
    `Unauthorized` if the account was deleted.
    """
    async with db.driver() as driver, driver.transaction():
        if not await driver.fetchval(blobs.CONFIRM, new.sha256, put):
            return None
        await thread_lists.lock_user(driver, new.user_id)
        await workspace_owners.lock(driver, new.user_id)
        same = await find_or_check(driver, new, quota)
        if same is not None:
            return same
        await thread_folders.make(driver, Caller(user_id=new.user_id), new.folder)
        values = (getattr(new, column) for column in COLUMNS.split(", "))
        await driver.execute(INSERT, *values)
        return new


@retried
async def remove(db: Database, user_id: UUID, file_id: UUID) -> None:
    """Remove the account's file from its folder, if there is one."""
    async with db.driver() as driver, driver.transaction():
        await thread_lists.lock_user(driver, user_id)
        await workspace_owners.lock(driver, user_id)
        await driver.execute(DELETE, user_id, file_id)


def _file(row: Any) -> StoredFolderFile:
    return StoredFolderFile(**dict(row))
