"""The memories that a run was told, and what became of them since."""

from collections.abc import Sequence
from uuid import UUID

from khala.api.runs.types import UsedMemory
from khala.domain.access import Action, Caller
from khala.domain.errors import Forbidden, ThreadNotFound
from khala.domain.memories import Memory
from khala.domain.parts import MemoryRecall, Part
from khala.store.memories import memories
from khala.store.postgres.database import Driver
from khala.store.sharing import access


async def read(driver: Driver, caller: Caller, thread_id: UUID, first: Sequence[Part]) -> list[UsedMemory]:
    """The memories of a run of this thread, whose first part this is. The caller may read the thread."""
    recall = first[0].read() if first else None
    if not isinstance(recall, MemoryRecall):
        return []
    found = await memories.current_versions(driver, [told.id for told in recall.memories])
    owns_guests = await _owns_guests_memories(driver, caller, thread_id)

    def current(told_id: UUID) -> Memory | None:
        memory, owner_id = found.get(told_id, (None, None))
        is_own = owner_id is not None and owner_id == caller.user_id
        if memory is not None and memory.scope == "thread":
            is_own = owner_id == thread_id
        elif owner_id == thread_id:
            is_own = owns_guests
        return memory if is_own else None

    return [
        UsedMemory(id=told.id, text=told.text, score=told.score, memory=current(told.id)) for told in recall.memories
    ]


async def _owns_guests_memories(driver: Driver, caller: Caller, thread_id: UUID) -> bool:
    """Whether the caller's key owns the thread, so that its memories of a guest are theirs."""
    try:
        await access.authorize(driver, thread_id, caller, Action.OWN_MEMORIES)
    except (Forbidden, ThreadNotFound):
        return False
    return True
