"""Calls the configured embedding model: in batches, with retries, and never for longer than its caller can wait."""

import asyncio
import random
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence

import structlog

from khala.domain.backoff import Backoff
from khala.domain.parts import TokenUsage
from khala.domain.vectors import Vector
from khala.models import failures, prices, retry_policy
from khala.models.embeddings.port import EmbeddingModel, EmbeddingResult, Purpose
from khala.models.port import ModelFailed
from khala.signals import metrics

MAX_CHARACTERS = 8_000
"""Characters of a text that are embedded. Passages are shorter; a longer question is known by its beginning."""
MAX_CALLS: Mapping[Purpose, int] = {"document": 4, "query": 4}
"""Calls of one process at the same time. Searches, for which runs wait, have places of their own: documents, which wait
for a slow server with retries, would occupy all others."""
QUERY_TIMEOUT_SECONDS = 2.0
"""Time that a search waits for the vector of its text."""
CACHED_QUERIES = 512
PAUSE = Backoff(first_seconds=1.0, max_seconds=60.0)
"""Time without queries after failures in a row, in which searches do not wait for a server that is away."""

log = structlog.get_logger()


class Embedder:
    """Embeds texts with one model."""

    def __init__(self, model: EmbeddingModel) -> None:
        self._model = model
        self._places = {purpose: asyncio.Semaphore(calls) for purpose, calls in MAX_CALLS.items()}
        self._queries: OrderedDict[str, Vector] = OrderedDict()
        self._dimensions: int | None = None
        self._has_changed = False
        self._failures = 0
        self._paused_until = 0.0

    @property
    def name(self) -> str:
        """The configured name of the model."""
        return self._model.name

    @property
    def names(self) -> tuple[str, str]:
        """The configured name of the model, and the provider's name of it."""
        return self._model.name, self._model.model

    @property
    def provider(self) -> str:
        """The name of the provider, for prices."""
        return self._model.provider

    @property
    def dimensions(self) -> int | None:
        """The length of the model's vectors; None before its first answer in this process."""
        return self._dimensions

    @property
    def has_changed(self) -> bool:
        """Whether a vector had another number of dimensions than those before, since `relearned`."""
        return self._has_changed

    async def relearned(self, text: str) -> Vector:
        """The vector of a text, whose number of dimensions all later ones must have. Raises `ModelFailed`.

        So a model that was replaced under the same name, or whose first answer was wrong, can be used again.
        """
        known, self._dimensions = self._dimensions, None
        try:
            vector = (await self.documents([text])).vectors[0]
        finally:
            if self.dimensions is None:
                self._dimensions = known
        self._has_changed = False
        return vector

    async def documents(self, texts: Sequence[str]) -> EmbeddingResult:
        """The vectors of texts that will be searched. A failed call is repeated as a model's call is.

        Raises `ModelFailed`. No text may be blank.
        """
        results = [
            await self._with_retries(texts[start : start + self._model.max_texts], "document")
            for start in range(0, len(texts), self._model.max_texts)
        ]
        return EmbeddingResult(
            vectors=tuple(vector for result in results for vector in result.vectors),
            tokens=sum(result.tokens for result in results),
            estimated=any(result.estimated for result in results),
        )

    def has_query(self, text: str) -> bool:
        """Whether the vector of this search is known without a call."""
        return text.strip()[:MAX_CHARACTERS] in self._queries

    async def query(self, text: str, count: Callable[[int], None] | None = None) -> Vector | None:
        """The vector of a search, or None: for a blank text, or if the model does not answer within two seconds.

        `count` receives the tokens of the call, if it succeeds. After a failure, the model is not called for some time,
        so that not every search waits for it.
        """
        text = text.strip()[:MAX_CHARACTERS]
        cached = self._queries.get(text)
        if cached is not None:
            self._queries.move_to_end(text)
            return cached
        if not text or time.monotonic() < self._paused_until:
            return None
        try:
            async with asyncio.timeout(QUERY_TIMEOUT_SECONDS):
                result = await self._call([text], "query")
        except (ModelFailed, TimeoutError) as error:
            self._failures += 1
            pause = PAUSE.delay(self._failures)
            self._paused_until = time.monotonic() + pause
            log.warning("embedding_query_failed", model=self.name, pause_seconds=pause, reason=str(error) or "timeout")
            return None
        self._failures = 0
        if count is not None:
            count(result.tokens)
        self._queries[text] = result.vectors[0]
        if len(self._queries) > CACHED_QUERIES:
            self._queries.popitem(last=False)
        return result.vectors[0]

    def forget_queries(self) -> None:
        """Forget the vectors of earlier searches, because the model has changed."""
        self._queries.clear()

    async def aclose(self) -> None:
        """Close the model."""
        await self._model.aclose()

    async def _with_retries(self, texts: Sequence[str], purpose: Purpose) -> EmbeddingResult:
        began = time.monotonic()
        tries = 0
        while True:
            tries += 1
            try:
                return await self._call(texts, purpose)
            except ModelFailed as failure:
                decision = retry_policy.decide(
                    failure,
                    tries=tries,
                    elapsed=time.monotonic() - began,
                    jitter=random.random(),
                    more_models=False,
                )
                if not isinstance(decision, retry_policy.Wait):
                    raise
                metrics.MODEL_RETRIES.labels(self._model.provider, failure.code).inc()
                await asyncio.sleep(decision.seconds)

    def _check_dimensions(self, found: int) -> None:
        """All vectors have as many dimensions as the first one had. Raises `ModelFailed`."""
        self._dimensions = self._dimensions or found
        if found != self._dimensions:
            self._has_changed = True
            cause = ValueError(f"A vector has {found} dimensions instead of {self._dimensions}.")
            raise failures.from_kind(failures.INVALID_RESPONSE, self.provider, midstream=False) from cause

    async def _call(self, texts: Sequence[str], purpose: Purpose) -> EmbeddingResult:
        provider, model = self._model.provider, self._model.model
        outcome = "canceled"
        async with self._places[purpose]:
            began = time.monotonic()
            try:
                result = await self._model.embed([text[:MAX_CHARACTERS] for text in texts], purpose)
                self._check_dimensions(len(result.vectors[0]))
                outcome = "ok"
            except ModelFailed as failure:
                outcome = failure.code
                raise
            finally:
                metrics.EMBEDDING_CALLS.labels(provider, model, outcome).inc()
                metrics.EMBEDDING_CALL.labels(provider, model).observe(time.monotonic() - began)
        metrics.EMBEDDING_TOKENS.labels(provider, model).inc(result.tokens)
        cost = prices.cost(provider, model, TokenUsage(input_tokens=result.tokens))
        if cost is not None:
            metrics.MODEL_COST.labels(provider, model).inc(float(cost))
        return result
