"""The blobs of a worker's run: large outputs and files that it stores, and those that it may read."""

import os
from collections.abc import AsyncGenerator
from typing import Any
from uuid import UUID

from khala_client import blobs
from khala_client.content import BlobRef
from khala_client.credentials import Keys
from khala_client.errors import InvalidRequest, KhalaError
from khala_client.http_core import FILE_TIMEOUT, MAX_ERROR_BYTES, HttpCore, read_bounded
from khala_client.run_sender import RunSender
from khala_client.wire import decode, decode_any, encode
from khala_client.worker_parts import MAX_PART_BYTES, AgentError, storable

MAX_RESULT_BYTES = 16 << 20
"""Bytes of a stored result that is read as a whole."""
BINARY, JSON, TEXT = "application/octet-stream", "application/json", "text/plain; charset=utf-8"


class RunBlobs:
    """Stores and reads the blobs of one run."""

    def __init__(self, core: HttpCore, sender: RunSender) -> None:
        self._core = core
        self._sender = sender
        self._own: set[UUID] = set()
        """The blobs that the run has stored, as far as this worker knows."""

    async def store(self, source: bytes | os.PathLike[str], *, name: str | None, media_type: str) -> BlobRef:
        """Store a blob of the run. The same content under the same name and type is stored once.

        Raises `AgentError` if the server does not take it: it is empty or too large, or the thread's storage is full.
        """

        async def attempt() -> BlobRef:
            opening = self._core.stream(
                "POST",
                f"{self._sender.path}/blobs",
                params={"epoch": self._sender.epoch, "name": name},
                content=source if isinstance(source, bytes) else blobs.pieces_of(source),
                headers={"Content-Type": media_type, "Accept": "application/json"},
                timeout=FILE_TIMEOUT,
            )
            async with opening as response:
                return decode(await read_bounded(response, MAX_ERROR_BYTES), BlobRef)

        try:
            blob = await self._sender.until_answered(attempt)
        except InvalidRequest as error:
            raise AgentError(f"The output could not be stored: {error.message}") from error
        self._own.add(blob.blob_id)
        return blob

    def read(self, blob: BlobRef | UUID) -> AsyncGenerator[bytes, None]:
        """The bytes of a blob, in pieces. After a lost connection it continues where it was."""
        blob_id = blob.blob_id if isinstance(blob, BlobRef) else blob
        path = f"{self._sender.path}/blobs/{blob_id}"
        return blobs.download(self._core, blob, Keys(), path=path, params={"epoch": self._sender.epoch})

    async def store_result(self, value: Any) -> dict[str, Any]:
        """The fields of a part that have this result of a function: its `output`, or the `blob` that has it.

        Raises `AgentError` for a result that is not JSON, or cannot be stored.
        """
        if value is None or (isinstance(value, bytes | bytearray) and not value):
            return {}
        if isinstance(value, BlobRef):
            if value.blob_id not in self._own:
                raise AgentError("A result refers only to a blob that its run has stored.")
            return {"blob": value}
        if isinstance(value, bytes | bytearray):
            return {"blob": await self._store_whole(bytes(value), BINARY)}
        try:
            encoded = encode(value)
        except (TypeError, ValueError, NotImplementedError, RecursionError) as error:
            raise AgentError(f"The result is not JSON: {error}") from error
        if len(encoded) <= MAX_PART_BYTES - 1_000:
            return {"output": value}
        if isinstance(value, str):
            return {"blob": await self._store_whole(storable(value).encode(), TEXT)}
        return {"blob": await self._store_whole(encoded, JSON)}

    async def store_arguments(self, args: dict[str, Any]) -> BlobRef:
        """Store the arguments of a call that are too long for its part."""
        return await self._store_whole(encode(args), JSON)

    async def load(self, blob: BlobRef) -> Any:
        """The value that was stored as this blob: text, JSON or bytes. A file, which has a name, is the blob itself."""
        if blob.name is not None:
            self._own.add(blob.blob_id)
            return blob
        if blob.size > MAX_RESULT_BYTES:
            raise AgentError(f"A result of {blob.size:,} bytes is too large to be read again.")
        data = b"".join([piece async for piece in self.read(blob)])
        if blob.media_type.startswith("text/"):
            return data.decode(errors="replace")
        return decode_any(data) if blob.media_type == JSON else data

    async def load_arguments(self, blob: BlobRef) -> dict[str, Any]:
        """The arguments of a call that are in this blob."""
        args = await self.load(blob)
        if not isinstance(args, dict):
            raise KhalaError("The stored arguments of a call are no object.", code="invalid_response")
        return args

    async def _store_whole(self, data: bytes, media_type: str) -> BlobRef:
        if len(data) > MAX_RESULT_BYTES:
            raise AgentError(
                f"It has {len(data):,} bytes, and may have at most {MAX_RESULT_BYTES:,}. Store it with `store_blob`."
            )
        return await self.store(data, name=None, media_type=media_type)
