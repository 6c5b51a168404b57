"""A user's messages and decisions, as clients of chats send them. Without I/O."""

import hashlib
import re
from typing import Any
from uuid import UUID

import msgspec

from khala.api.blobs.attached_files import AttachedFile
from khala.api.chats.chat_ids import as_uuid, message_id_of
from khala.api.validation import check_text
from khala.domain.chat import Message
from khala.domain.errors import InvalidInput
from khala.domain.fold import FileBlock, text_of

BLOB_PATH = re.compile(r"(?:https?://[^/?#]+)?/api/blobs/([0-9a-f-]{36})")
"""The URL of an upload that the thread has already."""


class ChatQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """A user's message. `files` are stored when it is sent; `uploads` are blobs of the thread."""

    client_id: str
    text: str
    files: tuple[AttachedFile, ...]
    uploads: tuple[UUID, ...]
    urls: tuple[str, ...]

    def stored_id(self, thread_id: UUID) -> UUID:
        """Return the id under which the message is stored in this thread."""
        return message_id_of(thread_id, self.client_id, self.text, self.urls)

    def possible_ids(self, thread_id: UUID) -> list[UUID]:
        """Return the ids under which the thread may have the message: a client may know it from the history."""
        known = as_uuid(self.client_id)
        return [self.stored_id(thread_id), *([known] if known else [])]

    def is_stored_as(self, message: Message) -> bool:
        """Whether the stored message has this text and these files. An edited message keeps its id."""
        content = message.content or ()
        blobs = [block.blob for block in content if isinstance(block, FileBlock)]
        uploads, files = blobs[: len(self.uploads)], blobs[len(self.uploads) :]
        return (
            text_of(content) == self.text
            and tuple(blob.blob_id for blob in uploads) == self.uploads
            and [blob.sha256 for blob in files] == [hashlib.sha256(file.data).hexdigest() for file in self.files]
        )


class ApprovalReply(msgspec.Struct, frozen=True, kw_only=True):
    """The user's decision about a call of a run. `digest` names the version of the call that the user saw."""

    run_id: UUID
    digest: str
    call_id: str
    approved: bool
    reason: str | None
    edited_args: dict[str, Any] | None = None


def read_approval_id(text: str, path: str) -> tuple[UUID, str, str]:
    """Return the run, the digest and the id of the call of a request for approval. Raises `InvalidInput`."""
    run, _, rest = text.partition(":")
    digest, _, call_id = rest.partition(":")
    run_id = as_uuid(run)
    if run_id is None or not digest or not call_id:
        raise InvalidInput("This is not the id of a request for approval of this server.", path=path)
    return run_id, digest, check_text(call_id, path)
