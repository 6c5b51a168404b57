"""Finds messages, files and memories that a caller may read."""

import asyncio
import math
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from uuid import UUID

from khala.domain.access import Action, Caller
from khala.domain.errors import NotFound, Unauthorized, Unavailable
from khala.domain.memories import MemorySpace
from khala.domain.search_matches import SearchText
from khala.domain.search_results import Cursor, Found, SearchHit, SearchKind, page, results
from khala.memory.memory_service import MemoryService
from khala.signals import metrics
from khala.store.memories import memories as memory_rows
from khala.store.postgres.database import Database, Driver
from khala.store.search import files, messages
from khala.store.sharing import access

MAX_SEARCHES = 4
"""Searches of one process at the same time. Further ones wait."""
MAX_WAITING = 32
"""Searches of one process that wait for another. More are refused."""
MAX_MEMORIES = 50
"""Memories of one search."""


class SearchService:
    """Searches for callers. `enabled`: whether messages are prepared for searches on this deployment."""

    def __init__(self, db: Database, memories: MemoryService, *, enabled: bool) -> None:
        self._db = db
        self._memories = memories
        self._enabled = enabled
        self._places = asyncio.Semaphore(MAX_SEARCHES)
        self._active = 0

    async def search(
        self,
        caller: Caller,
        text: str,
        *,
        thread_id: UUID | None,
        kind: SearchKind | None,
        cursor: Cursor | None,
        limit: int,
    ) -> tuple[list[SearchHit], Cursor | None]:
        """One page of what the caller may read and that matches, and the cursor of the next page.

        Raises `NotFound` if the search is switched off, `Unauthorized` without credentials, `Unavailable` if too many
        searches wait, and the errors of `access.authorize` for a thread that the caller may not read.
        """
        if not self._enabled:
            raise NotFound("The search is switched off on this server.")
        if self._active >= MAX_SEARCHES + MAX_WAITING:
            raise Unavailable("Too many searches wait. Try again in a moment.", retry_after=1)
        until = cursor.until if cursor else datetime.now(UTC)
        asked = SearchText(text)
        self._active += 1
        try:
            async with self._places:
                began = time.monotonic()
                found, worths = await self._find(caller, text, asked, thread_id, kind, until)
                ordered = await asyncio.to_thread(results, asked, found, worths)
                metrics.SEARCH.observe(time.monotonic() - began)
        finally:
            self._active -= 1
        return page(ordered, cursor, until, limit)

    async def _find(
        self,
        caller: Caller,
        text: str,
        asked: SearchText,
        thread_id: UUID | None,
        kind: SearchKind | None,
        until: datetime,
    ) -> tuple[list[Found], Mapping[str, float]]:
        """Texts that may match, and the worth of each word of the search."""
        found: list[Found] = []
        worths: dict[str, float] = {}
        async with self._db.driver() as driver:
            spaces, workspace = await _private(driver, caller, thread_id)
            if kind in (None, "message") and asked.words:
                candidates, frequencies, many = await messages.find(driver, caller, asked, thread_id=thread_id)
                worths = _worths(asked, frequencies, many)
                found += map(_of_message, await messages.read(driver, caller, candidates, until=until))
            if kind in (None, "file") and workspace is not None:
                found += map(_of_file, await files.read(driver, workspace, until=until))
        if kind in (None, "memory") and spaces:
            found += await self._memories_of(spaces, text, until, caller.user_id or thread_id)
        return found, worths

    async def _memories_of(
        self, spaces: list[MemorySpace], text: str, until: datetime, payer_id: UUID | None
    ) -> list[Found]:
        found = await self._memories.search(spaces, text, limit=MAX_MEMORIES, payer_id=payer_id)
        return [
            Found(
                memory_id=memory.id,
                thread_id=memory.thread_id,
                text=memory.text,
                created_at=memory.created_at,
                similarity=(memory.score or 0.0) / 2,
            )
            for memory in found
            if memory.created_at <= until
        ]


async def _private(driver: Driver, caller: Caller, thread_id: UUID | None) -> tuple[list[MemorySpace], UUID | None]:
    """The memories that the caller may search, and the owner of their workspace.

    Those of a guest belong to their thread. In a thread, only its own memories are searched.
    """
    if thread_id is None:
        if caller.user_id is None:
            if caller.author_id is None:
                raise Unauthorized("Sign in, or send the key of a thread.")
            return [], None
        agents = await memory_rows.agents_of(driver, caller.user_id)
        spaces = [MemorySpace(scope="agent", owner_id=caller.user_id, agent=agent) for agent in agents]
        return [*spaces, MemorySpace(scope="user", owner_id=caller.user_id)], caller.user_id
    authorization = await access.authorize(driver, thread_id, caller, Action.READ_THREAD)
    of_thread = MemorySpace(scope="thread", owner_id=thread_id)
    is_guest = caller.user_id is None and authorization.allows(Action.OWN_MEMORIES)
    if not is_guest or await driver.fetchval("SELECT owner_id FROM threads WHERE id = $1", thread_id) is not None:
        return [of_thread], None
    return [of_thread, MemorySpace(scope="user", owner_id=thread_id)], thread_id


def _worths(asked: SearchText, frequencies: Mapping[str, int], many: int) -> dict[str, float]:
    """A word counts more, the fewer segments have it."""
    return {
        word.text: word.weight * math.log(1 + many / (frequencies.get(word.text, 0) + 0.5)) if many else word.weight
        for word in asked.words
    }


def _of_message(message: messages.FoundText) -> Found:
    return Found(message_id=message.id, thread_id=message.thread_id, text=message.text, created_at=message.created_at)


def _of_file(file: files.FoundFile) -> Found:
    return Found(path=file.path, text=f"{file.path}\n{file.text}", created_at=file.changed_at)
