"""The async iterators that the client returns: closed by `async with`, `aclose`, or at their end."""

from collections.abc import AsyncGenerator, AsyncIterator
from types import TracebackType
from typing import Generic, TypeVar

T = TypeVar("T")


class AsyncStream(AsyncIterator[T], Generic[T]):
    """Items as they arrive. The next one is read when it is asked for, so a slow consumer needs no memory.

    A loop that ends early closes the connection at once if the stream is used as a context:
    `async with thread.follow() as updates: …`. Otherwise Python closes it when it collects the stream.
    """

    def __init__(self, items: AsyncGenerator[T, None]) -> None:
        self._items = items

    def __aiter__(self) -> "AsyncStream[T]":
        return self

    async def __anext__(self) -> T:
        return await self._items.__anext__()

    async def aclose(self) -> None:
        """Close the connection. The stream has no further items."""
        await self._items.aclose()

    async def __aenter__(self) -> "AsyncStream[T]":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
