"""The client: one server, one caller."""

import os
import ssl
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Literal, Self

from khala_client._async.core import AsyncCore
from khala_client._async.plans import AsyncPlan
from khala_client._async.resources import (
    AsyncAgents,
    AsyncBlobs,
    AsyncMe,
    AsyncMemories,
    AsyncModels,
    search_params,
)
from khala_client._async.runs import AsyncRuns
from khala_client._async.threads import AsyncThread, AsyncThreads
from khala_client.bodies import Id, as_id
from khala_client.credentials import Keys, TokenProvider
from khala_client.http_core import DEFAULT_TIMEOUT_SECONDS, ClientConfig, HttpCore, Params
from khala_client.models import SearchHit
from khala_client.retries import RetryPolicy
from khala_client.streams import AsyncStream

DEFAULT_SERVER = "http://127.0.0.1:8000"


class AsyncKhala:
    """A client of one Khala server, for one caller. Use it as a context, or call `aclose`.

    `server` is its address, by default `KHALA_URL`, else http://127.0.0.1:8000. The caller is one of these:

    - `token`: an API token, a thread token, a service token or a JWT. A callable is called for the first token, when a
      JWT is about to expire, and when the server has refused a token; it may be async.
    - `anon_key`: the key of a guest, and `share_key`: the key of a share link.

    `user` is the external id of the user for whom a service token acts. `timeout` is seconds for one attempt of a
    request. A client belongs to one event loop, and may be used by any number of its tasks.
    """

    def __init__(
        self,
        server: str | None = None,
        *,
        token: str | TokenProvider | None = None,
        anon_key: str | None = None,
        share_key: str | None = None,
        user: str | None = None,
        retry: RetryPolicy | None = None,
        timeout: float = DEFAULT_TIMEOUT_SECONDS,
        verify: ssl.SSLContext | bool = True,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        config = ClientConfig(
            server=server or os.environ.get("KHALA_URL", DEFAULT_SERVER),
            user=user,
            keys=Keys(anon_key=anon_key, share_key=share_key),
            timeout=timeout,
            retry=retry or RetryPolicy(),
            verify=verify,
            headers=headers or {},
        )
        self._core = core = AsyncCore(HttpCore(config, token))
        self.threads = AsyncThreads(core)
        self.runs = AsyncRuns(core)
        self.memories = AsyncMemories(core)
        self.agents = AsyncAgents(core)
        self.models = AsyncModels(core)
        self.blobs = AsyncBlobs(core)
        self.me = AsyncMe(core)

    async def aclose(self) -> None:
        """Close all connections. What is under way in other tasks raises `KhalaError` with the code `closed`."""
        await self._core.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def thread(self, thread_id: Id, *, anon_key: str | None = None, share_key: str | None = None) -> AsyncThread:
        """The thread with this id, without a request. `anon_key` or `share_key` open it instead of the client's."""
        return AsyncThread(self._core, as_id(thread_id), Keys(anon_key=anon_key, share_key=share_key))

    def plan(self, plan_id: Id, *, anon_key: str | None = None, share_key: str | None = None) -> AsyncPlan:
        """The plan with this id, without a request."""
        return AsyncPlan(self._core, as_id(plan_id), Keys(anon_key=anon_key, share_key=share_key))

    def search(
        self,
        query: str,
        *,
        thread_id: Id | None = None,
        kind: Literal["message", "file", "memory"] | None = None,
        meaning: bool = True,
    ) -> AsyncStream[SearchHit]:
        """Messages, files and memories that the caller may read, the best first."""
        return self._core.pages("/api/search", SearchHit, search_params(query, thread_id, kind, by_meaning=meaning))

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Params | None = None,
        body: Any = None,
        idempotent: bool | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Send any request of the REST API, and return its JSON answer: for routes that have no method here.

        `path` begins with `/`, as in `/api/me/audit`. Errors and time limits are those of all methods. Transient errors
        are tried again if the request is `idempotent`: by default GET, HEAD, PUT and DELETE are.
        """
        return await self._core.request_json(
            method, path, params=params, body=body, idempotent=idempotent, timeout=timeout
        )

    async def request_bytes(self, method: str, path: str, *, params: Params | None = None, body: Any = None) -> bytes:
        """As `request`, for an answer that is no JSON, as `/api/plans/{id}/export`. It has at most 64 MiB."""
        return await self._core.request_bytes(method, path, params=params, body=body)
