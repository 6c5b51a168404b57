"""Retries of commands whose transaction Postgres ended over the locks of other transactions."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from khala.domain.backoff import Backoff
from khala.signals import metrics
from khala.store.postgres.database import TransactionConflict

MAX_TRIES = 5
"""Times that one command is run, the first included."""
BACKOFF = Backoff(first_seconds=0.02, min_factor=0.0, max_factor=1.0)

P = ParamSpec("P")
T = TypeVar("T")


def retried(command: Callable[P, Awaitable[T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Run the command again, whole, after a deadlock or a serialization failure: nothing of it was committed.

    For commands that are one transaction and change nothing outside the database. Raises `TransactionConflict` when the
    last try fails, too.
    """

    @wraps(command)
    async def run(*args: P.args, **kwargs: P.kwargs) -> T:
        for tried in range(1, MAX_TRIES):
            try:
                return await command(*args, **kwargs)
            except TransactionConflict:
                # Jitter: those that collided do not meet again at the same moment.
                await asyncio.sleep(BACKOFF.delay(tried, random.random()))
        try:
            return await command(*args, **kwargs)
        except TransactionConflict:
            metrics.DATABASE_UNAVAILABLE.inc()
            raise

    return run
