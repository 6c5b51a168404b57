"""Reads the beginnings of blobs for searches, in bounded time and memory."""

import asyncio
from collections.abc import Sequence

import structlog

from khala.blobs.blob_service import BlobService
from khala.domain.blob_signatures import MAX_TEXT_BYTES, text_of
from khala.domain.errors import BlobNotFound, Unavailable
from khala.domain.search_results import Found
from khala.store.blobs.blobs import Blob
from khala.store.search.blob_candidates import BlobCandidate

MAX_SECONDS = 2.0
"""Time for reading the blobs of one search. One that takes longer is not found."""

log = structlog.get_logger()


async def beginning(blob_service: BlobService, blob: Blob) -> bytes:
    """The first `MAX_TEXT_BYTES` bytes of the blob. Raises `BlobNotFound` and `Unavailable`."""
    async with blob_service.read(blob, 0, MAX_TEXT_BYTES) as chunks:
        return b"".join([chunk async for chunk in chunks])


async def read(blob_service: BlobService, candidates: Sequence[BlobCandidate]) -> list[Found]:
    """The texts of the candidates. While the store of the bytes does not answer, a search finds everything else."""
    texts = await asyncio.gather(*(_text(blob_service, one.blob) for one in candidates))
    return [
        Found(
            thread_id=one.blob.thread_id,
            message_id=one.message_id,
            blob_id=one.blob.id,
            name=one.blob.name,
            text=text,
            created_at=one.created_at,
        )
        for one, text in zip(candidates, texts, strict=True)
        if text is not None
    ]


async def _text(blob_service: BlobService, blob: Blob) -> str | None:
    try:
        async with asyncio.timeout(MAX_SECONDS):
            return text_of(await beginning(blob_service, blob))
    except (BlobNotFound, Unavailable, TimeoutError) as error:
        log.warning("blob_not_searched", blob_id=str(blob.id), error=str(error.__cause__ or error))
        return None
