"""Imports an export into an account: one conversation after the other, each in a transaction of its own.

An import that is interrupted is repeated: what it has stored is not stored twice.
"""

import asyncio
from pathlib import Path
from uuid import UUID

import msgspec

from khala.blobs.blob_service import BlobService
from khala.blobs.content_type import ContentSniffer
from khala.chat_imports.export_reader import (
    MAX_FILE_BYTES,
    MAX_REPORTED_THREADS,
    AddedThread,
    ExportReader,
    ImportReport,
)
from khala.domain.access import Caller
from khala.domain.errors import InvalidInput, PayloadTooLarge, RateLimited
from khala.domain.imports.chats import MAX_TEXT_CHARACTERS, SourceChat, SourceFile, SourceMessage
from khala.store.postgres.database import Database
from khala.store.threads import chat_imports
from khala.store.threads.chat_imports import SkippedImport

NOT_IN_EXPORT = "files that are not in the export"


class ChatImporter:
    """Imports the conversations of one export."""

    def __init__(self, db: Database, blob_service: BlobService, caller: Caller) -> None:
        self._db = db
        self._blobs = blob_service
        self._caller = caller
        self.report = ImportReport()

    async def run(self, path: Path) -> ImportReport:
        """Import all. Raises `InvalidInput` where the export is invalid; what was read before stays imported."""
        reader = await asyncio.to_thread(ExportReader, path)
        try:
            chats = reader.chats()
            while (chat := await asyncio.to_thread(next, chats, None)) is not None:
                await self._import(reader, chat)
                self.report.left_out = {kind: count for kind, count in sorted(reader.left_out.items()) if count}
            return self.report
        finally:
            await asyncio.to_thread(reader.close)

    async def _import(self, reader: ExportReader, chat: SourceChat) -> None:
        if not chat.id or not chat.messages:
            reader.left_out["conversations without messages"] += 1
            return
        shortened = msgspec.structs.replace(
            chat, messages=tuple(_bounded(message, reader) for message in chat.messages)
        )
        opened = await chat_imports.open_import(self._db, shortened, self._caller)
        if isinstance(opened, SkippedImport):
            reader.left_out[str(opened)] += 1
            return
        files = {message.id: await self._upload(reader, opened.thread_id, message) for message in opened.missing}
        added = await chat_imports.store(self._db, shortened, opened, files, self._caller)
        self.report.messages += added
        self.report.files += sum(map(len, files.values())) if added else 0
        if opened.is_new:
            self.report.conversations += 1
            if len(self.report.threads) < MAX_REPORTED_THREADS:
                self.report.threads.append(AddedThread(id=opened.thread_id, title=chat.title))
        else:
            self.report.known += 1

    async def _upload(self, reader: ExportReader, thread_id: UUID, message: SourceMessage) -> list[UUID]:
        """Store the files of a message as uploads. Counts those that cannot be stored."""
        uploaded: list[UUID] = []
        for file in message.files:
            blob_id = await self._upload_one(reader, thread_id, file)
            if blob_id is not None:
                uploaded.append(blob_id)
        return uploaded

    async def _upload_one(self, reader: ExportReader, thread_id: UUID, file: SourceFile) -> UUID | None:
        content = file.content
        if content is None and file.stem is not None:
            content = await asyncio.to_thread(reader.file, file.stem)
        if not content:
            reader.left_out[NOT_IN_EXPORT] += 1
            return None
        sniffer = ContentSniffer()
        sniffer.feed(content)
        media_type = sniffer.media_type(file.media_type)
        if media_type is None:
            reader.left_out["files of other types"] += 1
            return None
        try:
            async with self._blobs.spool(MAX_FILE_BYTES) as spool:
                await spool.write(content)
                author = self._caller.author_id
                put = {"media_type": media_type, "name": file.name[:200], "author_id": author, "attached": False}
                return (await self._blobs.put(spool, thread_id=thread_id, **put)).blob_id  # type: ignore[arg-type]
        except (PayloadTooLarge, RateLimited, InvalidInput):
            reader.left_out["files over the limits of this server"] += 1
            return None


def _bounded(message: SourceMessage, reader: ExportReader) -> SourceMessage:
    if len(message.text) <= MAX_TEXT_CHARACTERS:
        return message
    reader.left_out["ends of very long texts"] += 1
    return msgspec.structs.replace(message, text=message.text[:MAX_TEXT_CHARACTERS])
