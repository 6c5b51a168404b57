"""The shell for asyncio: everything that the resources need from the core."""

from collections.abc import Coroutine
from typing import Any, TypeVar
from uuid import UUID

from khala_client import blobs, followers
from khala_client.blobs import UploadSource
from khala_client.content import BlobRef, PartData
from khala_client.credentials import Keys
from khala_client.feed import FollowOptions
from khala_client.followers import RunResult, RunTarget, ThreadUpdate
from khala_client.http_core import Answer, HttpCore, Params
from khala_client.paging import pages
from khala_client.plan_models import PlanEvent
from khala_client.state import ThreadState
from khala_client.streams import AsyncStream
from khala_client.wire import decode_any

Decoded = TypeVar("Decoded")
T = TypeVar("T")


class AsyncCore:
    """Sends requests and follows feeds for the resources of `AsyncKhala`."""

    def __init__(self, http: HttpCore) -> None:
        self.http = http

    async def aclose(self) -> None:
        """Close all connections."""
        await self.http.aclose()

    async def request(
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
        return await self.http.request(method, path, kind, params=params, body=body, keys=keys, idempotent=idempotent)

    async def delete(self, path: str, *, keys: Keys | None = None) -> None:
        """Delete a resource. A retry that finds nothing has succeeded."""
        await self.http.delete(path, keys)

    async def exchange(self, method: str, path: str, *, body: Any, keys: Keys) -> Answer:
        """Send an idempotent request: see `HttpCore.exchange`."""
        return await self.http.exchange(method, path, body=body, keys=keys, idempotent=True)

    async def request_json(
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
        answer = await self.http.exchange(
            method, path, params=params, body=body, idempotent=idempotent, timeout=timeout
        )
        return decode_any(answer.body) if answer.body else None

    async def request_bytes(self, method: str, path: str, *, params: Params | None, body: Any) -> bytes:
        """Send a request, and return the body of its answer."""
        return (await self.http.exchange(method, path, params=params, body=body, accept="*/*")).body

    def pages(self, path: str, kind: type[T], params: Params, keys: Keys | None = None) -> AsyncStream[T]:
        """All items of a list that has pages."""
        return AsyncStream(pages(self.http, path, kind, params, keys))

    def follow_thread(
        self, thread_id: UUID, keys: Keys, known: ThreadState | None, options: FollowOptions
    ) -> AsyncStream[ThreadUpdate]:
        """The updates of a thread."""
        return AsyncStream(followers.follow_thread(self.http, thread_id, keys, known, options))

    def follow_run(self, run: RunTarget, after: int, options: FollowOptions) -> AsyncStream[tuple[int, PartData]]:
        """The parts of a run."""
        return AsyncStream(followers.follow_run(self.http, run, after, options))

    def run_text(self, run: RunTarget, options: FollowOptions) -> AsyncStream[str]:
        """The text of a run."""
        return AsyncStream(followers.run_text(self.http, run, options))

    def run_result(
        self, run: RunTarget, options: FollowOptions, timeout: float | None
    ) -> Coroutine[Any, Any, RunResult]:
        """The end of a run."""
        return followers.run_result(self.http, run, options, timeout)

    def follow_plan(self, plan_id: UUID, keys: Keys, after: int, options: FollowOptions) -> AsyncStream[PlanEvent]:
        """The events of a plan."""
        return AsyncStream(followers.follow_plan(self.http, plan_id, keys, after, options))

    def upload(
        self, thread_id: UUID, source: UploadSource, name: str | None, media_type: str, keys: Keys
    ) -> Coroutine[Any, Any, BlobRef]:
        """Upload a file."""
        return blobs.upload(self.http, thread_id, source, name, media_type, keys)

    def download(self, blob: BlobRef | UUID, keys: Keys) -> AsyncStream[bytes]:
        """The bytes of a blob."""
        return AsyncStream(blobs.download(self.http, blob, keys))
