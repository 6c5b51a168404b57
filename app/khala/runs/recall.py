"""Recall: finds the memories that fit the question of a run, once, before its first model call."""

from uuid import UUID

import msgspec

from khala.domain.memories import Memory
from khala.domain.parts import MAX_INLINE_BYTES, MemoryRecall, RecalledMemory
from khala.memory.memory_service import MemoryService
from khala.store.memories import search, spaces
from khala.store.postgres.database import Database

MAX_RECALLED = 8
MAX_TEXT_BYTES = 800
"""Bytes of a memory's text in the part. A longer one is cut."""
ELLIPSIS = "…"


async def recall(
    db: Database,
    service: MemoryService,
    *,
    user_id: UUID | None,
    thread_id: UUID,
    question: str,
    agent: str | None = None,
) -> MemoryRecall | None:
    """The memories that this user (None for a guest) may be told in this thread, or None if none fits.

    `agent` is the name of the agent that answers: its memories for this user are among them.
    """
    if not question.strip():
        return None
    async with db.driver() as driver:
        usable = await spaces.usable_if_any(driver, user_id=user_id, thread_id=thread_id, agent=agent)
    if not usable:
        return None
    payer_id = user_id or thread_id
    found = await service.search(usable, question, limit=MAX_RECALLED, match=search.STRICT, payer_id=payer_id)
    if not found:
        return None
    recalled = _fitting(found)
    async with db.driver() as driver:
        await search.mark_used(driver, [memory.id for memory in recalled.memories])
    return recalled


def _fitting(found: list[Memory]) -> MemoryRecall:
    """The memories of a part, as many as fit into one."""
    recalled: list[RecalledMemory] = []
    for memory in found:
        entry = RecalledMemory(id=memory.id, text=_shortened(memory.text), score=round(memory.score or 0.0, 3))
        if len(msgspec.json.encode(MemoryRecall(memories=(*recalled, entry)))) > MAX_INLINE_BYTES:
            break
        recalled.append(entry)
    return MemoryRecall(memories=tuple(recalled))


def _shortened(text: str) -> str:
    encoded = text.encode(errors="replace")
    if len(encoded) <= MAX_TEXT_BYTES:
        return text
    return encoded[:MAX_TEXT_BYTES].decode(errors="ignore") + ELLIPSIS
