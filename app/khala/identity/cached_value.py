"""A cached value: fetched on demand, once for all concurrent readers, and cached for a limited time."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from khala.domain.errors import Unavailable
from khala.identity.oidc_http import RETRY_AFTER_SECONDS

T = TypeVar("T")


class CachedValue(Generic[T]):
    """`fetch` may raise Unavailable. `elapsed` returns seconds of a monotonic clock."""

    def __init__(self, fetch: Callable[[], Awaitable[T]], elapsed: Callable[[], float]) -> None:
        self._fetch = fetch
        self._elapsed = elapsed
        self._lock = asyncio.Lock()
        self._value: tuple[T, float] | None = None
        self._failure: tuple[Unavailable, float] | None = None

    async def get(self, *, max_age: float) -> T:
        """The value, fetched at most `max_age` seconds ago.

        Raises Unavailable if the fetch fails. For RETRY_AFTER_SECONDS after that, all calls fail at once. Otherwise
        each caller would wait for the timeout of a silent provider in turn.
        """
        value = self._fresh(max_age)
        if value is None:
            async with self._lock:
                value = self._fresh(max_age) or (await self._fetched(),)
        return value[0]

    @property
    def fetching(self) -> bool:
        """Whether a reader fetches the value at this moment."""
        return self._lock.locked()

    def last(self, *, max_age: float) -> T | None:
        """The value as it was fetched last, if it is at most this old. Fetches nothing."""
        known = self._fresh(max_age)
        return None if known is None else known[0]

    def _fresh(self, max_age: float) -> tuple[T] | None:
        if self._value is None or self._elapsed() - self._value[1] >= max_age:
            return None
        return (self._value[0],)

    async def _fetched(self) -> T:
        self._raise_recent_failure()
        try:
            value = await self._fetch()
        except Unavailable as error:
            self._failure = error, self._elapsed()
            raise
        self._value, self._failure = (value, self._elapsed()), None
        return value

    def _raise_recent_failure(self) -> None:
        if self._failure is None:
            return
        error, failed_at = self._failure
        retry_after = failed_at + RETRY_AFTER_SECONDS - self._elapsed()
        if retry_after > 0:
            # A new object: the traceback of a shared one would grow with each raise.
            raise Unavailable(error.message, retry_after=retry_after) from error.__cause__
