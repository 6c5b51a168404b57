"""Imports an archive into a deployment without this account: first the blobs, then all rows in one transaction."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any
from uuid import UUID

import asyncpg
import msgspec
import structlog
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from khala.archive.reader import ArchiveReader
from khala.blobs.blob_service import BlobService
from khala.domain.access import Caller
from khala.domain.archive_format import ArchiveRefusedError
from khala.store.accounts import audit
from khala.store.blobs import blobs
from khala.store.memories import memories
from khala.store.operations import archive_import as rows
from khala.store.operations import archive_plans
from khala.store.operations.archive_kinds import RowKind
from khala.store.operations.archive_rows import KINDS
from khala.store.postgres.database import Database, Driver, driver_of
from khala.store.search import search_queue

MAX_TRIES = 3
MAX_PUT_SECONDS = 1800.0
"""Unreferenced blobs may be garbage-collected after an hour. If storing takes longer than this, it is repeated."""
SET_IDLE_TIMEOUT = "SET LOCAL idle_in_transaction_session_timeout = '60s'"
"""A longer timeout, because lines are read and checked between two statements."""
THREAD_KINDS = frozenset({"listing", "plan", "step", "event", "message", "run", "part", "receipt", "approval", "blob"})
"""Kinds of lines that belong to a thread, which must be in the archive."""
KINDS_BEFORE_BLOBS = ("thread", "plan", "step", "event", "message", "run", "part", "receipt", "approval")
CONTENT_KINDS = (*KINDS_BEFORE_BLOBS, "blob")
"""The content of threads, in lock order: threads, plans, runs, objects, users."""
STORED_KINDS = ("blob", "folder_file")
"""Kinds of lines that refer to the bytes of a blob."""

log = structlog.get_logger()


class ImportOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of an import.

    With a `password_hash`, the user can sign in with that password and `email`. If `email` is None, the address in the
    archive is used. `trusted`: the operator vouches that the archive is unchanged since a Khala server wrote it. Then
    OpenID identities, members and the names of other accounts are imported, too.
    """

    email: str | None = None
    password_hash: str | None = None
    trusted: bool = False


class ArchiveImportResult(msgspec.Struct, kw_only=True):
    """The result of an import: `counts` by kind of line and `notes`. `added` is false for a repeated import."""

    user_id: UUID
    added: bool
    counts: dict[str, int] = {}
    notes: list[str] = []


async def import_archive(
    db: Database, blob_service: BlobService, reader: ArchiveReader, options: ImportOptions
) -> ArchiveImportResult:
    """Import the archive, all or nothing. Importing the same archive again adds nothing.

    Raises `ArchiveRefusedError` if the archive is invalid or its account exists already, and `Unavailable`.
    """
    user_id = reader.manifest.user_id
    async with db.driver() as driver:
        exists = await rows.account_exists(driver, user_id)
        repeated = exists and await rows.was_imported(driver, user_id, reader.digest)
    if exists and not repeated:
        raise ArchiveRefusedError(
            f"The account {user_id} exists already. An import creates a new account, and cannot merge into one."
        )
    if repeated:
        return await _sign_in_again(db, reader, options)
    await asyncio.to_thread(reader.check)
    for _ in range(MAX_TRIES):
        await _store(db, blob_service, reader)
        try:
            return await _Import(db, reader, options).run()
        except _BlobCollected:
            log.warning("import_restarted", reason="blobs were garbage-collected during the import")
    raise ArchiveRefusedError("Blobs are garbage-collected faster than they are stored. Try again.")


async def _sign_in_again(db: Database, reader: ArchiveReader, options: ImportOptions) -> ArchiveImportResult:
    """Repeat an import: adds only a password, if the account has none."""
    result = ArchiveImportResult(user_id=reader.manifest.user_id, added=False)
    result.notes.append("This archive was imported before; nothing was added.")
    if options.password_hash is not None:
        with _database_errors():
            async with db.driver() as driver:
                await _set_login(driver, reader, options, result)
    return result


async def _store(db: Database, blob_service: BlobService, reader: ArchiveReader) -> None:
    """Store the bytes of all blobs. Repeat if it took so long that the first ones may have been collected."""
    for _ in range(MAX_TRIES):
        began = time.monotonic()
        for sha256, size in reader.blobs.items():
            await _store_blob(db, blob_service, reader, bytes.fromhex(sha256), size)
        if time.monotonic() - began < MAX_PUT_SECONDS:
            return


async def _store_blob(db: Database, blob_service: BlobService, reader: ArchiveReader, sha256: bytes, size: int) -> None:
    async with db.driver() as driver:
        if await blobs.touch(driver, sha256, size):
            return
    async with blob_service.spool(size) as spool:
        async for chunk in _extract(reader, sha256.hex()):
            await spool.write(chunk)
        await blob_service.store.put(sha256.hex(), await spool.file())
    async with db.driver() as driver:
        await rows.mark_stored(driver, sha256)


async def _extract(reader: ArchiveReader, sha256: str) -> AsyncIterator[bytes]:
    chunks = reader.chunks(sha256)
    while chunk := await asyncio.to_thread(next, chunks, b""):
        yield chunk


class _BlobCollected(Exception):
    """A blob was garbage-collected before the import added its row."""


class _Import:
    """One attempt to add the rows."""

    def __init__(self, db: Database, reader: ArchiveReader, options: ImportOptions) -> None:
        self._db = db
        self._reader = reader
        self._options = options
        self._user_id = reader.manifest.user_id
        self._threads: list[UUID] = []
        self._own_threads: frozenset[UUID] = frozenset()
        self._available = {bytes.fromhex(sha256) for sha256 in reader.blobs}
        self._result = ArchiveImportResult(user_id=self._user_id, added=True)

    async def run(self) -> ArchiveImportResult:
        """Add all rows, or none."""
        with _database_errors():
            async with self._db.transaction() as connection:
                await connection.execute(text(SET_IDLE_TIMEOUT))
                driver = await driver_of(connection)
                await self._add_content(connection, driver)
                await self._add_account(driver)
                caller = Caller(user_id=self._user_id)
                await audit.record(connection, "account_imported", caller, archive=self._reader.digest)
        return self._result

    async def _add_content(self, connection: AsyncConnection, driver: Driver) -> None:
        """Add the threads and their content."""
        for name in KINDS_BEFORE_BLOBS:
            await self._copy(driver, _kind(name))
        await rows.lock_threads(driver, self._threads)
        if await rows.lock_objects(driver, sorted(self._available)) != self._available:
            raise _BlobCollected
        await self._copy(driver, _kind("blob"))
        await rows.check_references(driver, self._threads, self._result.counts["part"])
        await archive_plans.check_plans(driver, self._threads)
        if not self._options.trusted:
            await rows.remove_other_accounts(driver, self._threads, self._user_id)
        ended = await rows.cancel_unended_runs(connection, self._threads)
        if ended:
            self._note(f"{ended} runs had not ended when the account was exported: they are canceled.")
        paused = await archive_plans.pause_plans(connection, self._threads)
        if paused:
            self._note(f"{paused} plans were going on when the account was exported: they are paused.")

    async def _add_account(self, driver: Driver) -> None:
        """Add the user, and everything outside of threads."""
        for kind in KINDS:
            if kind.imported and kind.name not in (*CONTENT_KINDS, "identity", "member"):
                await self._copy(driver, kind)
        members = await self._members() if self._options.trusted else []
        await rows.lock_users(driver, {self._user_id, *(member.user_id for member in members)})
        await rows.add_list_entries(driver, self._threads)
        await search_queue.add_threads(driver, self._threads)
        await self._add_trusted(driver, members)
        await self._add_login(driver)
        for name, noun in (("token", "API tokens"), ("link", "share links")):
            count = self._count_lines(name)
            if count:
                self._note(f"{count} {noun} have to be created again: their secrets are not in the archive.")

    async def _members(self) -> list[rows.ArchivedMembership]:
        members = [
            msgspec.convert(line, rows.ArchivedMembership, from_attributes=True)
            async for batch in self._batches(_kind("member"))
            for line in batch
        ]
        if any(member.thread_id not in self._own_threads for member in members):
            raise ArchiveRefusedError("A member line belongs to a thread that is not in the archive.")
        return members

    async def _add_trusted(self, driver: Driver, members: Sequence[rows.ArchivedMembership]) -> None:
        """Add identities and members, if the operator trusts the archive."""
        counts = {name: self._count_lines(name) for name in ("identity", "member")}
        if not self._options.trusted:
            for name, count in counts.items():
                if count:
                    self._note(f"{count} lines of type {name} were left out. To import them, use --trusted.")
            return
        await self._copy(driver, _kind("identity"))
        dropped = await rows.add_members(driver, members)
        self._result.counts["member"] = len(members) - dropped
        if dropped:
            self._note(f"{dropped} memberships were left out: these users have no account here.")

    async def _add_login(self, driver: Driver) -> None:
        if self._options.password_hash is not None:
            await _set_login(driver, self._reader, self._options, self._result)
        elif not self._result.counts.get("identity"):
            self._note("Nobody can sign in to this account yet. Import it again with --password-stdin.")

    async def _copy(self, driver: Driver, kind: RowKind) -> None:
        count = left_out = 0
        async for batch in self._batches(kind):
            lines = [
                line for line in batch if kind.name not in STORED_KINDS or bytes.fromhex(line.sha256) in self._available
            ]
            self._check(kind, lines)
            await rows.copy(driver, kind, lines, partial(self._implied_values, kind))
            count, left_out = count + len(lines), left_out + len(batch) - len(lines)
            if kind.name == "thread":
                self._threads += [line.id for line in lines]
        if kind.name == "thread":
            self._own_threads = frozenset(self._threads)
        self._result.counts[kind.name] = count
        if left_out:
            noun = "blobs" if kind.name == "blob" else "files of folders"
            self._note(f"{left_out} {noun} were left out: their bytes are not in the archive.")

    def _check(self, kind: RowKind, lines: Sequence[Any]) -> None:
        if kind.name == "user" and [line.id for line in lines if line.id != self._user_id]:
            raise ArchiveRefusedError("The manifest and the lines belong to different users.")
        if kind.name in THREAD_KINDS and any(line.thread_id not in self._own_threads for line in lines):
            raise ArchiveRefusedError(f"{kind.file} has a line that belongs to a thread that is not in the archive.")
        if kind.name == "memory" and any(
            line.scope == "thread" and line.thread_id not in self._own_threads for line in lines
        ):
            raise ArchiveRefusedError("A memory belongs to a thread that is not in the archive.")
        if kind.name in STORED_KINDS and any(self._reader.blobs.get(line.sha256) != line.size for line in lines):
            raise ArchiveRefusedError("The size of a blob differs from its line.")

    def _implied_values(self, kind: RowKind, line: Any) -> Mapping[str, Any]:
        """The values of columns that the archive omits because they follow from the user or from the line."""
        match kind.name:
            case "user":
                return {"revision": 1}
            case "thread" | "file" | "todo":
                return {"owner_id": self._user_id}
            case "memory":
                return memories.implied_columns(line, self._user_id)
            case "run":
                return {"fairness_key": self._user_id}
            case "listing":
                return {"user_id": self._user_id, "revision": 1}
            case "preference" | "folder":
                return {"subject_id": self._user_id}
            case "identity" | "tool" | "agent" | "trace" | "folder_file":
                return {"user_id": self._user_id}
        return {}

    async def _batches(self, kind: RowKind) -> AsyncIterator[list[Any]]:
        batches = self._reader.lines(kind)
        while (batch := await asyncio.to_thread(_next_batch, batches)) is not None:
            yield batch

    def _count_lines(self, name: str) -> int:
        return self._reader.count(_kind(name))

    def _note(self, text: str) -> None:
        self._result.notes.append(text)


async def _set_login(
    driver: Driver, reader: ArchiveReader, options: ImportOptions, result: ArchiveImportResult
) -> None:
    """Set the given password, for the given address or the one in the archive."""
    email = options.email or await asyncio.to_thread(_sign_in_address, reader)
    if email is None:
        raise ArchiveRefusedError("The archive has no e-mail address to sign in with: give one with --email.")
    assert options.password_hash is not None
    if not await rows.set_login(driver, reader.manifest.user_id, email, options.password_hash):
        result.notes.append("The account already has a password. It was not changed.")
        return
    result.notes.append(f"You can sign in to the account with {email} and the given password.")


def _sign_in_address(reader: ArchiveReader) -> str | None:
    """The address that the user signs in with, or the address of their profile if there is none."""
    for name in ("login", "user"):
        for batch in reader.lines(_kind(name)):
            for line in batch:
                if line.email:
                    return str(line.email)
    return None


def _kind(name: str) -> RowKind:
    return next(kind for kind in KINDS if kind.name == name)


def _next_batch(batches: Iterator[list[Any]]) -> list[Any] | None:
    return next(batches, None)


@contextmanager
def _database_errors() -> Iterator[None]:
    """Translate errors of the database that the archive causes, such as existing ids and invalid text."""
    try:
        yield
    except asyncpg.UniqueViolationError as error:
        raise ArchiveRefusedError(f"A row exists already ({error.table_name}): {error.detail}") from error
    except (asyncpg.IntegrityConstraintViolationError, asyncpg.DataError) as error:
        raise ArchiveRefusedError(f"The database rejected a row: {error}") from error
