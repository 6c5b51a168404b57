"""The shell without asyncio: an event loop in a thread of its own drives the same core.

Heartbeats, retries and cancellation are the same as in `khala_client._async`. All methods may be called from several
threads at once.
"""

import asyncio
import concurrent.futures
import contextlib
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterator
from types import TracebackType
from typing import Any, Generic, TypeVar
from uuid import UUID

from khala_client._async.core import AsyncCore
from khala_client.blobs import UploadSource
from khala_client.content import BlobRef, PartData
from khala_client.credentials import Keys
from khala_client.errors import KhalaError
from khala_client.feed import FollowOptions
from khala_client.followers import RunResult, RunTarget, ThreadUpdate
from khala_client.http_core import Answer, HttpCore, Params
from khala_client.plan_models import PlanEvent
from khala_client.state import ThreadState
from khala_client.streams import AsyncStream

Decoded = TypeVar("Decoded")
T = TypeVar("T")

STOP_TIMEOUT_SECONDS = 5.0
"""For the loop's thread to end, and for an interrupted call to close its connection."""


class LoopThread:
    """An event loop in a thread. `run` waits for a coroutine there."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=_run_loop, args=(self._loop,), name="khala-client", daemon=True)
        self._thread.start()
        self._stop = weakref.finalize(self, _stop_loop, self._loop, self._thread)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The result of the coroutine. If the wait is interrupted, by Ctrl-C for example, it is cancelled."""
        if not self._stop.alive:
            coroutine.close()
            raise KhalaError("The client is closed.", code="closed")
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError("A callback of the client cannot call the client: use AsyncKhala.")
        ended = threading.Event()
        future = asyncio.run_coroutine_threadsafe(_then(coroutine, ended.set), self._loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise KhalaError("The client is closed.", code="closed") from None
        except BaseException:
            if not future.done():
                future.cancel()
                ended.wait(STOP_TIMEOUT_SECONDS)
            raise

    def stop(self) -> None:
        """Cancel what is under way, and end the thread."""
        self._stop()


async def _then(coroutine: Coroutine[Any, Any, T], act: Callable[[], None]) -> T:
    try:
        return await coroutine
    finally:
        act()


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()


def _stop_loop(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    with contextlib.suppress(RuntimeError):  # The loop is closed already.
        loop.call_soon_threadsafe(loop.stop)
    if threading.current_thread() is not thread:
        thread.join(STOP_TIMEOUT_SECONDS)


class Stream(Iterator[T], Generic[T]):
    """Items as they arrive. The next one is read when it is asked for, so a slow consumer needs no memory.

    A loop that ends early closes the connection at once if the stream is used as a context:
    `with thread.follow() as updates: …`. Otherwise Python closes it when it collects the stream.
    """

    def __init__(self, loop: LoopThread, items: AsyncStream[T]) -> None:
        self._loop = loop
        self._items = items
        self._is_open = True

    def __iter__(self) -> "Stream[T]":
        return self

    def __next__(self) -> T:
        try:
            return self._loop.run(_next(self._items))
        except StopAsyncIteration:
            self._is_open = False
            raise StopIteration from None

    def close(self) -> None:
        """Close the connection. The stream has no further items."""
        if self._is_open:
            self._is_open = False
            with contextlib.suppress(KhalaError):  # The client is closed, and this stream with it.
                self._loop.run(self._items.aclose())

    def __enter__(self) -> "Stream[T]":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


async def _next(items: AsyncStream[T]) -> T:
    return await anext(items)


class SyncCore:
    """Sends requests and follows feeds for the resources of `Khala`."""

    def __init__(self, http: HttpCore) -> None:
        self.http = http
        self._loop = LoopThread()
        self._core = AsyncCore(http)

    def close(self) -> None:
        """Close all connections, and end the thread of the client."""
        with contextlib.suppress(KhalaError):  # It is closed already.
            self._loop.run(self._core.aclose())
        self._loop.stop()

    def request(
        self,
        method: str,
        path: str,
        kind: type[Decoded],
        *,
        params: Params | None = None,
        body: Any = None,
        keys: Keys | None = None,
        idempotent: bool | None = None,
    ) -> Decoded:
        """Send a request: see `HttpCore.request`."""
        return self._loop.run(
            self._core.request(method, path, kind, params=params, body=body, keys=keys, idempotent=idempotent)
        )

    def delete(self, path: str, *, keys: Keys | None = None) -> None:
        """Delete a resource. A retry that finds nothing has succeeded."""
        self._loop.run(self._core.delete(path, keys=keys))

    def exchange(self, method: str, path: str, *, body: Any, keys: Keys) -> Answer:
        """Send an idempotent request: see `HttpCore.exchange`."""
        return self._loop.run(self._core.exchange(method, path, body=body, keys=keys))

    def request_json(
        self,
        method: str,
        path: str,
        *,
        params: Params | None,
        body: Any,
        idempotent: bool | None,
        timeout: float | None,
    ) -> Any:
        """Send a request, and return its JSON answer as plain values, None without a body."""
        return self._loop.run(
            self._core.request_json(method, path, params=params, body=body, idempotent=idempotent, timeout=timeout)
        )

    def request_bytes(self, method: str, path: str, *, params: Params | None, body: Any) -> bytes:
        """Send a request, and return the body of its answer."""
        return self._loop.run(self._core.request_bytes(method, path, params=params, body=body))

    def pages(self, path: str, kind: type[T], params: Params, keys: Keys | None = None) -> Stream[T]:
        """All items of a list that has pages."""
        return Stream(self._loop, self._core.pages(path, kind, params, keys))

    def follow_thread(
        self, thread_id: UUID, keys: Keys, known: ThreadState | None, options: FollowOptions
    ) -> Stream[ThreadUpdate]:
        """The updates of a thread."""
        return Stream(self._loop, self._core.follow_thread(thread_id, keys, known, options))

    def follow_run(self, run: RunTarget, after: int, options: FollowOptions) -> Stream[tuple[int, PartData]]:
        """The parts of a run."""
        return Stream(self._loop, self._core.follow_run(run, after, options))

    def run_text(self, run: RunTarget, options: FollowOptions) -> Stream[str]:
        """The text of a run."""
        return Stream(self._loop, self._core.run_text(run, options))

    def run_result(self, run: RunTarget, options: FollowOptions, timeout: float | None) -> RunResult:
        """The end of a run."""
        return self._loop.run(self._core.run_result(run, options, timeout))

    def follow_plan(self, plan_id: UUID, keys: Keys, after: int, options: FollowOptions) -> Stream[PlanEvent]:
        """The events of a plan."""
        return Stream(self._loop, self._core.follow_plan(plan_id, keys, after, options))

    def upload(self, thread_id: UUID, source: UploadSource, name: str | None, media_type: str, keys: Keys) -> BlobRef:
        """Upload a file."""
        return self._loop.run(self._core.upload(thread_id, source, name, media_type, keys))

    def download(self, blob: BlobRef | UUID, keys: Keys) -> Stream[bytes]:
        """The bytes of a blob."""
        return Stream(self._loop, self._core.download(blob, keys))
