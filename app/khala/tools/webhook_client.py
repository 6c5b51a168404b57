"""POST requests to webhooks, behind the SSRF guard: without redirects, with bounds of time and size."""

import asyncio
from collections.abc import Sequence

import msgspec

from khala.tools.http_client import GuardedClient, parse_url, tool_errors
from khala.tools.port import ToolError


class WebhookResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A response. `body` is the beginning of the body; all of it if `is_complete`. Names of headers are lower case."""

    status: int
    headers: dict[str, str]
    body: bytes
    is_complete: bool
    timed_out: bool = False
    """Whether the time was over before the end of the body."""

    @property
    def succeeded(self) -> bool:
        """Whether the status is 2xx."""
        return 200 <= self.status < 300


class WebhookClient:
    """Sends signed requests to webhooks, and says which URLs may be webhooks."""

    def __init__(self, client: GuardedClient) -> None:
        self._client = client

    async def check(self, url: str) -> None:
        """Raise `ToolError` if requests may not be sent to this URL: it takes HTTPS, except in own networks."""
        parsed = parse_url(url)
        if not await self._client.is_in_allowed_network(parsed) and parsed.scheme != "https":
            raise ToolError("A webhook needs https, except in the networks of KHALA_FETCH_ALLOW.")

    async def post(
        self, url: str, headers: Sequence[tuple[bytes, bytes]], body: bytes, *, timeout_seconds: float, max_bytes: int
    ) -> WebhookResponse:
        """Send a request, and read at most so many bytes of the response. Raises `ToolError` if there is none in time.

        A redirect is a response, and is not followed.
        """
        received = bytearray()
        response = None
        try:
            with tool_errors(timeout_seconds):
                async with asyncio.timeout(timeout_seconds), self._client.post(parse_url(url), headers, body) as found:
                    response = found
                    async for chunk in found.body:
                        received += chunk
                        if len(received) > max_bytes:
                            break
        except ToolError:
            if response is None:
                raise
            timed_out = True
        else:
            timed_out = False
        return WebhookResponse(
            status=response.status,
            headers=response.headers,
            body=bytes(received[:max_bytes]),
            is_complete=not timed_out and len(received) <= max_bytes,
            timed_out=timed_out,
        )
