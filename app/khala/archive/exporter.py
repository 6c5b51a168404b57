"""Exports an account as a ZIP file: a consistent snapshot of its rows, then the bytes of its blobs.

All rows are read in one transaction, compressed into a temporary file, and sent after the transaction has ended. So a
slow client holds no transaction open. The blobs follow, streamed from the store one after the other.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import structlog

from khala.archive.writer import BLOB_LEVEL, ArchiveWriter
from khala.blobs.blob_service import BlobService
from khala.blobs.spool import Spool
from khala.domain.archive_format import FORMAT, VERSION, ArchiveManifest, MissingBlob, MissingReason, archived_blob_name
from khala.domain.errors import BlobNotFound, PayloadTooLarge, Unauthorized, Unavailable
from khala.store.operations import archive_pages, archive_rows
from khala.store.operations.archive_kinds import RowKind
from khala.store.operations.archive_lines import RowEncoder
from khala.store.postgres import migrations
from khala.store.postgres.database import Database, Driver
from khala.version import KHALA_VERSION

MAX_ROWS_BYTES = 4 << 30
"""Bytes of the compressed rows, which are spooled."""
MAX_SNAPSHOT_SECONDS = 600.0
"""Seconds for reading the rows. Meanwhile the database can't vacuum deleted rows."""
MAX_UNAVAILABLE_BLOBS = 3
"""Consecutive unavailable blobs, after which the store counts as unavailable and the rest is skipped."""
CHUNK_BYTES = 64 * 1024
RECORD_BYTES = 40
"""Bytes of one record in the list of blobs: a SHA-256 and a size."""

log = structlog.get_logger()


async def export_archive(db: Database, blob_service: BlobService, user_id: UUID) -> AsyncGenerator[bytes, None]:
    """The archive, in chunks. The first chunk comes when all rows are spooled.

    Raises `Unauthorized` if the account is gone, `PayloadTooLarge` and `Unavailable`. A caller that stops early has to
    close the generator.
    """
    async with blob_service.spool(MAX_ROWS_BYTES) as rows, blob_service.spool(MAX_ROWS_BYTES) as blobs:
        export = _Export(blob_service, user_id)
        await export.spool_rows(db, rows, blobs)
        async for chunk in _read_chunks(await rows.file(), CHUNK_BYTES):
            yield chunk
        await rows.close()
        async for sha256, size in _read_records(await blobs.file()):
            async for chunk in export.export_blob(sha256, size):
                yield chunk
        yield await export.finish()


class _Export:
    def __init__(self, blob_service: BlobService, user_id: UUID) -> None:
        self._blob_service = blob_service
        self._user_id = user_id
        self._exported_at = datetime.now(UTC)
        self._writer = ArchiveWriter(self._exported_at)
        self._missing: list[MissingBlob] = []
        self._unavailable = self._blobs = self._blob_bytes = 0

    async def spool_rows(self, db: Database, rows: Spool, blobs: Spool) -> None:
        """Spool a consistent snapshot of all rows, and the list of their blobs."""
        try:
            async with asyncio.timeout(MAX_SNAPSHOT_SECONDS), db.snapshot() as driver:
                for kind in archive_rows.KINDS:
                    await self._spool_kind(driver, kind, rows)
                async for page in archive_pages.read_pages(driver, "objects", archive_rows.OBJECTS, self._user_id):
                    await blobs.write(b"".join(row["sha256"] + row["size"].to_bytes(8) for row in page))
        except TimeoutError as error:
            raise Unavailable("The export took too long. Try again later.", retry_after=600) from error
        except PayloadTooLarge as error:
            raise PayloadTooLarge("This account is too large for one archive: request application/jsonl.") from error

    async def _spool_kind(self, driver: Driver, kind: RowKind, rows: Spool) -> None:
        encoder, row_count = RowEncoder(kind), 0
        await rows.write(self._writer.begin(kind.file))
        async for page in archive_pages.read_pages(driver, kind.name, kind.query, self._user_id, kind.page):
            lines = b"".join(map(encoder.line, page))
            await rows.write(await asyncio.to_thread(self._writer.write, lines, lines=len(page)))
            row_count += len(page)
        if kind.needed and not row_count:
            raise Unauthorized("This account was deleted.")
        await rows.write(self._writer.end_lines())

    async def export_blob(self, sha256: bytes, size: int) -> AsyncIterator[bytes]:
        """Yield one blob. If its bytes can't be read completely, the manifest states the reason."""
        if self._unavailable >= MAX_UNAVAILABLE_BLOBS:
            self._record_blob(sha256, size, "unavailable")
            return
        has_begun = False
        reason: MissingReason | None = None
        try:
            async with self._blob_service.store.read(sha256.hex(), 0, size) as chunks:
                yield self._writer.begin(archived_blob_name(sha256), level=BLOB_LEVEL)
                has_begun = True
                async for chunk in chunks:
                    yield await asyncio.to_thread(self._writer.write, chunk)
        except BlobNotFound:
            reason = "gone"
        except Unavailable as error:
            log.warning("blob_not_exported", sha256=sha256.hex(), error=str(error.__cause__ or error))
            reason = "unavailable"
        if has_begun:
            output, archived_sha256 = self._writer.end()
            yield output
            reason = reason or (None if archived_sha256 == sha256.hex() else "damaged")
        self._record_blob(sha256, size, reason)

    def _record_blob(self, sha256: bytes, size: int, reason: MissingReason | None) -> None:
        self._unavailable = self._unavailable + 1 if reason == "unavailable" else 0
        if reason is not None:
            self._missing.append(MissingBlob(sha256=sha256.hex(), size=size, reason=reason))
            return
        self._blobs += 1
        self._blob_bytes += size

    async def finish(self) -> bytes:
        """Write the manifest and finish the archive."""
        manifest = ArchiveManifest(
            format=FORMAT,
            version=VERSION,
            khala=KHALA_VERSION,
            schema=migrations.head(),
            user_id=self._user_id,
            exported_at=self._exported_at,
            files=tuple(self._writer.files),
            blobs=self._blobs,
            blob_bytes=self._blob_bytes,
            missing=tuple(self._missing),
        )
        return await asyncio.to_thread(self._writer.close, manifest)


async def _read_chunks(path: Path, size: int) -> AsyncIterator[bytes]:
    """Yield the content of the file in chunks of `size` bytes."""
    with closing(await asyncio.to_thread(path.open, "rb")) as file:
        while chunk := await asyncio.to_thread(file.read, size):
            yield chunk


async def _read_records(path: Path) -> AsyncIterator[tuple[bytes, int]]:
    """Yield the SHA-256 and the size of each blob in the list."""
    async for chunk in _read_chunks(path, RECORD_BYTES * 1024):
        for start in range(0, len(chunk), RECORD_BYTES):
            record = chunk[start : start + RECORD_BYTES]
            yield record[:32], int.from_bytes(record[32:])
