"""A few threads for calls that block: never more of them than were allowed, whoever is slow."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class ThreadPool:
    """Runs blocking calls; those that are too many wait for their turn."""

    def __init__(self, most: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(most, thread_name_prefix=name)

    def begin(self, call: Callable[P, T], *args: P.args, **named: P.kwargs) -> Future[T]:
        """Begin the call. Its future outlives a task that gives up waiting for it."""
        return self._pool.submit(call, *args, **named)

    async def run(self, call: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """The call's value. A task that is cancelled leaves a call that has begun to end by itself."""
        return await asyncio.wrap_future(self.begin(call, *args, **named))

    async def close(self) -> None:
        """Begin nothing any more. What has begun ends by itself; nobody waits for it here."""
        self._pool.shutdown(wait=False, cancel_futures=True)
