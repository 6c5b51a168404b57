"""The memories of this deployment: stored, found by words and by meaning, and embedded in the background."""

import asyncio
import random
import time
from collections.abc import Sequence
from functools import partial
from uuid import UUID

import structlog

from khala.domain import ids
from khala.domain.budgets import BudgetPolicy
from khala.domain.errors import Unavailable
from khala.domain.extraction import ExtractedMemory
from khala.domain.memories import Extraction, Memory, MemorySpace, NewMemory
from khala.domain.vectors import Vector
from khala.memory import document_vectors
from khala.memory.document_vectors import CANARY, DocumentVectors
from khala.memory.embedding_meter import EmbeddingMeter
from khala.models.embeddings.embedder import Embedder
from khala.models.port import ModelFailed
from khala.signals import metrics
from khala.store.memories import extraction_results, memories, memory_proposals, search, vectors
from khala.store.memories.extraction_jobs import ExtractionJob
from khala.store.memories.extraction_results import StoredAs
from khala.store.memories.search import LENIENT, MemoryQuery, WordMatch
from khala.store.memories.vectors import PendingMemory
from khala.store.postgres.database import Database

BATCH = 64
"""Memories that one call of the loop embeds."""
IDLE_SECONDS = 5.0
"""Time between two looks for new memories. A new memory of this process is embedded at once."""
CANARY_SECONDS = 3600.0
"""Time between two looks whether the model has changed under the same name."""
OUTDATED_SECONDS = 300.0
"""The same while the model has an older generation than another one."""
GENERATION_SECONDS = 60.0
"""Time for which a process may use a generation that another process has succeeded."""
FAILURE_SECONDS = 30.0
"""Time after a failure of the embedding model. Until then, searches use words."""
NO_BUDGETS = BudgetPolicy()

log = structlog.get_logger()


class MemoryService:
    """Memories, and the model by which they are found. Without a model or without pgvector, words find them."""

    def __init__(self, db: Database, embedder: Embedder | None, budgets: BudgetPolicy = NO_BUDGETS) -> None:
        self._db = db
        self._embedder = embedder
        self._meter = None if embedder is None else EmbeddingMeter(db, embedder, budgets)
        self._worker_id = ids.new()
        self._generations: dict[int, int] = {}
        """The generations of the model by their number of dimensions."""
        self._generations_read_at = float("-inf")
        self._canary_checked_at = float("-inf")
        self._canary_dimensions = 0
        self._is_newest = True
        """Whether the model has the newest generation of all models."""
        self._added = asyncio.Event()
        self._has_tables = False

    @property
    def by_meaning(self) -> bool:
        """Whether memories are found by their meaning, and not only by their words."""
        return self._embedder is not None and self._has_tables

    @property
    def embedder(self) -> Embedder:
        """The embedding model. Only with a model."""
        assert self._embedder is not None
        return self._embedder

    @property
    def meter(self) -> EmbeddingMeter:
        """The counter of embeddings. Only with a model."""
        assert self._meter is not None
        return self._meter

    async def prepare(self) -> None:
        """Create the tables of vectors, if there is a model. Call it once at the start."""
        if self._embedder is None:
            return
        self._has_tables = await vectors.create_tables(self._db)
        if not self._has_tables:
            log.warning("pgvector_missing", hint="without pgvector 0.7, memories are found by their words only")

    async def add(self, space: MemorySpace, new: NewMemory, *, key: str | None = None) -> tuple[Memory, bool]:
        """Store a memory: see `memories.add`."""
        added = await memories.add(self._db, space, new, key=key)
        self._added.set()
        return added

    async def supersede(self, space: MemorySpace, memory_id: UUID, new: NewMemory) -> Memory:
        """Replace a memory by a newer one: see `memories.supersede`."""
        newer = await memories.supersede(self._db, space, memory_id, new)
        self._added.set()
        return newer

    async def add_extracted(
        self, job: ExtractionJob, space: MemorySpace, extracted: ExtractedMemory, *, default: Extraction
    ) -> StoredAs:
        """Store or propose an extracted memory: see `extraction_results.store`."""
        stored_as = await extraction_results.store(self._db, job, space, extracted, default=default)
        if stored_as == "stored":
            self._added.set()
        return stored_as

    async def accept(self, subject_id: UUID, proposal_id: UUID) -> Memory:
        """Store a proposed memory: see `memory_proposals.accept`."""
        accepted = await memory_proposals.accept(self._db, subject_id, proposal_id)
        self._added.set()
        return accepted

    async def search(
        self,
        spaces: Sequence[MemorySpace],
        text: str,
        *,
        limit: int,
        match: WordMatch = LENIENT,
        history: bool = False,
        payer_id: UUID | None = None,
        meaning: bool = True,
    ) -> list[Memory]:
        """The memories of these spaces that fit the text, the best first: see `search.search`.

        Without `meaning`, by their words only: no model is asked.

        With `history`, those that they have superseded follow each of them: see `search.with_history`.

        The vector of the text counts for the user or thread `payer_id`, by default for the owner of the first space.
        """
        payer_id = payer_id or (spaces[0].owner_id if spaces else None)
        query = await self.query(text, payer_id) if meaning else MemoryQuery(text=text)
        async with self._db.driver() as driver:
            found = await search.search(driver, spaces, query, limit=limit, match=match)
            return await search.with_history(driver, spaces, found, limit=limit) if history else found

    async def query(self, text: str, payer_id: UUID | None = None) -> MemoryQuery:
        """The text, with its vector if the model answers in time, and if the budgets of the payer allow the call."""
        if self._embedder is None or not self._has_tables:
            return MemoryQuery(text=text)
        for dimensions in list(self._generations):
            await self.generation(dimensions)
        vector = await self._query_vector(text, payer_id)
        if vector is None:
            return MemoryQuery(text=text)
        return MemoryQuery(text=text, vector=vector, generation=await self.generation(len(vector)))

    async def _query_vector(self, text: str, payer_id: UUID | None) -> Vector | None:
        assert self._embedder is not None
        if payer_id is None:
            return await self._embedder.query(text)
        if not self._embedder.has_query(text) and not await self.meter.allows(payer_id, text):
            return None
        return await self._embedder.query(text, partial(self.meter.count, payer_id))

    async def dimensions(self) -> int:
        """The length of the model's vectors. Only with a model.

        Before the model's first answer, it embeds the canary, for which nobody pays. Raises `ModelFailed`.
        """
        embedder = self.embedder
        known = embedder.dimensions
        return len((await embedder.documents([CANARY])).vectors[0]) if known is None else known

    async def generation(self, dimensions: int) -> int:
        """The newest generation of the model. A new one also ends the use of vectors of earlier searches."""
        assert self._embedder is not None
        is_outdated = time.monotonic() > self._generations_read_at + GENERATION_SECONDS
        if dimensions not in self._generations or is_outdated:
            self._generations_read_at = time.monotonic()
            self._use(dimensions, await vectors.generation_of(self._db, self._embedder.name, dimensions))
        return self._generations[dimensions]

    def _use(self, dimensions: int, generation: int) -> None:
        assert self._embedder is not None
        if self._generations.get(dimensions, generation) != generation:
            self._embedder.forget_queries()
        self._generations[dimensions] = generation

    async def record_usage(self) -> None:
        """Count embeddings against budgets, for ever."""
        if self._meter is not None:
            await self._meter.run()

    async def aclose(self) -> None:
        """Count the embeddings that are not counted yet."""
        if self._meter is not None:
            await self._meter.aclose()

    async def run(self) -> None:
        """Embed memories that have no vector of the current model, for ever. One process at a time does so."""
        if self._embedder is None or not self._has_tables:
            return
        while True:
            try:
                worked = await self.embed_some()
            except (ModelFailed, Unavailable) as error:
                log.warning("embedding_failed", reason=str(error), retry_seconds=FAILURE_SECONDS)
                await asyncio.sleep(FAILURE_SECONDS * random.uniform(0.5, 1.5))
                continue
            if not worked:
                await self._wait()

    async def _wait(self) -> None:
        self._added.clear()
        try:
            async with asyncio.timeout(IDLE_SECONDS * random.uniform(0.5, 1.5)):
                await self._added.wait()
        except TimeoutError:
            return

    async def embed_some(self) -> bool:
        """Embed one batch. Returns False if there was nothing to do, or another process does it.

        The memories of an owner whose budget is used up wait, and no others.

        Raises `ModelFailed` if the model is unavailable.
        """
        generation = await self.leased_generation()
        if generation is None:
            return False
        async with self._db.driver() as driver:
            batch = await vectors.pending(driver, generation, BATCH, without=self.meter.paused())
        affordable = await self.meter.affordable(batch)
        if affordable:
            await vectors.store(self._db, generation, await self._embed(affordable, generation))
        return bool(affordable) or (bool(batch) and self.meter.may_pause)

    async def leased_generation(self) -> int | None:
        """The generation of the model, if this process may compute its vectors; None while another process does.

        Raises `ModelFailed` if the model is unavailable.
        """
        generation = await self._current_generation()
        async with self._db.driver() as driver:
            return generation if await vectors.lease(driver, generation, self._worker_id) else None

    async def _current_generation(self) -> int:
        """The generation of the model, by the vector of the canary, which is compared from time to time.

        It is compared at once after a vector, of a search for example, with another number of dimensions.
        """
        interval = CANARY_SECONDS if self._is_newest else OUTDATED_SECONDS
        if self.embedder.has_changed or time.monotonic() > self._canary_checked_at + interval:
            await self._check_canary()
        return await self.generation(self._canary_dimensions)

    async def _check_canary(self) -> None:
        model = self.embedder.name
        canary = await self.embedder.relearned(CANARY)
        before = await vectors.generation_of(self._db, model, len(canary))
        generation = await vectors.check_canary(self._db, model, canary)
        if generation != before:
            metrics.EMBEDDING_MODEL_CHANGES.inc()
            log.warning("embedding_model_changed", model=model, generation=generation)
        current, self._is_newest = await vectors.renew(self._db, generation, self._worker_id)
        if current != generation:
            log.info("embedding_model_used_again", model=model, generation=current)
        self._use(len(canary), current)
        self._canary_dimensions = len(canary)
        self._canary_checked_at = time.monotonic()

    async def embed(self, texts: Sequence[str], generation: int) -> DocumentVectors:
        """The vectors of these texts, which belong to this generation: see `leased_generation`.

        Raises `ModelFailed`, also for vectors with other dimensions than those of the generation. After a failure, the
        canary is compared again.
        """
        try:
            result = await document_vectors.embed(self.embedder, texts)
            dimensions = {len(vector) for vector in result.vectors if vector is not None}
            if any(self._generations.get(one) != generation for one in dimensions):
                raise ModelFailed("invalid_response", "The embedding model has changed.", retryable=True)
        except ModelFailed:
            self._canary_checked_at = float("-inf")
            raise
        return result

    async def _embed(self, batch: Sequence[PendingMemory], generation: int) -> dict[UUID, Vector | None]:
        """The vectors of the batch, None for those that the model refuses."""
        result = await self.embed([pending.text for pending in batch], generation)
        found = {pending.id: vector for pending, vector in zip(batch, result.vectors, strict=True)}
        embedded = [pending for pending in batch if found[pending.id] is not None]
        refused = [str(pending.id) for pending in batch if found[pending.id] is None]
        self.meter.count_batch(embedded, result.tokens)
        metrics.MEMORIES_EMBEDDED.inc(len(embedded))
        if refused:
            metrics.MEMORIES_WITHOUT_VECTOR.inc(len(refused))
            log.warning("memories_not_embedded", memory_ids=refused)
        return found
