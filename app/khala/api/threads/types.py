"""Request and response bodies of threads."""

from collections.abc import Sequence
from typing import Annotated, Generic, Literal, TypeVar
from uuid import UUID

import msgspec
from msgspec import Meta

from khala.api.types import ApiStruct
from khala.domain.access import MAX_KEY_CHARACTERS, MIN_KEY_CHARACTERS
from khala.domain.chat import RunOptions, Thread

MAX_TITLE_CHARACTERS = 200
MAX_ATTACHMENTS = 10
ANON_KEY = rf"^[!-~]{{{MIN_KEY_CHARACTERS},{MAX_KEY_CHARACTERS}}}$(?!\n)"
"""A key that a client generated: visible ASCII, because it is sent in a header. Python's `$` also matches before LF."""

T = TypeVar("T")


class NewThread(ApiStruct, frozen=True, kw_only=True):
    """A thread to create. If the client generates the id and the key, it can safely repeat the request."""

    id: UUID | None = None
    anon_key: Annotated[str, Meta(pattern=ANON_KEY)] | None = None
    title: Annotated[str, Meta(max_length=MAX_TITLE_CHARACTERS)] | None = None


class CreatedThread(ApiStruct, frozen=True, kw_only=True):
    """The thread, and the key of an anonymous one. The key is returned only once."""

    thread: Thread
    anon_key: str | None = None


class ThreadChanges(ApiStruct, frozen=True, kw_only=True):
    """Changes of a thread. Fields that are absent stay as they are."""

    title: Annotated[str, Meta(max_length=MAX_TITLE_CHARACTERS)] | msgspec.UnsetType | None = msgspec.UNSET
    visibility: Literal["private", "link", "public"] | msgspec.UnsetType = msgspec.UNSET
    active_leaf: UUID | msgspec.UnsetType = msgspec.UNSET


class NewMessage(ApiStruct, frozen=True, kw_only=True):
    """A message to answer. If the client generates `messageId`, it can safely repeat the request."""

    text: str
    message_id: UUID | None = None
    parent_id: UUID | msgspec.UnsetType | None = msgspec.UNSET
    attachments: Annotated[Sequence[UUID], Meta(max_length=MAX_ATTACHMENTS)] = ()
    options: RunOptions = msgspec.field(default_factory=RunOptions)


class RegenerateRequest(ApiStruct, frozen=True, kw_only=True):
    """A message to answer again. If the client generates `answerId`, it can safely repeat the request."""

    message_id: UUID
    answer_id: UUID | None = None
    options: RunOptions = msgspec.field(default_factory=RunOptions)


class OlderMessages(ApiStruct, Generic[T], frozen=True, kw_only=True):
    """Older messages, in order."""

    items: tuple[T, ...]
    has_more: bool
