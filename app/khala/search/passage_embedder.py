"""Embeds the passages of past messages in the background, in one process at a time, within their owners' budgets."""

import asyncio
import random
from collections.abc import Sequence
from uuid import UUID

import msgspec
import structlog

from khala.domain.errors import Unavailable
from khala.domain.passages import passages
from khala.memory.embedding_meter import PAUSE_SECONDS
from khala.memory.memory_service import FAILURE_SECONDS, MemoryService
from khala.models.port import ModelFailed
from khala.signals import metrics
from khala.store.postgres.database import Database
from khala.store.search import passage_queue, passage_vectors
from khala.store.search.passage_queue import PassageEntry, PendingMessage
from khala.store.search.passage_vectors import PassageVector, RestOfEntry

MAX_PASSAGES = 64
"""Passages of one batch, from which on it takes no further message."""
IDLE_SECONDS = 3.0
"""Time between two looks for messages, on average."""

log = structlog.get_logger()


class Passage(msgspec.Struct, frozen=True, kw_only=True):
    """A passage that is about to be embedded, and the owner whose budget pays for it."""

    entry_id: UUID
    owner_id: UUID
    thread_id: UUID
    position: int
    piece: int
    text: str


class PassageBatch(msgspec.Struct, kw_only=True):
    """The work of one batch. `done` and `rest`: see `passage_vectors.store`."""

    passages: list[Passage] = []
    empty: list[PassageVector] = []
    """Messages without a text."""
    known: set[tuple[UUID, int]] = set()
    """The threads and positions of the messages: entries of the queue may overlap."""
    done: set[UUID] = set()
    rest: dict[UUID, RestOfEntry] = {}


class PassageEmbedder:
    """Computes vectors of messages of the last `days`; or deletes them all, where `days` is 0."""

    def __init__(self, db: Database, memories: MemoryService, *, days: int) -> None:
        self._db = db
        self._memories = memories
        self._days = days

    @property
    def enabled(self) -> bool:
        """Whether past messages are found by their meaning."""
        return self._memories.by_meaning and self._days > 0

    async def prepare(self) -> None:
        """Create the tables, if they are needed. Call it once at the start."""
        if self.enabled:
            await passage_vectors.create_tables(self._db)

    async def run(self) -> None:
        """Work for ever. Without a model, vectors from before stay: they are of use when there is one again."""
        if not self.enabled and self._days > 0:
            return
        while True:
            try:
                more = await (self.embed_some() if self.enabled else passage_vectors.delete_next(self._db))
            except (ModelFailed, Unavailable) as error:
                metrics.PASSAGE_EMBEDDING_FAILED.inc()
                log.warning("messages_not_embedded", reason=str(error), retry_seconds=FAILURE_SECONDS)
                await asyncio.sleep(FAILURE_SECONDS * random.uniform(0.5, 1.5))
                continue
            if not more and not self.enabled:
                return
            await asyncio.sleep(0 if more else IDLE_SECONDS * random.uniform(0.5, 1.5))

    async def embed_some(self) -> bool:
        """Embed one batch. Returns False if there was nothing to do, or another process does it.

        Messages of an owner whose budget is used up wait, and no others. Raises `ModelFailed` if the model is
        unavailable.
        """
        generation = await self._memories.leased_generation()
        if generation is None:
            return False
        async with self._db.driver() as driver:
            entries = await passage_queue.due(driver)
        if not entries:
            return await passage_queue.walk(self._db, generation, days=self._days)
        batch = await self._read(entries, generation)
        vectors = await self._embed(await self._affordable(batch), generation)
        stored = [*batch.empty, *vectors]
        await passage_vectors.store(self._db, generation, stored, done=sorted(batch.done), rest=batch.rest)
        return True

    async def _read(self, entries: Sequence[PassageEntry], generation: int) -> PassageBatch:
        """The passages of the first messages of these entries."""
        batch = PassageBatch()
        async with self._db.driver() as driver:
            for entry in entries:
                if entry.owner_id is None:
                    batch.done.add(entry.id)
                    continue
                room = MAX_PASSAGES - len(batch.passages)
                if room <= 0:
                    break
                found = await passage_queue.pending(driver, entry, generation, days=self._days, limit=room)
                taken = _take(batch, entry, entry.owner_id, found, room)
                if taken < len(found) or len(found) == room:
                    batch.rest[entry.id] = RestOfEntry(found[taken - 1].position + 1)
                else:
                    batch.done.add(entry.id)
        return batch

    async def _affordable(self, batch: PassageBatch) -> list[Passage]:
        """The passages of messages that their owners' budgets allow. The others of an entry wait."""
        allowed = set(await self._memories.meter.affordable(batch.passages))
        refused: dict[UUID, int] = {}
        for passage in batch.passages:
            if passage not in allowed:
                refused.setdefault(passage.entry_id, passage.position)
        batch.done -= refused.keys()
        batch.rest |= {entry_id: RestOfEntry(first, PAUSE_SECONDS) for entry_id, first in refused.items()}
        return [one for one in batch.passages if one.position < refused.get(one.entry_id, one.position + 1)]

    async def _embed(self, batch: Sequence[Passage], generation: int) -> list[PassageVector]:
        """The vectors of the passages."""
        if not batch:
            return []
        result = await self._memories.embed([passage.text for passage in batch], generation)
        made = list(zip(batch, result.vectors, strict=True))
        embedded = [passage for passage, vector in made if vector is not None]
        self._memories.meter.count_batch(embedded, result.tokens)
        metrics.PASSAGES_EMBEDDED.inc(len(embedded))
        metrics.PASSAGES_WITHOUT_VECTOR.inc(len(made) - len(embedded))
        return [
            PassageVector(thread_id=one.thread_id, position=one.position, piece=one.piece, vector=vector)
            for one, vector in made
        ]


def _take(batch: PassageBatch, entry: PassageEntry, owner_id: UUID, found: Sequence[PendingMessage], room: int) -> int:
    """Add the passages of whole messages until the room is used up. Returns the number of messages."""
    for number, message in enumerate(found):
        if room <= 0:
            return number
        place = entry.thread_id, message.position
        if place in batch.known:
            continue
        batch.known.add(place)
        texts = [(piece, message.text[start:end]) for piece, (start, end) in enumerate(passages(message.text))]
        made = [
            Passage(
                entry_id=entry.id,
                owner_id=owner_id,
                thread_id=entry.thread_id,
                position=message.position,
                piece=piece,
                text=text,
            )
            for piece, text in texts
            if text.strip()
        ]
        if not made:
            batch.empty.append(
                PassageVector(thread_id=entry.thread_id, position=message.position, piece=0, vector=None)
            )
        batch.passages += made
        room -= len(made)
    return len(found)
