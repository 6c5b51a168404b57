"""Memories: what is remembered of a user, in a thread, or by an agent for a user. Pure."""

import hashlib
import unicodedata
from datetime import datetime
from typing import Literal, TypeAlias
from uuid import UUID, uuid5

import msgspec

from khala.domain.chat import WireStruct

MemoryScope: TypeAlias = Literal["user", "thread", "agent"]
"""Where a memory counts: in all of a user's own threads, in one thread, or in runs of one agent for a user."""
MemoryKind: TypeAlias = Literal["fact", "preference", "instruction", "summary"]

Extraction: TypeAlias = Literal["off", "ask", "on"]
"""Whether memories are extracted from what somebody says: not at all, as proposals, or without asking."""

MAX_TEXT_CHARACTERS = 2_000
MAX_KEYWORDS_CHARACTERS = 500
MAX_AGENT_CHARACTERS = 63
MAX_MEMORIES = 100_000
"""Memories of one owner, superseded ones included."""
FUSION_RANK = 60
"""The constant of reciprocal rank fusion: a text at rank r counts 1 / (60 + r)."""
LEXICAL_WEIGHT = 0.7
"""Of the order by words, beside the order by meaning. Fitted on the evaluation's half for tuning."""


class Memory(WireStruct, frozen=True, kw_only=True):
    """A memory, its origin, and its use.

    `score` is present in search results: from 0 to 1, and comparable within one result. A memory with `supersededBy` is
    no longer used; the newer one has the same subject.
    """

    id: UUID
    scope: MemoryScope
    kind: MemoryKind
    text: str
    keywords: str | None = None
    agent: str | None = None
    thread_id: UUID | None = None
    message_id: UUID | None = None
    run_id: UUID | None = None
    created_at: datetime
    used_at: datetime | None = None
    uses: int
    expires_at: datetime | None = None
    supersedes: UUID | None = None
    superseded_by: UUID | None = None
    score: float | None = None


class MemorySettings(WireStruct, frozen=True, kw_only=True):
    """The memory settings of an account, or of a guest's key.

    `recall`: memories that fit a question are told to the model before each run. `extraction`: whether memories are
    extracted from the person's own messages after a run.
    """

    recall: bool
    extraction: Extraction


class ThreadMemorySettings(WireStruct, frozen=True, kw_only=True):
    """The memory settings of a thread.

    `personal`: runs of the owner use the owner's personal memories, although others can read the thread.
    """

    personal: bool


class MemoryProposal(WireStruct, frozen=True, kw_only=True):
    """A memory that was extracted, until the person who said it accepts or rejects it.

    `supersedes` is the memory that it corrects.
    """

    id: UUID
    scope: MemoryScope
    kind: MemoryKind
    text: str
    keywords: str | None = None
    thread_id: UUID
    message_id: UUID | None = None
    run_id: UUID | None = None
    supersedes: UUID | None = None
    created_at: datetime
    expires_at: datetime


class MemorySpace(msgspec.Struct, frozen=True, kw_only=True):
    """The memories that are searched together. `owner_id` is a user, or a thread for those of the scope `thread`.

    A guest's own memories belong to their thread, as their files do.
    """

    scope: MemoryScope
    owner_id: UUID
    agent: str | None = None

    @property
    def id(self) -> UUID:
        """Identifies the space. A guest's own memories are in another space than those of the guest's thread."""
        return self.owner_id if self.scope == "user" else uuid5(self.owner_id, f"{self.scope} {self.agent or ''}")


class NewMemory(msgspec.Struct, frozen=True, kw_only=True):
    """A memory to store, and where it comes from."""

    text: str
    kind: MemoryKind = "fact"
    keywords: str | None = None
    thread_id: UUID | None = None
    message_id: UUID | None = None
    run_id: UUID | None = None
    expires_at: datetime | None = None


def fingerprint(text: str) -> bytes:
    """Equal for texts that differ only in case, spaces, width, and punctuation at their end. 16 bytes."""
    folded = " ".join(unicodedata.normalize("NFKC", text).casefold().split()).rstrip(".!。 ")
    return hashlib.blake2b(folded.encode(errors="replace"), digest_size=16).digest()
