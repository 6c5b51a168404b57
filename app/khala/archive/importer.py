"""Imports an archive into a deployment that has no such account: first the bytes, then all rows in one transaction."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
from khala.store.operations import archive_import as rows
from khala.store.operations.archive_rows import KINDS, RowKind
from khala.store.postgres.database import Database, Driver, driver_of

MAX_TRIES = 3
MAX_PUT_SECONDS = 1800.0
"""For storing all blobs: after an hour what nothing refers to is collected, and is stored again."""
IDLE_TIMEOUT_SECONDS = "SET LOCAL idle_in_transaction_session_timeout = '60s'"
"""Lines are read and checked between two statements."""
OF_THREADS = frozenset({"listing", "message", "run", "part", "receipt", "approval", "blob"})
"""Kinds of lines that name a thread, which must be one of the archive's."""
BEFORE_BLOBS = ("thread", "message", "run", "part", "receipt", "approval")
CONTENT = (*BEFORE_BLOBS, "blob")
"""What is in threads. Locks are taken in the order threads, runs, objects, users, and so are lines of these kinds."""

log = structlog.get_logger()


class ImportOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How an archive is imported.

    With a `password_hash` the user can sign in by it and `email`, or else by the address that the archive names.
    `trusted`: the operator vouches that the archive is as a Khala server wrote it, so that OpenID identities, members
    and the names of other accounts in it are taken over, too.
    """

    email: str | None = None
    password_hash: str | None = None
    trusted: bool = False


class ArchiveImportResult(msgspec.Struct, kw_only=True):
    """What came of an import: `counts` by kind of line, and `notes` for the operator. `added` is false for a repeat."""

    user_id: UUID
    added: bool
    counts: dict[str, int] = {}
    notes: list[str] = []


async def import_archive(
    db: Database, blob_service: BlobService, reader: ArchiveReader, options: ImportOptions
) -> ArchiveImportResult:
    """Import the archive, all or nothing. The same archive a second time adds nothing.

    Raises `ArchiveRefusedError` where it can't be, or where there is another account with its id, and `Unavailable`.
    """
    user_id = reader.manifest.user_id
    async with db.driver() as driver:
        known = await rows.account_exists(driver, user_id)
        repeated = known and await rows.was_imported(driver, user_id, reader.digest)
    if known and not repeated:
        raise ArchiveRefusedError(f"There is an account {user_id} already; nothing is merged into it.")
    if repeated:
        return await _sign_in_again(db, reader, options)
    await asyncio.to_thread(reader.check)
    for _ in range(MAX_TRIES):
        await _store(db, blob_service, reader)
        try:
            return await _Import(db, reader, options).run()
        except _Collected:
            log.warning("import_repeated", why="blobs were collected while others were stored")
    raise ArchiveRefusedError("Blobs are collected faster than they are stored. Try again.")


async def _sign_in_again(db: Database, reader: ArchiveReader, options: ImportOptions) -> ArchiveImportResult:
    """Nothing is added; but somebody who could not sign in may get a password."""
    done = ArchiveImportResult(user_id=reader.manifest.user_id, added=False)
    done.notes.append("This archive was imported before; nothing was added.")
    if options.password_hash is not None:
        with _refusals():
            async with db.driver() as driver:
                await _set_login(driver, reader, options, done)
    return done


async def _store(db: Database, blob_service: BlobService, reader: ArchiveReader) -> None:
    """Store the bytes of all blobs. What was stored so long ago that it may be collected by now is looked at again."""
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
        async for chunk in _extracted(reader, sha256.hex()):
            await spool.write(chunk)
        await blob_service.store.put(sha256.hex(), await spool.file())
    async with db.driver() as driver:
        await rows.mark_stored(driver, sha256)


async def _extracted(reader: ArchiveReader, sha256: str) -> AsyncIterator[bytes]:
    chunks = reader.chunks(sha256)
    while chunk := await asyncio.to_thread(next, chunks, b""):
        yield chunk


class _Collected(Exception):
    """A blob was collected between its storing and the row that was to name it."""


class _Import:
    """One try to make the rows."""

    def __init__(self, db: Database, reader: ArchiveReader, options: ImportOptions) -> None:
        self._db = db
        self._reader = reader
        self._options = options
        self._user_id = reader.manifest.user_id
        self._threads: list[UUID] = []
        self._own: frozenset[UUID] = frozenset()
        self._there = {bytes.fromhex(sha256) for sha256 in reader.blobs}
        self._done = ArchiveImportResult(user_id=self._user_id, added=True)

    async def run(self) -> ArchiveImportResult:
        """Make all rows, or none."""
        with _refusals():
            async with self._db.transaction() as connection:
                await connection.execute(text(IDLE_TIMEOUT_SECONDS))
                driver = await driver_of(connection)
                await self._content(connection, driver)
                await self._account(driver)
                caller = Caller(user_id=self._user_id)
                await audit.record(connection, "account_imported", caller, archive=self._reader.digest)
        return self._done

    async def _content(self, connection: AsyncConnection, driver: Driver) -> None:
        """Threads and all that is in them."""
        for name in BEFORE_BLOBS:
            await self._copied(driver, _kind(name))
        await rows.lock_threads(driver, self._threads)
        if await rows.lock_objects(driver, sorted(self._there)) != self._there:
            raise _Collected
        await self._copied(driver, _kind("blob"))
        await rows.check_references(driver, self._threads)
        if not self._options.trusted:
            await rows.remove_other_accounts(driver, self._threads, self._user_id)
        ended = await rows.cancel_unended_runs(connection, self._threads)
        if ended:
            self._note(f"{ended} runs had not ended when the account was exported: they are canceled.")

    async def _account(self, driver: Driver) -> None:
        """The user, and what belongs to no thread."""
        for kind in KINDS:
            if kind.imported and kind.name not in (*CONTENT, "identity", "member"):
                await self._copied(driver, kind)
        members = await self._members() if self._options.trusted else []
        await rows.lock_users(driver, {self._user_id, *(member.user_id for member in members)})
        await rows.add_list_entries(driver, self._threads)
        await self._with_trust(driver, members)
        await self._login(driver)
        for name, what in (("token", "API tokens"), ("link", "share links")):
            count = self._lines_of(name)
            if count:
                self._note(f"{count} {what} have to be made anew: their secrets are not in the archive.")

    async def _members(self) -> list[rows.ArchivedMembership]:
        members = [
            msgspec.convert(line, rows.ArchivedMembership, from_attributes=True)
            async for batch in self._batches(_kind("member"))
            for line in batch
        ]
        if any(member.thread_id not in self._own for member in members):
            raise ArchiveRefusedError("There is a member of a thread that is not in the archive.")
        return members

    async def _with_trust(self, driver: Driver, members: Sequence[rows.ArchivedMembership]) -> None:
        """Identities and members, if the operator vouches for the archive."""
        named = {name: self._lines_of(name) for name in ("identity", "member")}
        if not self._options.trusted:
            for name, count in named.items():
                if count:
                    self._note(f"{count} lines of type {name} were left out; --trusted takes them over.")
            return
        await self._copied(driver, _kind("identity"))
        dropped = await rows.add_members(driver, members)
        self._done.counts["member"] = len(members) - dropped
        if dropped:
            self._note(f"{dropped} memberships were left out: these people have no account here.")

    async def _login(self, driver: Driver) -> None:
        if self._options.password_hash is not None:
            await _set_login(driver, self._reader, self._options, self._done)
        elif not self._done.counts.get("identity"):
            self._note("Nobody can sign in to this account yet: import it again with --password-stdin.")

    async def _copied(self, driver: Driver, kind: RowKind) -> None:
        count = left_out = 0
        async for batch in self._batches(kind):
            lines = [line for line in batch if kind.name != "blob" or bytes.fromhex(line.sha256) in self._there]
            self._check(kind, lines)
            await rows.copy(driver, kind, lines, self._fixed(kind))
            count, left_out = count + len(lines), left_out + len(batch) - len(lines)
            if kind.name == "thread":
                self._threads += [line.id for line in lines]
        if kind.name == "thread":
            self._own = frozenset(self._threads)
        self._done.counts[kind.name] = count
        if left_out:
            self._note(f"{left_out} blobs were left out: their bytes are not in the archive.")

    def _check(self, kind: RowKind, lines: Sequence[Any]) -> None:
        if kind.name == "user" and [line.id for line in lines if line.id != self._user_id]:
            raise ArchiveRefusedError("The manifest names another user than the lines do.")
        if kind.name in OF_THREADS and any(line.thread_id not in self._own for line in lines):
            raise ArchiveRefusedError(f"{kind.file} has a line of a thread that is not in the archive.")
        if kind.name == "blob" and any(self._reader.blobs.get(line.sha256) != line.size for line in lines):
            raise ArchiveRefusedError("A blob has another size than its line says.")

    def _fixed(self, kind: RowKind) -> Mapping[str, Any]:
        """What the archive does not say, because it follows from the user."""
        match kind.name:
            case "user":
                return {"revision": 1}
            case "thread" | "file" | "todo":
                return {"owner_id": self._user_id}
            case "run":
                return {"fairness_key": self._user_id}
            case "listing":
                return {"user_id": self._user_id, "revision": 1}
            case "identity" | "tool" | "trace":
                return {"user_id": self._user_id}
        return {}

    async def _batches(self, kind: RowKind) -> AsyncIterator[list[Any]]:
        batches = self._reader.lines(kind)
        while (batch := await asyncio.to_thread(_next, batches)) is not None:
            yield batch

    def _lines_of(self, name: str) -> int:
        return self._reader.count(_kind(name))

    def _note(self, text: str) -> None:
        self._done.notes.append(text)


async def _set_login(driver: Driver, reader: ArchiveReader, options: ImportOptions, done: ArchiveImportResult) -> None:
    """The password that was given, for the address that was given or is in the archive."""
    email = options.email or await asyncio.to_thread(_address, reader)
    if email is None:
        raise ArchiveRefusedError("The archive has no address to sign in by: give one with --email.")
    assert options.password_hash is not None
    if not await rows.set_login(driver, reader.manifest.user_id, email, options.password_hash):
        done.notes.append("The account has a password already, which stays as it is.")
        return
    done.notes.append(f"The account can be signed in to by {email} and the password that was given.")


def _address(reader: ArchiveReader) -> str | None:
    """The address that the user signed in by, or else had."""
    for name in ("login", "user"):
        for batch in reader.lines(_kind(name)):
            for line in batch:
                if line.email:
                    return str(line.email)
    return None


def _kind(name: str) -> RowKind:
    return next(kind for kind in KINDS if kind.name == name)


def _next(batches: Iterator[list[Any]]) -> list[Any] | None:
    return next(batches, None)


@contextmanager
def _refusals() -> Iterator[None]:
    """What the database refuses, the archive is to blame for: ids that are taken, text that can't be stored."""
    try:
        yield
    except asyncpg.UniqueViolationError as error:
        raise ArchiveRefusedError(f"Something of it is there already ({error.table_name}): {error.detail}") from error
    except (asyncpg.IntegrityConstraintViolationError, asyncpg.DataError) as error:
        raise ArchiveRefusedError(f"The database refuses a row: {error}") from error
