"""Exports an account: its rows as of one moment, then the bytes of its blobs, as one ZIP file.

Rows are read in one transaction as fast as the database gives them, compressed into a temporary file, and sent when
the transaction is over: a slow client holds no transaction. Blobs follow one after the other, straight from the store.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import closing
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from uuid import UUID

import structlog

from khala.archive.writer import BLOB_LEVEL, ArchiveWriter
from khala.blobs.blob_service import BlobService
from khala.blobs.spool import Spool
from khala.domain.archive_format import FORMAT, VERSION, ArchiveManifest, MissingBlob, MissingReason, archived_blob_name
from khala.domain.errors import BlobNotFound, PayloadTooLarge, Unauthorized, Unavailable
from khala.store.operations import archive_rows
from khala.store.postgres import migrations
from khala.store.postgres.database import Database, Driver

MAX_ROWS_BYTES = 4 << 30
"""Of the compressed rows, which are spooled."""
MAX_SNAPSHOT_SECONDS = 600.0
"""For reading the rows: as long as that the database can't clean up what was deleted meanwhile."""
MAX_UNAVAILABLE_BLOBS = 3
"""In a row; after so many the store is taken to be out of reach, and the rest is not tried."""
CHUNK_BYTES = 64 * 1024
RECORD_BYTES = 40
"""A SHA-256 and a size, in the list of blobs."""

log = structlog.get_logger()


async def export_archive(db: Database, blob_service: BlobService, user_id: UUID) -> AsyncGenerator[bytes, None]:
    """The archive, in chunks; the first one comes when all rows are spooled.

    Raises `Unauthorized` where the account is gone, `PayloadTooLarge` and `Unavailable`. Whoever stops early closes it.
    """
    async with blob_service.spool(MAX_ROWS_BYTES) as rows, blob_service.spool(MAX_ROWS_BYTES) as blobs:
        export = _Export(blob_service, user_id)
        await export.spool_rows(db, rows, blobs)
        async for chunk in _contents(await rows.file(), CHUNK_BYTES):
            yield chunk
        await rows.close()
        async for sha256, size in _records(await blobs.file()):
            async for chunk in export.blob(sha256, size):
                yield chunk
        yield await export.ended()


class _Export:
    def __init__(self, blob_service: BlobService, user_id: UUID) -> None:
        self._blob_service = blob_service
        self._user_id = user_id
        self._at = datetime.now(UTC)
        self._writer = ArchiveWriter(self._at)
        self._missing: list[MissingBlob] = []
        self._unavailable = self._blobs = self._blob_bytes = 0

    async def spool_rows(self, db: Database, rows: Spool, blobs: Spool) -> None:
        """Write all rows, as they are at one moment, and the list of blobs that they name."""
        try:
            async with asyncio.timeout(MAX_SNAPSHOT_SECONDS), db.snapshot() as driver:
                for kind in archive_rows.KINDS:
                    await self._spool_kind(driver, kind, rows)
                async for page in archive_rows.read_pages(driver, "objects", archive_rows.OBJECTS, self._user_id):
                    await blobs.write(b"".join(row["sha256"] + row["size"].to_bytes(8) for row in page))
        except TimeoutError as error:
            raise Unavailable("The export took too long. Try again later.", retry_after=600) from error
        except PayloadTooLarge as error:
            raise PayloadTooLarge("This account is too large for one archive: ask for application/jsonl.") from error

    async def _spool_kind(self, driver: Driver, kind: archive_rows.RowKind, rows: Spool) -> None:
        encoder, found = archive_rows.RowEncoder(kind), 0
        await rows.write(self._writer.begin(kind.file))
        async for page in archive_rows.read_pages(driver, kind.name, kind.query, self._user_id, kind.page):
            lines = b"".join(map(encoder.line, page))
            await rows.write(await asyncio.to_thread(self._writer.write, lines, lines=len(page)))
            found += len(page)
        if kind.needed and not found:
            raise Unauthorized("This account is gone.")
        await rows.write(self._writer.end_lines())

    async def blob(self, sha256: bytes, size: int) -> AsyncIterator[bytes]:
        """The bytes of one blob. Where they can't be read, or not all of them, the manifest will say why."""
        if self._unavailable >= MAX_UNAVAILABLE_BLOBS:
            self._note(sha256, size, "unavailable")
            return
        begun = False
        reason: MissingReason | None = None
        try:
            async with self._blob_service.store.read(sha256.hex(), 0, size) as chunks:
                yield self._writer.begin(archived_blob_name(sha256), level=BLOB_LEVEL)
                begun = True
                async for chunk in chunks:
                    yield await asyncio.to_thread(self._writer.write, chunk)
        except BlobNotFound:
            reason = "gone"
        except Unavailable as error:
            log.warning("blob_not_exported", sha256=sha256.hex(), error=str(error.__cause__ or error))
            reason = "unavailable"
        if begun:
            sent, found = self._writer.end()
            yield sent
            reason = reason or (None if found == sha256.hex() else "damaged")
        self._note(sha256, size, reason)

    def _note(self, sha256: bytes, size: int, reason: MissingReason | None) -> None:
        self._unavailable = self._unavailable + 1 if reason == "unavailable" else 0
        if reason is not None:
            self._missing.append(MissingBlob(sha256=sha256.hex(), size=size, reason=reason))
            return
        self._blobs += 1
        self._blob_bytes += size

    async def ended(self) -> bytes:
        """The manifest, and the end of the archive."""
        manifest = ArchiveManifest(
            format=FORMAT,
            version=VERSION,
            khala=version("khala"),
            schema=migrations.head(),
            user_id=self._user_id,
            exported_at=self._at,
            files=tuple(self._writer.files),
            blobs=self._blobs,
            blob_bytes=self._blob_bytes,
            missing=tuple(self._missing),
        )
        return await asyncio.to_thread(self._writer.close, manifest)


async def _contents(path: Path, size: int) -> AsyncIterator[bytes]:
    """What is in the file, so many bytes at once."""
    with closing(await asyncio.to_thread(path.open, "rb")) as file:
        while chunk := await asyncio.to_thread(file.read, size):
            yield chunk


async def _records(path: Path) -> AsyncIterator[tuple[bytes, int]]:
    """The list of blobs: the SHA-256 and the size of each."""
    async for chunk in _contents(path, RECORD_BYTES * 1024):
        for start in range(0, len(chunk), RECORD_BYTES):
            record = chunk[start : start + RECORD_BYTES]
            yield record[:32], int.from_bytes(record[32:])
