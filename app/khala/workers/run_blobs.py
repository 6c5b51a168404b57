"""The blobs of a run that a worker holds: what the worker stores, refers to in parts, and may read."""

from collections.abc import AsyncIterator, Sequence
from typing import Any
from uuid import UUID

import msgspec

from khala.blobs.blob_service import BlobService
from khala.domain.errors import BlobNotFound, Conflict, InvalidInput
from khala.domain.parts import BlobRef, PartData, ToolCall, ToolResult
from khala.store.blobs.blobs import Blob
from khala.tools.validation.arguments import MAX_ARGS_BYTES


class RunBlobs:
    """The blobs of one run, which a worker holds under this claim."""

    def __init__(self, blob_service: BlobService, thread_id: UUID, run_id: UUID, claim: str) -> None:
        self._blob_service = blob_service
        self._thread_id = thread_id
        self._run_id = run_id
        self._claim = claim

    async def store(self, chunks: AsyncIterator[bytes], media_type: str, name: str | None) -> BlobRef:
        """Store these bytes as a blob of the run. The same bytes under the same type and name are the same blob.

        Raises `StaleLease`, `InvalidInput`, `PayloadTooLarge` and `Unavailable`.
        """
        async with self._blob_service.spool() as spool:
            async for chunk in chunks:
                await spool.write(chunk)
            if not spool.size:
                raise InvalidInput("The blob is empty.")
            return await self._blob_service.put(
                spool,
                thread_id=self._thread_id,
                run_id=self._run_id,
                media_type=media_type,
                name=name,
                claim=self._claim,
            )

    async def find(self, blob_id: UUID) -> Blob:
        """A blob that the run may read: one of its thread, unless it waits for a message. Raises `BlobNotFound`."""
        blob = await self._blob_service.find(blob_id, self._thread_id)
        if not blob.attached:
            raise BlobNotFound("There is no such blob.")
        return blob

    async def check(self, parts: Sequence[PartData]) -> None:
        """Raise `InvalidInput` if one of the parts refers to a blob that the run has not stored like this."""
        for part in parts:
            refs = (part.blob,) if isinstance(part, ToolResult) else ()
            refs = (part.args_blob,) if isinstance(part, ToolCall) else refs
            for ref in refs:
                if ref is not None and not await self._is_own(ref):
                    raise InvalidInput(f"Refer to a blob as its upload returned it. This is none: {ref.blob_id}.")

    async def read_arguments(self, ref: BlobRef) -> dict[str, Any]:
        """The arguments of a call that are in this blob. Raises `Conflict` if it has none."""
        try:
            blob = await self.find(ref.blob_id)
        except BlobNotFound as error:
            raise Conflict("The blob with the arguments of this call is gone.") from error
        if blob.size > MAX_ARGS_BYTES:
            raise Conflict(f"The arguments of a call have at most {MAX_ARGS_BYTES:,} bytes.")
        async with self._blob_service.read(blob) as chunks:
            data = b"".join([chunk async for chunk in chunks])
        try:
            return msgspec.json.decode(data, type=dict[str, Any])
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise Conflict(f"The blob of the call has no JSON object: {error}.") from error

    async def _is_own(self, ref: BlobRef) -> bool:
        try:
            blob = await self._blob_service.find(ref.blob_id, self._thread_id)
        except BlobNotFound:
            return False
        return blob.run_id == self._run_id and blob.ref == ref
