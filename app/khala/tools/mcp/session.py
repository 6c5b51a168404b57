"""One session with a server, from its handshake to its end: what the SDK's client is used for, and all of it."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

import mcp_types as types
from mcp import ClientSession, MCPError
from mcp_types import CONNECTION_CLOSED, UNSUPPORTED_PROTOCOL_VERSION
from pydantic import ValidationError

from khala.tools.mcp import http, stdio
from khala.tools.mcp.config import McpServerConfig
from khala.tools.mcp.connection_events import FORGOTTEN, LOST, REFUSED, TOO_LARGE, UNREACHABLE, ConnectionSignal
from khala.tools.mcp.tool_list import ToolListFilter

MOST_PAGES = 100
MOST_TOOLS = 500
"""Tools of one server; what it has beyond them is left out."""
TOO_LARGE_EVENT = "SSE stream failed"
"""What the SDK says of an answer that is over its limit: it is not to be asked for again."""
KEY = "khala/idempotencyKey"
"""Under which the idempotency key of a call stands in its `_meta`."""


class McpRequestError(Exception):
    """A request came to nothing; `sent` says whether the server may have done it all the same."""

    def __init__(self, message: str, *, sent: bool, over: bool, code: str = "failed") -> None:
        super().__init__(message)
        self.message = message
        self.sent = sent
        self.over = over
        """Whether the session can't go on."""
        self.code = code
        """As in `ToolError`, where the session goes on."""


@asynccontextmanager
async def opened(server: McpServerConfig, watch: ConnectionSignal) -> AsyncIterator["McpSession"]:
    """A session that is ready for calls. Raises `McpRequestError`, `OSError` or what the SDK raises."""
    transport = http.reached(server, watch) if server.transport == "http" else stdio.started(server, watch)

    async def heard(message: types.ServerNotification | Exception) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            watch.doubt()

    info = types.Implementation(name="khala", version=version("khala"))
    async with (
        transport as (read, write),
        ClientSession(ToolListFilter(read, server.name), write, message_handler=heard, client_info=info) as client,
    ):
        try:
            await _greet(client)
        except MCPError as error:
            raise _broken(error) from error
        yield McpSession(client)


async def _greet(client: ClientSession) -> None:
    try:
        await client.initialize()
    except MCPError as error:
        if error.code != UNSUPPORTED_PROTOCOL_VERSION:
            raise
        # It speaks only the protocol that has no handshake any more.
        await client.discover()


class McpSession:
    """What can be asked of a server that is there. Raises `McpRequestError`."""

    def __init__(self, client: ClientSession) -> None:
        self._client = client

    async def tools(self) -> list[types.Tool]:
        """All its tools, up to `MOST_TOOLS`."""
        capabilities = self._client.server_capabilities
        if capabilities is None or capabilities.tools is None:
            return []
        found: list[types.Tool] = []
        cursor: str | None = None
        for _ in range(MOST_PAGES):
            page = await self._page(cursor)
            found += page.tools
            cursor = page.next_cursor
            if not cursor or len(found) >= MOST_TOOLS:
                break
        return found[:MOST_TOOLS]

    async def call(
        self, tool: str, args: dict[str, Any], key: str, tell: Callable[[str], None]
    ) -> types.CallToolResult:
        """Call a tool, under this idempotency key. Cancelling the task that waits cancels the call at the server."""

        # The parameters are named as the SDK names them.
        async def told(progress: float, total: float | None, message: str | None) -> None:
            tell(message or (f"{progress:g} of {total:g}" if total else f"{progress:g}"))

        meta = {"_meta": {KEY: key}}
        params = types.CallToolRequestParams.model_validate({"name": tool, "arguments": args, **meta})
        try:
            return await self._client.send_request(
                types.CallToolRequest(params=params), types.CallToolResult, progress_callback=told
            )
        except MCPError as error:
            raise _broken(error) from error
        except (ValidationError, ValueError) as error:
            raise McpRequestError("The server's answer is no tool's result.", sent=True, over=False) from error

    async def _page(self, cursor: str | None) -> types.ListToolsResult:
        try:
            params = types.PaginatedRequestParams(cursor=cursor) if cursor else None
            return await self._client.list_tools(params=params)
        except MCPError as error:
            raise _broken(error) from error
        except (ValidationError, ValueError) as error:
            raise McpRequestError("The server's list of tools is none.", sent=True, over=False) from error


def _broken(error: MCPError) -> McpRequestError:
    match error.code:
        case code if code == CONNECTION_CLOSED and error.message.startswith(TOO_LARGE_EVENT):
            return McpRequestError("The server's answer is too large.", sent=True, over=False, code="too_large")
        case code if code == UNREACHABLE:
            return McpRequestError(error.message, sent=False, over=True)
        case code if code in (FORGOTTEN, REFUSED):
            return McpRequestError(error.message, sent=False, over=True)
        case code if code in (LOST, CONNECTION_CLOSED):
            return McpRequestError("The connection to the server was lost.", sent=True, over=True)
        case code if code == TOO_LARGE:
            return McpRequestError(error.message, sent=True, over=False, code="too_large")
        case code if code == types.INVALID_PARAMS:
            return McpRequestError(error.message, sent=True, over=False, code="bad_arguments")
        case _:
            return McpRequestError(error.message, sent=True, over=False)
