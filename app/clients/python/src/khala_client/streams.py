"""The async iterators that the client returns: closed by `async with`, `aclose`, or at their end."""

from collections.abc import AsyncGenerator, AsyncIterator
from types import TracebackType
from typing import Generic, TypeVar

from khala_client.errors import KhalaError

T = TypeVar("T")


class AsyncStream(AsyncIterator[T], Generic[T]):
    """Items as they arrive. The next one is read when it is asked for, so a slow consumer needs no memory.

    A loop that ends early closes the connection at once if the stream is used as a context:
    `async with thread.follow() as updates: …`. Otherwise Python closes it when it collects the stream.
    """

    def __init__(self, items: AsyncGenerator[T, None]) -> None:
        self._items = items
        self._is_broken = False

    def __aiter__(self) -> "AsyncStream[T]":
        return self

    async def __anext__(self) -> T:
        """The next item. Raises `KhalaError` after an error or a cancellation: that was not the end of the stream."""
        if self._is_broken:
            raise KhalaError("This stream was interrupted. Begin another one.", code="interrupted")
        try:
            return await self._items.__anext__()
        except StopAsyncIteration:
            raise
        except BaseException:
            self._is_broken = True
            raise

    async def aclose(self) -> None:
        """Close the connection. The stream has no further items."""
        await self._items.aclose()

    async def __aenter__(self) -> "AsyncStream[T]":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
