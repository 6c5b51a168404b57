"""Finds messages, files and memories that a caller may read."""

import asyncio
import math
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from uuid import UUID

import msgspec

from khala.blobs.blob_service import BlobService
from khala.domain.access import Action, Caller
from khala.domain.errors import NotFound, Unauthorized, Unavailable
from khala.domain.memories import MemorySpace
from khala.domain.search_matches import SearchText
from khala.domain.search_results import (
    Cursor,
    Found,
    FoundBy,
    SearchHit,
    SearchKind,
    page,
    results,
    search_digest,
)
from khala.memory.memory_service import MemoryService
from khala.search import blob_texts
from khala.signals import metrics
from khala.store.memories import memories as memory_rows
from khala.store.memories.search import MemoryQuery
from khala.store.postgres.database import Database, Driver
from khala.store.search import blob_candidates, files, messages, passage_vectors
from khala.store.search.blob_candidates import BlobCandidate
from khala.store.search.messages import Candidate, FoundText
from khala.store.search.passage_vectors import NearMessage
from khala.store.sharing import access

MAX_SEARCHES = 4
"""Searches of one process at the same time. Further ones wait."""
MAX_WAITING = 32
"""Searches of one process that wait for another. More are refused."""
MAX_MEMORIES = 50
"""Memories of one search."""


class SearchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A search of a caller: everywhere, or in one thread; for everything, or one kind; until a time."""

    caller: Caller
    text: str
    words: SearchText
    thread_id: UUID | None
    kind: SearchKind | None
    until: datetime
    meaning: bool = True
    """Whether the search also looks for the same in other words, and waits for the vector of its text."""

    @property
    def payer_id(self) -> UUID | None:
        """The user or thread whose budget pays for the vector of the search."""
        return self.caller.user_id or self.thread_id

    def wants(self, kind: SearchKind) -> bool:
        """Whether this kind is searched."""
        return self.kind in (None, kind)


class SearchService:
    """Searches for callers.

    `enabled`: whether messages are prepared for searches on this deployment. `by_meaning`: whether their vectors are.
    """

    def __init__(
        self,
        db: Database,
        memories: MemoryService,
        blob_service: BlobService,
        *,
        enabled: bool,
        by_meaning: bool = False,
    ) -> None:
        self._db = db
        self._memories = memories
        self._blob_service = blob_service
        self._enabled = enabled
        self._by_meaning = by_meaning
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
        meaning: bool = True,
    ) -> tuple[list[SearchHit], Cursor | None]:
        """One page of what the caller may read and that matches, and the cursor of the next page.

        Without `meaning`, messages and memories are found by their words only, and no model is asked.

        Raises `NotFound` if the search is switched off, `InvalidInput` if the cursor is of another search,
        `Unauthorized` without credentials, `Unavailable` if too many searches wait, and the errors of
        `access.authorize` for a thread that the caller may not read.
        """
        if not self._enabled:
            raise NotFound("The search is switched off on this server.")
        digest = search_digest(text, thread_id=thread_id, kind=kind, meaning=meaning)
        if cursor is not None:
            cursor.check(digest)
        if self._active >= MAX_SEARCHES + MAX_WAITING:
            raise Unavailable("Too many searches wait. Try again in a moment.", retry_after=1)
        until = cursor.until if cursor else datetime.now(UTC)
        request = SearchRequest(
            caller=caller,
            text=text,
            words=SearchText(text),
            thread_id=thread_id,
            kind=kind,
            until=until,
            meaning=meaning,
        )
        self._active += 1
        try:
            async with self._places:
                began = time.monotonic()
                found, worths = await self._find(request)
                ordered = await asyncio.to_thread(results, request.words, found, worths)
                metrics.SEARCH.observe(time.monotonic() - began)
        finally:
            self._active -= 1
        return page(ordered, cursor, until, limit, digest)

    async def _find(self, request: SearchRequest) -> tuple[list[Found], Mapping[str, float]]:
        """Texts that may match, and the worth of each word of the search."""
        async with self._db.driver() as driver:
            spaces, workspace = await _private(driver, request.caller, request.thread_id)
        query, (found, texts, worths) = await asyncio.gather(self._query(request), self._by_words(request, workspace))
        if request.wants("message"):
            near = await self._near(request, query)
            found += await self._messages(request, texts, near)
        if request.wants("memory") and spaces:
            found += await self._memories_of(spaces, request)
        return found, worths

    async def _query(self, request: SearchRequest) -> MemoryQuery:
        """The search with its vector, if messages are searched by their meaning and somebody pays for it."""
        is_wanted = self._by_meaning and request.meaning and request.wants("message")
        if not is_wanted or request.payer_id is None or not request.words.words:
            return MemoryQuery(text=request.text)
        return await self._memories.query(request.text, request.payer_id)

    async def _by_words(
        self, request: SearchRequest, workspace: UUID | None
    ) -> tuple[list[Found], list[FoundText], Mapping[str, float]]:
        """Files, and messages by their words and those in their blobs.

        The model computes the vector of the search meanwhile.
        """
        found: list[Found] = []
        blobs: list[BlobCandidate] = []
        texts: list[FoundText] = []
        worths: dict[str, float] = {}
        async with self._db.driver() as driver:
            if request.wants("message") and request.words.words:
                candidates, frequencies, many = await messages.find(
                    driver, request.caller, request.words, thread_id=request.thread_id
                )
                worths = _worths(request.words, frequencies, many)
                texts = await messages.read(driver, request.caller, candidates, until=request.until)
                blobs = await blob_candidates.find(
                    driver, request.caller, request.words, thread_id=request.thread_id, until=request.until
                )
            if request.wants("file") and workspace is not None:
                found += map(_of_file, await files.read(driver, workspace, until=request.until))
        found += await blob_texts.read(self._blob_service, blobs)
        return found, texts, worths

    async def _near(self, request: SearchRequest, query: MemoryQuery) -> list[NearMessage]:
        if query.vector is None:
            return []
        async with self._db.driver() as driver:
            return await passage_vectors.nearest(
                driver, request.caller, query.vector, query.generation, thread_id=request.thread_id
            )

    async def _messages(
        self, request: SearchRequest, by_words: Sequence[FoundText], near: Sequence[NearMessage]
    ) -> list[Found]:
        """The messages that were found by their words, and those that are near."""
        known = {(text.thread_id, text.position): text for text in by_words}
        missing = [
            Candidate(thread_id=one.thread_id, first_position=one.position, last_position=one.position)
            for one in near
            if (one.thread_id, one.position) not in known
        ]
        async with self._db.driver() as driver:
            for text in await messages.read(driver, request.caller, missing, until=request.until):
                known[text.thread_id, text.position] = text
        similar = {(one.thread_id, one.position): one for one in near}
        return [_of_message(text, similar.get(place)) for place, text in known.items()]

    async def _memories_of(self, spaces: list[MemorySpace], request: SearchRequest) -> list[Found]:
        found = await self._memories.search(
            spaces, request.text, limit=MAX_MEMORIES, payer_id=request.payer_id, meaning=request.meaning
        )
        by: FoundBy = "meaning" if self._memories.by_meaning and request.meaning else "words"
        return [
            Found(
                memory_id=memory.id,
                thread_id=memory.thread_id,
                text=memory.text,
                created_at=memory.created_at,
                similarity=(memory.score or 0.0) / 2,
                by=by,
            )
            for memory in found
            if memory.created_at <= request.until
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


def _of_message(message: FoundText, near: NearMessage | None) -> Found:
    found = Found(message_id=message.id, thread_id=message.thread_id, text=message.text, created_at=message.created_at)
    if near is None:
        return found
    return msgspec.structs.replace(found, similarity=min(1.0, near.similarity), by="meaning", piece=near.piece)


def _of_file(file: files.FoundFile) -> Found:
    return Found(path=file.path, text=f"{file.path}\n{file.text}", created_at=file.changed_at)
