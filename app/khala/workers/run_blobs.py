"""The blobs of a run that a worker holds: what the worker stores, refers to in parts, and may read."""

from collections.abc import AsyncIterator, Sequence
from typing import Any
from uuid import UUID

import msgspec

from khala.blobs.blob_service import BlobService
from khala.domain.errors import BlobNotFound, Conflict, InvalidInput
from khala.domain.json_bodies import is_deeper
from khala.domain.parts import BlobRef, PartData, ToolCall, ToolResult, json_text
from khala.domain.worker_parts import MAX_DEPTH
from khala.store.blobs.blobs import Blob
from khala.tools.validation.arguments import MAX_ARGS_BYTES


class RunBlobs:
    """The blobs of one run, which a worker holds under this claim."""

    def __init__(self, blob_service: BlobService, thread_id: UUID, run_id: UUID, claim: str) -> None:
        self._blob_service = blob_service
        self._thread_id = thread_id
        self._run_id = run_id
        self._claim = claim

    async def check_room(self, size: int | None, media_type: str, name: str | None) -> None:
        """Raise `PayloadTooLarge` if a blob of `size` bytes, None if unknown, cannot be stored, whatever its bytes are.

        An upload that may repeat a stored blob of the run is not refused.
        """
        await self._blob_service.check_run_room(self._thread_id, self._run_id, size, media_type, name)

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
        refs = [ref for part in parts if (ref := _ref_of(part)) is not None]
        if not refs:
            return
        found = await self._blob_service.find_in_run({ref.blob_id for ref in refs}, self._thread_id, self._run_id)
        for ref in refs:
            if found.get(ref.blob_id) != ref:
                raise InvalidInput(f"Refer to a blob as its upload returned it. This is none: {ref.blob_id}.")

    async def read_arguments(self, ref: BlobRef) -> dict[str, Any]:
        """The arguments of a call that are in this blob, under the rules of those in a part.

        Raises `Conflict` if it has none, or if they break the rules.
        """
        try:
            blob = await self.find(ref.blob_id)
        except BlobNotFound as error:
            raise Conflict("The blob with the arguments of this call is gone.") from error
        if blob.size > MAX_ARGS_BYTES:
            raise Conflict(f"The arguments of a call have at most {MAX_ARGS_BYTES:,} bytes.")
        async with self._blob_service.read(blob) as chunks:
            data = b"".join([chunk async for chunk in chunks])
        return _decode_arguments(data)


def _ref_of(part: PartData) -> BlobRef | None:
    match part:
        case ToolResult():
            return part.blob
        case ToolCall():
            return part.args_blob
        case _:
            return None


def _decode_arguments(data: bytes) -> dict[str, Any]:
    try:
        args = msgspec.json.decode(data, type=dict[str, Any])
        if is_deeper({"args": args}, MAX_DEPTH):  # As in a part.
            raise Conflict(f"The arguments of a call have at most {MAX_DEPTH - 1} levels.")
        # As a part is stored, so that people approve what can be stored.
        return msgspec.json.decode(json_text(args), type=dict[str, Any])
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Conflict(f"The blob of the call has no JSON object: {error}.") from error
