"""Request bodies of memories."""

from typing import Annotated
from uuid import UUID

import msgspec
from msgspec import Meta

from khala.api.types import ApiStruct, Timestamp
from khala.domain.memories import MAX_KEYWORDS_CHARACTERS, MAX_TEXT_CHARACTERS, Extraction, MemoryKind, MemoryScope

AGENT_NAME = r"^[a-z][a-z0-9-]{0,62}$(?!\n)"

MemoryText = Annotated[str, Meta(min_length=1, max_length=MAX_TEXT_CHARACTERS)]
Keywords = Annotated[str, Meta(max_length=MAX_KEYWORDS_CHARACTERS)]
AgentName = Annotated[str, Meta(pattern=AGENT_NAME)]


class MemoryBody(ApiStruct, frozen=True, kw_only=True):
    """A memory to store. `scope` is `thread` if there is a `threadId`, else `user`. `agent` belongs to its scope."""

    text: MemoryText
    scope: MemoryScope | None = None
    thread_id: UUID | None = None
    agent: AgentName | None = None
    kind: MemoryKind = "fact"
    keywords: Keywords | None = None
    expires_at: Timestamp | None = None


class MemoryChanges(ApiStruct, frozen=True, kw_only=True):
    """Changes of a memory. Fields that are absent stay as they are."""

    text: MemoryText | msgspec.UnsetType = msgspec.UNSET
    expires_at: Timestamp | msgspec.UnsetType | None = msgspec.UNSET


class MemorySettingsBody(ApiStruct, frozen=True, kw_only=True):
    """Changes of the memory settings. Fields that are absent stay as they are."""

    recall: bool | msgspec.UnsetType = msgspec.UNSET
    extraction: Extraction | msgspec.UnsetType = msgspec.UNSET


class ThreadMemoryBody(ApiStruct, frozen=True, kw_only=True):
    """The memory settings of a thread."""

    personal: bool
