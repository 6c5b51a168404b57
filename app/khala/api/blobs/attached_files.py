"""Files that a message of another protocol contains as data URLs, and their storage as uploads of a thread."""

import base64
import binascii
import re
from collections.abc import Sequence
from uuid import UUID

import msgspec

from khala.api.blobs.blob_responses import read_chunks
from khala.api.context import Context
from khala.blobs.content_type import ContentSniffer
from khala.domain.access import Action, Caller
from khala.domain.errors import BlobNotFound, InvalidInput
from khala.store.sharing import access

DATA_URL = re.compile(r"data:([A-Za-z0-9][\w.+-]*/[A-Za-z0-9][\w.+-]*)?((?:;[\w-]+=[^;,]*)*);base64,", re.ASCII)
MAX_FILES = 10
"""Per message."""


class AttachedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a message. `claimed_type` is the media type that the client states."""

    data: bytes
    claimed_type: str
    name: str | None
    path: str


def decode_data_url(url: str, *, name: str | None, path: str) -> AttachedFile:
    """Return the file. Raises `InvalidInput` for any other URL, because nothing is fetched."""
    if not url.startswith("data:"):
        raise InvalidInput(
            "Files are not fetched from URLs. Send the file itself, as data:image/png;base64,….", path=path
        )
    head = DATA_URL.match(url)
    if head is None:
        raise InvalidInput("Write a file as data:MEDIA-TYPE;base64,….", path=path)
    try:
        data = base64.b64decode(url[head.end() :], validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidInput(f"This is not valid base64: {error}.", path=path) from error
    if not data:
        raise InvalidInput("The file is empty.", path=path)
    return AttachedFile(data=data, claimed_type=head[1] or "text/plain", name=name, path=path)


async def store_files(
    context: Context, caller: Caller, thread_id: UUID, files: Sequence[AttachedFile]
) -> tuple[UUID, ...]:
    """Store the files as uploads of a message to be sent, and return the ids of their blobs."""
    if files:
        async with context.db.driver() as driver:
            await access.authorize(driver, thread_id, caller, Action.UPLOAD_FILE)
    return tuple([await _store_file(context, caller, thread_id, file) for file in files])


async def reattachable(context: Context, caller: Caller, thread_id: UUID, blob_ids: Sequence[UUID]) -> tuple[UUID, ...]:
    """Return uploads for a message to be sent. A file that another message has is stored as an upload once more.

    So an edited message keeps its files. Ids that are no blobs of the thread are returned as they are.
    """
    if blob_ids:
        async with context.db.driver() as driver:
            await access.authorize(driver, thread_id, caller, Action.UPLOAD_FILE)
    return tuple([await _reattachable(context, caller, thread_id, blob_id) for blob_id in blob_ids])


async def _reattachable(context: Context, caller: Caller, thread_id: UUID, blob_id: UUID) -> UUID:
    service = context.blobs.service
    try:
        blob = await service.find(blob_id, thread_id)
    except BlobNotFound:
        return blob_id  # The send refuses it, with its place.
    if not blob.attached:
        return blob_id
    async with service.spool(context.blobs.max_upload_bytes) as spool:
        async for chunk in read_chunks(service, blob):
            await spool.write(chunk)
        stored = await service.put(
            spool,
            thread_id=thread_id,
            media_type=blob.media_type,
            name=blob.name,
            author_id=caller.author_id,
            attached=False,
        )
    return stored.blob_id


async def _store_file(context: Context, caller: Caller, thread_id: UUID, file: AttachedFile) -> UUID:
    sniffer = ContentSniffer()
    sniffer.feed(file.data)
    media_type = sniffer.media_type(file.claimed_type)
    if media_type is None:
        raise InvalidInput("PNG, JPEG, GIF and WebP images, PDF, and text in UTF-8 are accepted.", path=file.path)
    blobs = context.blobs
    async with blobs.service.spool(blobs.max_upload_bytes) as spool:
        await spool.write(file.data)
        stored = await blobs.service.put(
            spool,
            thread_id=thread_id,
            media_type=media_type,
            name=file.name or f"file.{media_type.rpartition('/')[2]}",
            author_id=caller.author_id,
            attached=False,
        )
    return stored.blob_id
