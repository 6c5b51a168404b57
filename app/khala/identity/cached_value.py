"""A value that is fetched when it is needed, kept for a while, and fetched once for everyone who waits for it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from khala.domain.errors import Unavailable
from khala.identity.oidc_http import RETRY_AFTER_SECONDS

T = TypeVar("T")


class CachedValue(Generic[T]):
    """`fetch` raises Unavailable; `elapsed` tells seconds on a clock that is never set back."""

    def __init__(self, fetch: Callable[[], Awaitable[T]], elapsed: Callable[[], float]) -> None:
        self._fetch = fetch
        self._elapsed = elapsed
        self._lock = asyncio.Lock()
        self._value: tuple[T, float] | None = None
        self._failure: tuple[Unavailable, float] | None = None

    async def get(self, *, max_age: float) -> T:
        """The value, fetched at most `max_age` seconds ago.

        Unavailable where it can't be fetched; nobody tries anew for RETRY_AFTER seconds after that, so that those who
        wait for a silent provider don't wait one after the other.
        """
        value = self._young(max_age)
        if value is None:
            async with self._lock:
                value = self._young(max_age) or (await self._fetched(),)
        return value[0]

    def _young(self, max_age: float) -> tuple[T] | None:
        if self._value is None or self._elapsed() - self._value[1] >= max_age:
            return None
        return (self._value[0],)

    async def _fetched(self) -> T:
        self._give_up_early()
        try:
            value = await self._fetch()
        except Unavailable as error:
            self._failure = error, self._elapsed()
            raise
        self._value, self._failure = (value, self._elapsed()), None
        return value

    def _give_up_early(self) -> None:
        if self._failure is None:
            return
        error, at = self._failure
        left = at + RETRY_AFTER_SECONDS - self._elapsed()
        if left > 0:
            # Not the same object once more: its traceback would grow with everyone who sees it.
            raise Unavailable(error.message, retry_after=left) from error.__cause__
