"""Sends HTTP requests to a server: credentials, time limits, retries, and errors by code."""

import asyncio
import contextlib
import itertools
import logging
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, TypeAlias, TypeVar
from urllib.parse import urlsplit

import httpx
import msgspec
from websockets.asyncio.client import ClientConnection

from khala_client.credentials import BearerToken, Keys, TokenProvider
from khala_client.errors import ConnectionFailed, InvalidSetting, KhalaError, NotFound, ServerError, error_of
from khala_client.retries import RetryPolicy
from khala_client.wire import decode, encode

log = logging.getLogger("khala_client")

Decoded = TypeVar("Decoded")
Params: TypeAlias = Mapping[str, str | int | float | bool | None]

DEFAULT_TIMEOUT_SECONDS = 30.0
"""For one attempt of a request, from its beginning to the end of its answer."""
REPEAT_SECONDS = 60.0
"""Time after which a client logs again that it waits for its server."""
MAX_ANSWER_BYTES = 64 << 20
MAX_ERROR_BYTES = 1 << 20
FILE_TIMEOUT = httpx.Timeout(30.0)
"""Of uploads and downloads: for the connection, and between two pieces."""
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Trusts no certificate. For plain HTTP, so that the machine's certificates are not loaded, which takes 30 ms."""


class Answer(msgspec.Struct, frozen=True):
    """The status and the body of an answer."""

    status: int
    body: bytes


Attempt: TypeAlias = Callable[[], Awaitable[Answer]]


class ClientConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of a client. `server` is the address without `/api`; `timeout` is seconds for one attempt.

    `user` is sent as `Khala-User`: the external id of the user for whom a service token acts. `verify` is as in httpx:
    whether certificates are checked, or the TLS context that does it.
    """

    server: str
    user: str | None = None
    keys: Keys = Keys()
    timeout: float = DEFAULT_TIMEOUT_SECONDS
    retry: RetryPolicy = RetryPolicy()
    verify: ssl.SSLContext | bool = True
    headers: Mapping[str, str] = {}

    def __post_init__(self) -> None:
        address = urlsplit(self.server)
        if address.scheme not in ("http", "https") or not address.hostname or address.query or address.fragment:
            raise InvalidSetting(f"The address of a server begins with http:// or https://, not {self.server!r}.")
        if self.user is not None and not (self.user and self.user.isascii() and self.user.isprintable()):
            raise InvalidSetting("The external id of a user consists of printable ASCII characters.")
        if self.timeout <= 0:
            raise ValueError("A timeout is a positive number of seconds.")
        msgspec.structs.force_setattr(self, "server", self.server.rstrip("/"))


class HttpCore:
    """Sends requests. All methods raise the errors of `khala_client.errors`.

    It belongs to one event loop. `aclose` closes its connections.
    """

    def __init__(self, config: ClientConfig, token: str | TokenProvider | None = None) -> None:
        self.config = config
        self.token = BearerToken(token)
        plain = config.server.startswith("http://") and config.verify is True
        # Redirects are not followed, because they would carry the keys to another server.
        # Cookies are not kept, because the caller is the one whose credential was given, and nobody else.
        self._http = httpx.AsyncClient(
            verify=NO_TLS if plain else config.verify,
            timeout=config.timeout,
            follow_redirects=False,
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
        )

        self._logged_at = float("-inf")
        self._closing = asyncio.Event()
        self._sockets: set[ClientConnection] = set()

    async def aclose(self) -> None:
        """Close all connections. What is under way fails, also in other tasks."""
        self._closing.set()
        for socket in tuple(self._sockets):
            await socket.close()
        await self._http.aclose()

    @contextlib.contextmanager
    def owning(self, socket: ClientConnection) -> Iterator[None]:
        """Close this socket together with the client."""
        self._sockets.add(socket)
        try:
            yield
        finally:
            self._sockets.discard(socket)

    async def pause(self, seconds: float) -> None:
        """Wait. Raises `KhalaError` with the code `closed` as soon as the client is closed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closing.wait()
        self._require_open()

    async def pause_after(self, error: KhalaError, seconds: float) -> None:
        """Wait, as `pause`, before a request that failed is repeated. Logs what it waits for, at most once a minute."""
        now = time.monotonic()
        if now - self._logged_at >= REPEAT_SECONDS:
            self._logged_at = now
            log.warning("waiting for %s: %s Trying again.", self.config.server, error)
        await self.pause(seconds)

    def _require_open(self) -> None:
        if self._closing.is_set():
            raise KhalaError("The client is closed.", code="closed")

    def tls(self) -> ssl.SSLContext:
        """The context of TLS connections that are not made by the HTTP client."""
        if isinstance(self.config.verify, ssl.SSLContext):
            return self.config.verify
        context = ssl.create_default_context()
        if not self.config.verify:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context

    async def headers(self, keys: Keys | None = None, *, refused: str | None = None) -> dict[str, str]:
        """The headers that authenticate a request. `refused` is a token that must not be used again."""
        self._require_open()
        token = await self.bearer(refused=refused)
        headers = {**self.config.headers, **(keys or Keys()).over(self.config.keys).headers()}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        if self.config.user is not None:
            headers["Khala-User"] = self.config.user
        return headers

    async def bearer(self, *, refused: str | None = None) -> str | None:
        """A valid bearer token, None without one. Raises the error of its provider."""
        try:
            return await self.token.get(refused=refused)
        except TimeoutError as error:
            raise ConnectionFailed("The token provider took too long.") from error

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
        timeout: float | None = None,
        patient: bool = False,
    ) -> Decoded:
        """Send a request and decode its JSON answer as `kind`; for an answer without a body, `kind` is `type(None)`.

        `path` follows the address of the server, as `/api/me`. Transient errors are tried again if the request is
        `idempotent`: by default GET, HEAD, PUT and DELETE are. With `patient`, they are tried for as long as a follow
        waits for a connection, and the client waits for rate limits.
        """
        answer = await self.exchange(
            method, path, params=params, body=body, keys=keys, idempotent=idempotent, timeout=timeout, patient=patient
        )
        return decode(answer.body or b"null", kind)

    async def exchange(
        self,
        method: str,
        path: str,
        *,
        params: Params | None = None,
        body: Any = None,
        keys: Keys | None = None,
        idempotent: bool | None = None,
        timeout: float | None = None,
        patient: bool = False,
        accept: str = "application/json",
    ) -> Answer:
        """As `request`, with the status and the body of the answer as they are."""
        content = None if body is None else encode(body)
        if idempotent is None:
            idempotent = method in ("GET", "HEAD", "PUT", "DELETE")

        async def attempt() -> Answer:
            async with asyncio.timeout(timeout or self.config.timeout):
                return await self._send_once(method, path, params=params, content=content, keys=keys, accept=accept)

        if not idempotent:
            return await _translated(attempt)
        return await (self.patiently(attempt) if patient else self._with_retries(attempt))

    async def delete(self, path: str, keys: Keys | None = None) -> None:
        """Delete a resource. A retry that finds nothing has succeeded: the answer before it was lost."""
        attempts = 0

        async def attempt() -> Answer:
            nonlocal attempts
            attempts += 1
            async with asyncio.timeout(self.config.timeout):
                return await self._send_once("DELETE", path, keys=keys)

        try:
            await self._with_retries(attempt)
        except NotFound:
            if attempts == 1:
                raise

    async def patiently(self, attempt: Attempt) -> Answer:
        """The result of `attempt`, which is called again for as long as a follow waits for a connection."""
        policy, loop = self.config.retry, asyncio.get_running_loop()
        begin = loop.time()
        for number in itertools.count():
            try:
                return await _translated(attempt)
            except KhalaError as error:
                delay = policy.follow_delay(number, error)
                if delay is None or policy.is_over(loop.time() + delay - begin):
                    raise
                await self.pause_after(error, delay)
        raise AssertionError("unreachable")

    async def _with_retries(self, attempt: Attempt) -> Answer:
        """The result of `attempt`, which is called again after transient errors, as the policy says."""
        policy, loop = self.config.retry, asyncio.get_running_loop()
        begin = loop.time()
        for number in range(policy.max_attempts):
            try:
                return await _translated(attempt)
            except KhalaError as error:
                delay = policy.delay(number, error)
                is_last = number + 1 == policy.max_attempts or loop.time() + delay - begin > policy.max_elapsed
                if not error.is_transient or is_last:
                    raise
                await self.pause_after(error, delay)
        raise AssertionError("unreachable")

    async def _send_once(
        self,
        method: str,
        path: str,
        *,
        params: Params | None = None,
        content: bytes | None = None,
        keys: Keys | None = None,
        accept: str = "application/json",
    ) -> Answer:
        headers = {"Accept": accept} | ({} if content is None else {"Content-Type": "application/json"})
        async with self.stream(method, path, params=params, content=content, keys=keys, headers=headers) as response:
            return Answer(status=response.status_code, body=await read_bounded(response, MAX_ANSWER_BYTES))

    @contextlib.asynccontextmanager
    async def stream(
        self,
        method: str,
        path: str,
        *,
        params: Params | None = None,
        content: bytes | AsyncIterable[bytes] | None = None,
        keys: Keys | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: httpx.Timeout | None = None,
    ) -> AsyncIterator[httpx.Response]:
        """Send a request once; yields the answer, whose body is not read yet. Raises the error of a status over 399.

        A token that is refused is renewed once, unless the content is a stream, which cannot be sent again.
        """
        given = {**await self.headers(keys), **(headers or {})}
        request = self._request(method, path, params, content, given, timeout)
        response = await _answer(self._http, request)
        if response.status_code == 401 and self.token.is_renewable and not isinstance(content, AsyncIterable):
            await response.aclose()
            refused = given.get("Authorization", "").removeprefix("Bearer ")
            given |= await self.headers(keys, refused=refused)
            response = await _answer(self._http, self._request(method, path, params, content, given, timeout))
        try:
            if response.status_code >= 400:
                body = await read_bounded(response, MAX_ERROR_BYTES)
                raise error_of(response.status_code, body, response.headers.get("Retry-After"))
            yield response
        finally:
            await response.aclose()

    @contextlib.asynccontextmanager
    async def stream_elsewhere(self, url: str, headers: Mapping[str, str]) -> AsyncIterator[httpx.Response]:
        """GET an address to which the server redirected, without any credentials."""
        response = await _answer(self._http, self._http.build_request("GET", url, headers=dict(headers)))
        try:
            if response.status_code >= 400:
                raise ServerError(f"The file's store answered {response.status_code}.", status=response.status_code)
            yield response
        finally:
            await response.aclose()

    def _request(
        self,
        method: str,
        path: str,
        params: Params | None,
        content: bytes | AsyncIterable[bytes] | None,
        headers: Mapping[str, str],
        timeout: httpx.Timeout | None,
    ) -> httpx.Request:
        if not path.startswith("/"):
            raise ValueError(f"A path begins with /, not {path!r}.")  # It must not change the host of the address.
        query = {name: value for name, value in (params or {}).items() if value is not None}
        return self._http.build_request(
            method,
            self.config.server + path,
            params=query or None,
            content=content,
            headers=dict(headers),
            timeout=timeout or self.config.timeout,
        )


async def read_bounded(response: httpx.Response, limit: int) -> bytes:
    """The body of an answer. Raises `ServerError` if it has more than `limit` bytes, and `ConnectionFailed`."""
    chunks, size = [], 0
    async for chunk in pieces(response):
        size += len(chunk)
        if size > limit:
            raise ServerError(f"The server's answer has more than {limit:,} bytes.")
        chunks.append(chunk)
    return b"".join(chunks)


async def pieces(response: httpx.Response) -> AsyncGenerator[bytes, None]:
    """The body of an answer in pieces. Raises `ConnectionFailed` if it breaks off."""
    try:
        async for chunk in response.aiter_bytes():
            yield chunk
    except (httpx.HTTPError, httpx.StreamError) as error:
        raise ConnectionFailed("The answer broke off.") from error


async def _answer(http: httpx.AsyncClient, request: httpx.Request) -> httpx.Response:
    try:
        return await http.send(request, stream=True)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        reason = str(error) or type(error).__name__
        raise ConnectionFailed(f"{request.url.host} does not answer: {reason.removesuffix('.')}.") from error


async def _translated(attempt: Attempt) -> Answer:
    """The result of `attempt`. Its time limit is an error of the connection."""
    try:
        return await attempt()
    except TimeoutError as error:
        raise ConnectionFailed("The server took too long to answer.") from error
