"""Prepares messages for searches in the background, in one process at a time."""

import asyncio
import random
import time

import structlog

from khala.domain.errors import Unavailable
from khala.signals import metrics
from khala.store.postgres.database import Database
from khala.store.search import indexing

IDLE_SECONDS = 2.0
"""Time between two looks for messages, on average."""

log = structlog.get_logger()


class SearchIndexer:
    """Makes segments of messages; or deletes them, where the search is switched off.

    `with_passages`: messages with segments are queued for `PassageEmbedder`.
    """

    def __init__(self, db: Database, *, enabled: bool, with_passages: bool = False) -> None:
        self._db = db
        self._enabled = enabled
        self._with_passages = with_passages

    async def run(self) -> None:
        """Work for ever."""
        while True:
            try:
                more = await self.work_some()
            except Unavailable as error:
                metrics.SEARCH_INDEXING_FAILED.inc()
                log.warning("messages_not_indexed", error=str(error.__cause__))
                more = False
            await asyncio.sleep(0 if more else IDLE_SECONDS * random.uniform(0.5, 1.5))

    async def work_some(self) -> bool:
        """Do one batch. Returns whether there may be more."""
        began = time.monotonic()
        if self._enabled:
            result = await indexing.index_next(self._db, with_passages=self._with_passages)
        else:
            result = await indexing.delete_next(self._db)
        if result.messages:
            metrics.SEARCH_INDEXED.inc(result.messages)
            metrics.SEARCH_INDEXING.observe(time.monotonic() - began)
        return result.more
