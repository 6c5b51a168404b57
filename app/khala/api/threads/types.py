"""Request and response bodies of threads."""

from collections.abc import Sequence
from typing import Annotated, Any, Generic, Literal, TypeAlias, TypeVar
from uuid import UUID

import msgspec
from msgspec import Meta

from khala.api.types import ApiStruct, PersonName, Timestamp
from khala.api.validation import MAX_MESSAGE_CHARACTERS
from khala.domain.access import MAX_KEY_CHARACTERS, MIN_KEY_CHARACTERS
from khala.domain.chat import IfBusy, MessageRole, RunOptions, Thread
from khala.domain.names import ONE_LINE
from khala.domain.schedules import MAX_DELAY

MAX_TITLE_CHARACTERS = 200
MAX_ATTACHMENTS = 10
MAX_LABEL_CHARACTERS = 80
MAX_APPENDED_MESSAGES = 50
"""Messages of one append. They are committed as one revision."""
MAX_APPENDED_PARTS = 20
DATA_NAME = r"^[a-z][a-z0-9_-]{0,63}$(?!\n)"
ANON_KEY = rf"^[!-~]{{{MIN_KEY_CHARACTERS},{MAX_KEY_CHARACTERS}}}$(?!\n)"
"""A key that a client generated: visible ASCII, because it is sent in a header. Python's `$` also matches before LF."""

T = TypeVar("T")


class NewThread(ApiStruct, frozen=True, kw_only=True):
    """A thread to create. If the client generates the id and the key, it can safely repeat the request.

    A `temporary` thread is on no list, uses and leaves no memories, and is deleted a day after its creation.
    """

    id: UUID | None = None
    anon_key: Annotated[str, Meta(pattern=ANON_KEY)] | None = None
    title: Annotated[str, Meta(max_length=MAX_TITLE_CHARACTERS)] | None = None
    temporary: bool = False


class CreatedThread(ApiStruct, frozen=True, kw_only=True):
    """The thread, the key of an anonymous one, and the end of one that expires. The key is returned only once."""

    thread: Thread
    anon_key: str | None = None
    expires_at: Timestamp | None = None


class ThreadChanges(ApiStruct, frozen=True, kw_only=True):
    """Changes of a thread. Fields that are absent stay as they are."""

    title: Annotated[str, Meta(max_length=MAX_TITLE_CHARACTERS)] | msgspec.UnsetType | None = msgspec.UNSET
    visibility: Literal["private", "link", "public"] | msgspec.UnsetType = msgspec.UNSET
    active_leaf: UUID | msgspec.UnsetType = msgspec.UNSET


class ListingChanges(ApiStruct, frozen=True, kw_only=True):
    """Changes of where the caller keeps a thread. Fields that are absent stay as they are."""

    pinned: bool | msgspec.UnsetType = msgspec.UNSET
    archived: bool | msgspec.UnsetType = msgspec.UNSET
    folder: Annotated[str, Meta(max_length=MAX_LABEL_CHARACTERS, pattern=ONE_LINE)] | msgspec.UnsetType | None = (
        msgspec.UNSET
    )


class NewMessage(ApiStruct, frozen=True, kw_only=True):
    """A message to answer. If the client generates `messageId`, it can safely repeat the request."""

    text: str
    message_id: UUID | None = None
    parent_id: UUID | msgspec.UnsetType | None = msgspec.UNSET
    attachments: Annotated[Sequence[UUID], Meta(max_length=MAX_ATTACHMENTS)] = ()
    author_name: Annotated[str, Meta(max_length=MAX_LABEL_CHARACTERS, pattern=ONE_LINE)] | None = None
    """The name that a caller without an account gives."""
    options: RunOptions = msgspec.field(default_factory=RunOptions)
    send_at: Timestamp | None = None
    """The time at which the message is sent; it waits as a schedule until then."""
    after: Annotated[float, Meta(ge=0, le=MAX_DELAY.total_seconds())] | None = None
    """The same as a delay in seconds."""


class AppendedText(ApiStruct, frozen=True, kw_only=True, tag_field="type", tag="text"):
    """Text of an appended message."""

    text: Annotated[str, Meta(min_length=1, max_length=MAX_MESSAGE_CHARACTERS)]


class AppendedFile(ApiStruct, frozen=True, kw_only=True, tag_field="type", tag="file"):
    """An upload of the thread that belongs to no message yet."""

    blob_id: UUID


class AppendedData(ApiStruct, frozen=True, kw_only=True, tag_field="type", tag="data"):
    """Data for clients, of at most 16 KiB as JSON. Models do not get it."""

    name: Annotated[str, Meta(pattern=DATA_NAME)]
    data: Any


AppendedPart: TypeAlias = AppendedText | AppendedFile | AppendedData


class AppendedMessage(ApiStruct, frozen=True, kw_only=True):
    """A message to add. If the client generates `id`, it can safely repeat the request.

    `author` is the name that clients show, for example that of a bot. The caller is the author in any case.
    """

    id: UUID | None = None
    role: MessageRole
    parts: Annotated[Sequence[AppendedPart], Meta(min_length=1, max_length=MAX_APPENDED_PARTS)]
    author: PersonName | None = None


class AppendRequest(ApiStruct, frozen=True, kw_only=True):
    """Messages to add without an answer, in order, each after the previous one.

    The first follows `parentId`, by default the last message of the active branch; null for no message. While an answer
    is being written, the messages follow it (`queue`), interrupt it, or are refused.
    """

    messages: Annotated[Sequence[AppendedMessage], Meta(min_length=1, max_length=MAX_APPENDED_MESSAGES)]
    parent_id: UUID | msgspec.UnsetType | None = msgspec.UNSET
    if_busy: IfBusy = "queue"


class RegenerateRequest(ApiStruct, frozen=True, kw_only=True):
    """A message to answer again. If the client generates `answerId`, it can safely repeat the request."""

    message_id: UUID
    answer_id: UUID | None = None
    options: RunOptions = msgspec.field(default_factory=RunOptions)


class OlderMessages(ApiStruct, Generic[T], frozen=True, kw_only=True):
    """Older messages, in order."""

    items: tuple[T, ...]
    has_more: bool
