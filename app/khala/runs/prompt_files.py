"""Reads the files of a prompt: those that are attached to its messages, and those of the folder of its thread."""

from collections.abc import Mapping, Sequence
from uuid import UUID

import msgspec
import structlog

from khala.blobs.blob_service import BlobService
from khala.domain.chat import Message
from khala.domain.errors import KhalaError
from khala.domain.fold import FileBlock
from khala.domain.parts import BlobRef
from khala.store.blobs.blobs import StoredFile
from khala.store.runs.run_queue import ClaimedRun
from khala.store.threads.folder_files import StoredFolderFile

log = structlog.get_logger()

MAX_FILES = 10
"""The number of newest files whose contents a prompt includes. Other files are only mentioned."""
MAX_TOTAL_BYTES = 20 << 20
"""Bytes of all these files together."""
MAX_FOLDER_TEXT_BYTES = 128 << 10
"""Bytes of a text of a folder whose content a prompt may include. The tool `read_blob` reads larger ones."""
MAX_FOLDER_MEDIA_BYTES = 4 << 20
"""Bytes of an image or a PDF of a folder that a prompt may include."""
MAX_FOLDER_BYTES = 8 << 20
"""Bytes of all files of a folder that are read for one run."""


class PromptFiles:
    """Reads the attached files of a history, once. `of_folder` reads those of the folder of the thread.

    A run that is not `personal` has no files of a folder, as it has no instructions of one.
    """

    def __init__(self, blob_service: BlobService, claimed: ClaimedRun, *, personal: bool) -> None:
        requester = claimed.requester
        user_id = requester.user_id if requester.has_folder_files and personal else None
        self.of_folder = FolderFiles(blob_service, claimed.lease.thread_id, user_id)
        self._blob_service = blob_service
        self._thread_id = claimed.lease.thread_id
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
            return await _read_whole(self._blob_service, await self._blob_service.find(ref.blob_id, self._thread_id))
        except KhalaError as error:
            log.warning("attachment_unreadable", blob_id=str(ref.blob_id), error=error.message)
            return None


class FolderContents(msgspec.Struct, frozen=True, kw_only=True):
    """The files of the folder in which the requester of a run keeps the thread, the smallest first.

    `contents` has those that were read, by id.
    """

    files: Sequence[StoredFolderFile] = ()
    contents: Mapping[UUID, bytes] = {}

    @property
    def unread(self) -> list[StoredFolderFile]:
        """The files whose contents were not read, because they are too large."""
        return [file for file in self.files if file.id not in self.contents]


NO_FOLDER_FILES = FolderContents()


class FolderFiles:
    """Reads the small files of the folder in which a user keeps a thread, once. Without a user there are none."""

    def __init__(self, blob_service: BlobService, thread_id: UUID, user_id: UUID | None) -> None:
        self._blob_service = blob_service
        self._thread_id = thread_id
        self._user_id = user_id
        self._read: FolderContents | None = None

    @property
    def may_exist(self) -> bool:
        """Whether the folder had files when the run was claimed."""
        return self._user_id is not None

    async def read(self) -> FolderContents:
        """The files, and the contents of the small ones. Unreadable files count as unread."""
        if self._user_id is None:
            return NO_FOLDER_FILES
        if self._read is None:
            self._read = await self._read_files(self._user_id)
        return self._read

    async def _read_files(self, user_id: UUID) -> FolderContents:
        found = await self._blob_service.files_of_folder(user_id, self._thread_id)
        files = sorted(found, key=lambda file: (file.size, file.name))
        contents: dict[UUID, bytes] = {}
        for file in _small(files):
            try:
                contents[file.id] = await _read_whole(self._blob_service, file)
            except KhalaError as error:
                log.warning("folder_file_unreadable", file_id=str(file.id), error=error.message)
        return FolderContents(files=files, contents=contents)


def is_text(file: StoredFile) -> bool:
    """Whether the file is a text: uploads are images, PDFs, or text in UTF-8."""
    return not file.media_type.startswith("image/") and file.media_type != "application/pdf"


def _small(files: Sequence[StoredFolderFile]) -> list[StoredFolderFile]:
    small: list[StoredFolderFile] = []
    left = MAX_FOLDER_BYTES
    for file in files:
        if file.size <= min(left, MAX_FOLDER_TEXT_BYTES if is_text(file) else MAX_FOLDER_MEDIA_BYTES):
            small.append(file)
            left -= file.size
    return small


async def _read_whole(blob_service: BlobService, file: StoredFile) -> bytes:
    async with blob_service.read(file) as chunks:
        return b"".join([chunk async for chunk in chunks])


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
