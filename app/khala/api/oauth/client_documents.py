"""Clients whose id is the URL of their metadata (OAuth Client ID Metadata Documents), behind the SSRF guard."""

import asyncio
import re
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import httpx
import msgspec

from khala.domain import oauth
from khala.domain.oauth import ClientMetadata, OAuthClient, OAuthError
from khala.tools.http_client import GuardedClient, GuardedResponse, parse_url, tool_errors
from khala.tools.port import ToolError

MAX_DOCUMENT_BYTES = 16 * 1024
MAX_URL_CHARACTERS = 512
TIMEOUT_SECONDS = 10.0
MAX_AGE_SECONDS = 300.0
"""The time for which a document is used again."""
MAX_CACHED = 500
MAX_CONCURRENT = 8
"""Concurrent requests for documents in this process."""
HEADERS = ((b"Accept", b"application/json"), (b"Accept-Encoding", b"identity"))
DOCUMENT_URL = re.compile(r"https://[A-Za-z0-9.:\[\]-]+/[!-~]+")


class ClientDocument(ClientMetadata, frozen=True, kw_only=True):
    """The metadata at a URL."""

    client_id: str
    method: str = msgspec.field(default="none", name="token_endpoint_auth_method")
    client_secret: Any = None


def is_document_url(client_id: str) -> bool:
    """Whether this client id is the URL of a document: https, with a path, and without a fragment or dot segments."""
    path = client_id.partition("?")[0]
    is_url = len(client_id) <= MAX_URL_CHARACTERS and DOCUMENT_URL.fullmatch(client_id) is not None
    return is_url and "#" not in client_id and not {".", ".."} & set(path.split("/"))


class ClientDocuments:
    """The documents that were fetched last. `elapsed` is a monotonic clock."""

    def __init__(self, client: GuardedClient, elapsed: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._elapsed = elapsed
        self._slots = asyncio.Semaphore(MAX_CONCURRENT)
        self._cached: OrderedDict[str, tuple[OAuthClient, float]] = OrderedDict()

    def cached(self, url: str) -> OAuthClient | None:
        """Return the client with this URL if its document was fetched recently."""
        client, fetched_at = self._cached.get(url, (None, 0.0))
        return client if self._elapsed() - fetched_at < MAX_AGE_SECONDS else None

    async def find(self, url: str) -> OAuthClient:
        """Return the client with this URL. Raises `OAuthError` if its document cannot be read or is invalid."""
        cached = self.cached(url)
        if cached is not None:
            return cached
        client = self._checked(url, await self._fetch(url))
        self._cached[url] = client, self._elapsed()
        self._cached.move_to_end(url)
        if len(self._cached) > MAX_CACHED:
            self._cached.popitem(last=False)
        return client

    async def _fetch(self, url: str) -> bytes:
        try:
            with tool_errors(TIMEOUT_SECONDS):
                return await asyncio.wait_for(self._read(parse_url(url)), TIMEOUT_SECONDS)
        except ToolError as error:
            raise OAuthError("invalid_client", f"The app's metadata cannot be read: {error.message}") from error

    async def _read(self, url: httpx.URL) -> bytes:
        async with self._slots, self._client.follow(url, HEADERS, max_redirects=0) as response:
            return await _content(response)

    def _checked(self, url: str, body: bytes) -> OAuthClient:
        try:
            document = msgspec.json.decode(body, type=ClientDocument)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise OAuthError("invalid_client", f"The app's metadata are invalid: {error}.") from error
        if document.client_id != url:
            raise OAuthError("invalid_client", "The app's metadata have another client_id than their URL.")
        if document.method != "none" or document.client_secret is not None:
            raise OAuthError("invalid_client", "This server supports only apps without a secret or key.")
        return oauth.checked_metadata(document, url)


async def _content(response: GuardedResponse) -> bytes:
    content_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    is_json = content_type == "application/json" or content_type.endswith("+json")
    if response.status != 200 or not is_json:
        raise ToolError(f"The answer has the status {response.status} and the type {content_type or 'none'}.")
    content = bytearray()
    async for chunk in response.body:
        content += chunk
        if len(content) > MAX_DOCUMENT_BYTES:
            raise ToolError(f"The document has more than {MAX_DOCUMENT_BYTES:,} bytes.")
    return bytes(content)
