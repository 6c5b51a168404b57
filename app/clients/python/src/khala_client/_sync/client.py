# Made by infra/python_client.py. Change khala_client/_async instead.
"""The client: one server, one caller."""

import os
import ssl
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Literal, Self

from khala_client._sync.core import Stream, SyncCore
from khala_client._sync.plans import Plan
from khala_client._sync.resources import (
    Agents,
    Blobs,
    Me,
    Memories,
    Models,
    search_params,
)
from khala_client._sync.runs import Runs
from khala_client._sync.threads import Thread, Threads
from khala_client.bodies import Id, as_id
from khala_client.credentials import Keys, TokenProvider
from khala_client.http_core import DEFAULT_TIMEOUT_SECONDS, ClientConfig, HttpCore, Params
from khala_client.models import SearchHit
from khala_client.retries import RetryPolicy

DEFAULT_SERVER = "http://127.0.0.1:8000"


class Khala:
    """A client of one Khala server, for one caller. Use it as a context, or call `close`.

    `server` is its address, by default `KHALA_URL`, else http://127.0.0.1:8000. The caller is one of these:

    - `token`: an API token, a thread token, a service token or a JWT. A callable is called for the first token, when a
      JWT is about to expire, and when the server has refused a token.
    - `anon_key`: the key of a guest, and `share_key`: the key of a share link.

    `user` is the external id of the user for whom a service token acts. `timeout` is seconds for one attempt of a
    request. A client may be used by any number of threads.
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
        self._core = core = SyncCore(HttpCore(config, token))
        self.threads = Threads(core)
        self.runs = Runs(core)
        self.memories = Memories(core)
        self.agents = Agents(core)
        self.models = Models(core)
        self.blobs = Blobs(core)
        self.me = Me(core)

    def close(self) -> None:
        """Close all connections. What is under way in other threads raises `KhalaError` with the code `closed`."""
        self._core.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def thread(self, thread_id: Id, *, anon_key: str | None = None, share_key: str | None = None) -> Thread:
        """The thread with this id, without a request. `anon_key` or `share_key` open it instead of the client's."""
        return Thread(self._core, as_id(thread_id), Keys(anon_key=anon_key, share_key=share_key))

    def plan(self, plan_id: Id, *, anon_key: str | None = None, share_key: str | None = None) -> Plan:
        """The plan with this id, without a request."""
        return Plan(self._core, as_id(plan_id), Keys(anon_key=anon_key, share_key=share_key))

    def search(
        self,
        query: str,
        *,
        thread_id: Id | None = None,
        kind: Literal["message", "file", "memory"] | None = None,
        meaning: bool = True,
    ) -> Stream[SearchHit]:
        """Messages, files and memories that the caller may read, the best first."""
        return self._core.pages("/api/search", SearchHit, search_params(query, thread_id, kind, by_meaning=meaning))

    def request(
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
        return self._core.request_json(method, path, params=params, body=body, idempotent=idempotent, timeout=timeout)

    def request_bytes(self, method: str, path: str, *, params: Params | None = None, body: Any = None) -> bytes:
        """As `request`, for an answer that is no JSON, as `/api/plans/{id}/export`. It has at most 64 MiB."""
        return self._core.request_bytes(method, path, params=params, body=body)
