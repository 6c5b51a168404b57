"""A thread pool of a fixed size for blocking calls."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class ThreadPool:
    """Runs blocking calls. Calls beyond the number of threads wait."""

    def __init__(self, size: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(size, thread_name_prefix=name)

    def begin(self, call: Callable[P, T], *args: P.args, **named: P.kwargs) -> Future[T]:
        """Start the call. Its future outlives a task that stops waiting for it."""
        return self._pool.submit(call, *args, **named)

    async def run(self, call: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """Run the call and return its value. If the task is cancelled, a started call still runs to its end."""
        return await asyncio.wrap_future(self.begin(call, *args, **named))

    async def close(self) -> None:
        """Cancel calls that have not started. Started calls run to their end, and are not awaited."""
        self._pool.shutdown(wait=False, cancel_futures=True)
