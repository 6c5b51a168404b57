"""Reads the stored results of the calls of an agent in Python."""

from typing import Any
from uuid import UUID

import msgspec

from khala.blobs.blob_service import BlobService
from khala.domain.errors import KhalaError
from khala.domain.parts import BlobRef
from khala.domain.run_progress import ToolCallProgress
from khala.sdk.errors import StepError

MAX_RESULT_BYTES = 16 << 20


class ResultReader:
    """Reads results of calls in one thread."""

    def __init__(self, blob_service: BlobService, thread_id: UUID | None) -> None:
        self._blob_service = blob_service
        self._thread_id = thread_id

    async def read(self, call: ToolCallProgress) -> Any:
        """The stored output of a call that has ended. Raises `StepError`."""
        result = call.result
        assert result is not None
        if not result.ok:
            raise StepError(result.output if isinstance(result.output, str) else result.summary)
        return result.output if result.blob is None else await self._read(result.blob)

    async def _read(self, blob: BlobRef) -> Any:
        if blob.size > MAX_RESULT_BYTES:
            raise StepError(f"The result has {blob.size:,} bytes, and an agent can read at most {MAX_RESULT_BYTES:,}.")
        try:
            found = await self._blob_service.find(blob.blob_id, self._thread_id)
            async with self._blob_service.read(found) as chunks:
                data = b"".join([chunk async for chunk in chunks])
        except KhalaError as error:
            raise StepError(f"The result could not be read: {error.message}") from error
        if blob.media_type.startswith("text/"):
            return data.decode(errors="replace")
        return msgspec.json.decode(data) if blob.media_type == "application/json" else data
