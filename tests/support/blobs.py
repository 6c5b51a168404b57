"""Blobs as tests keep them: in the folder of the servers under test, without asking a server."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

from khala.blobs.blob_service import Vault
from khala.blobs.store_url import opened
from khala.domain.parts import BlobRef
from khala.store.postgres.database import Database
from tests.support.homes import home


@asynccontextmanager
async def vault_of(db: Database) -> AsyncIterator[Vault]:
    """A vault over this database and that folder."""
    store = opened(None, home())
    vault = Vault(db, store, folder=home())
    try:
        yield vault
    finally:
        await vault.aclose()
        await store.aclose()


async def kept(db: Database, thread_id: UUID, data: bytes = b"En taro Adun") -> BlobRef:
    """A blob of the thread."""
    async with vault_of(db) as vault, vault.spool() as spool:
        await spool.write(data)
        return await vault.keep(spool, thread_id=thread_id, media_type="text/plain")
