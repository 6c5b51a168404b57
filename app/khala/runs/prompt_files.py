"""Reads the files that are attached to the messages of a prompt."""

from collections.abc import Sequence
from uuid import UUID

import structlog

from khala.blobs.blob_service import BlobService
from khala.domain.chat import Message
from khala.domain.errors import KhalaError
from khala.domain.fold import FileBlock
from khala.domain.parts import BlobRef

log = structlog.get_logger()

MAX_FILES = 10
"""The number of newest files whose contents a prompt includes. Other files are only mentioned."""
MAX_TOTAL_BYTES = 20 << 20
"""Bytes of all these files together."""


class PromptFiles:
    """Reads the attached files of a history, once."""

    def __init__(self, blob_service: BlobService, thread_id: UUID) -> None:
        self._blob_service = blob_service
        self._thread_id = thread_id
        self._contents: dict[UUID, bytes] | None = None

    async def read(self, history: Sequence[Message]) -> dict[UUID, bytes]:
        """The contents of the newest attached files, by blob id. Unreadable files are left out."""
        if self._contents is None:
            self._contents = {
                ref.blob_id: data for ref in _newest(history) if (data := await self._read(ref)) is not None
            }
        return self._contents

    async def _read(self, ref: BlobRef) -> bytes | None:
        try:
            blob = await self._blob_service.find(ref.blob_id, self._thread_id)
            async with self._blob_service.read(blob) as chunks:
                return b"".join([chunk async for chunk in chunks])
        except KhalaError as error:
            log.warning("attachment_unreadable", blob_id=str(ref.blob_id), error=error.message)
            return None


def _newest(history: Sequence[Message]) -> list[BlobRef]:
    newest: list[BlobRef] = []
    size = 0
    for message in reversed(history):
        for block in message.content or ():
            if isinstance(block, FileBlock):
                size += block.blob.size
                if size > MAX_TOTAL_BYTES or len(newest) >= MAX_FILES:
                    return newest
                newest.append(block.blob)
    return newest
