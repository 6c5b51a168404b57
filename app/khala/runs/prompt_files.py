"""The files that belong to the messages of a prompt."""

from collections.abc import Sequence
from uuid import UUID

import structlog

from khala.blobs.blob_service import BlobService
from khala.domain.chat import Message
from khala.domain.errors import KhalaError
from khala.domain.fold import FileBlock
from khala.domain.parts import BlobRef

log = structlog.get_logger()

MOST_FILES = 10
"""The newest files, which a model is given; it is told of the others."""
MOST_BYTES = 20 << 20
"""Bytes of them all."""


class PromptFiles:
    """Reads the attached files of a history, once."""

    def __init__(self, blob_service: BlobService, thread_id: UUID) -> None:
        self._blob_service = blob_service
        self._thread_id = thread_id
        self._read: dict[UUID, bytes] | None = None

    async def read(self, history: Sequence[Message]) -> dict[UUID, bytes]:
        """The contents of the newest attached files, by blob; one that can't be read is left out."""
        if self._read is None:
            self._read = {ref.blob_id: data for ref in _newest(history) if (data := await self._data(ref)) is not None}
        return self._read

    async def _data(self, ref: BlobRef) -> bytes | None:
        try:
            blob = await self._blob_service.find(ref.blob_id, self._thread_id)
            async with self._blob_service.read(blob) as chunks:
                return b"".join([chunk async for chunk in chunks])
        except KhalaError as error:
            log.warning("attachment_unreadable", blob_id=str(ref.blob_id), error=error.message)
            return None


def _newest(history: Sequence[Message]) -> list[BlobRef]:
    found: list[BlobRef] = []
    size = 0
    for message in reversed(history):
        for block in message.content or ():
            if isinstance(block, FileBlock):
                size += block.blob.size
                if size > MOST_BYTES or len(found) >= MOST_FILES:
                    return found
                found.append(block.blob)
    return found
