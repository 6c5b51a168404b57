"""The official client of MCP, connected to Khala."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from tests.support.in_process import InProcessServer


@contextlib.asynccontextmanager
async def client(
    server: InProcessServer, headers: dict[str, str] | None = None, group: str = "", **more: Any
) -> AsyncIterator[Client]:
    """A client with these headers. `group` is the path behind `/mcp`; `more` are arguments of the client."""
    async with httpx2.AsyncClient(headers=headers or {}, timeout=20) as http:
        transport = streamable_http_client(f"{server.url}/mcp{group}", http_client=http)
        async with Client(transport, **more) as mcp:
            yield mcp
