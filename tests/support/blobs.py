"""Stores blobs in the folder of the servers under test, without a request to a server."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

from khala.blobs.blob_service import BlobService
from khala.blobs.store_url import open_store
from khala.domain.parts import BlobRef
from khala.store.postgres.database import Database
from tests.support.homes import home


def new_blob_service(db: Database) -> BlobService:
    """A blob service on this database and the folder of the servers, for few calls. It need not be closed."""
    return BlobService(db, open_store(None, home()), folder=home())


@asynccontextmanager
async def blob_service_of(db: Database) -> AsyncIterator[BlobService]:
    """A blob service on this database and the folder of the servers."""
    store = open_store(None, home())
    blob_service = BlobService(db, store, folder=home())
    try:
        yield blob_service
    finally:
        await blob_service.aclose()
        await store.aclose()


async def store_blob(
    blob_service: BlobService, thread_id: UUID, data: bytes = b"En taro Adun", **more: object
) -> BlobRef:
    """Store a blob of the thread."""
    async with blob_service.spool() as spool:
        await spool.write(data)
        return await blob_service.put(spool, thread_id=thread_id, **({"media_type": "text/plain"} | more))  # type: ignore[arg-type]


async def create_blob(db: Database, thread_id: UUID, data: bytes = b"En taro Adun") -> BlobRef:
    """Create a blob of the thread."""
    async with blob_service_of(db) as blob_service:
        return await store_blob(blob_service, thread_id, data)
