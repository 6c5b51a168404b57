"""The MCP server of one request: lists and calls tools for whoever sent it, and then is gone."""

import asyncio
import base64
import re
import time
from contextlib import suppress
from typing import Any
from uuid import UUID

import mcp_types as types
import msgspec
import structlog
from litestar.types import Receive, Scope, Send
from mcp import MCPError
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

from khala.api.http.body_limits import MAX_BODY_BYTES
from khala.api.mcp.offered_tools import McpToolCatalog, only_reads
from khala.domain import ids
from khala.domain.errors import KhalaError, PayloadTooLarge
from khala.tools.invocation import invoke
from khala.tools.port import CallContext, CallResult, Tool
from khala.version import KHALA_VERSION

log = structlog.get_logger()

KEPT = 256 * 1024
"""Bytes of a result that are told; what is beyond is cut off."""
MOST_OUTPUT = 128 << 20
"""Bytes after which a tool is stopped."""
MOST_AT_ONCE = 8
"""Calls that one user may have under way, in this process."""
NEEDS_ACCOUNT = -32050
"""The JSON-RPC error of a call by somebody without an account."""
PLAIN_KEY = re.compile(r"[!-~]{1,200}")
"""A client's own key: printable ASCII."""
KEY = "khala/idempotencyKey"
"""Under which a client may say in `_meta` that this call is that one, tried again."""

Context = ServerRequestContext[Any, Any]

_under_way: dict[UUID, int] = {}


async def serve(offering: McpToolCatalog, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer this request."""
    visit = _Visit(offering)
    server = Server(
        "khala",
        version=KHALA_VERSION,
        title="Khala",
        on_list_tools=visit.list_tools,
        on_call_tool=visit.call_tool,
        # Nothing of ours travels in headers.
        get_tool_input_schema=lambda _: None,
    )
    manager = StreamableHTTPSessionManager(server, stateless=True, max_request_body_size=MAX_BODY_BYTES)
    async with manager.run():
        await manager.handle_request(scope, receive, send)  # type: ignore[arg-type]


class _Visit:
    def __init__(self, offering: McpToolCatalog) -> None:
        self._offering = offering

    async def list_tools(self, _: Context, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        if params is not None and params.cursor:
            raise MCPError(types.INVALID_PARAMS, "There are no further pages.")
        tools = await self._tools()
        return types.ListToolsResult(tools=[_described(tool) for tool in tools.values()])

    async def call_tool(self, ctx: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        user_id = self._offering.actor.user_id
        if user_id is None:
            said = "Calling tools needs an account: send Authorization: Bearer, and an API token."
            raise MCPError(NEEDS_ACCOUNT, said, {"code": "unauthorized"})
        tool = (await self._tools()).get(params.name)
        if tool is None:
            raise MCPError(types.INVALID_PARAMS, f"Unknown tool: {params.name[:100]}")
        if _under_way.get(user_id, 0) >= MOST_AT_ONCE:
            return _failed(f"At most {MOST_AT_ONCE} calls of one account run at once. Try again soon.")
        _under_way[user_id] = _under_way.get(user_id, 0) + 1
        try:
            return await self._called(ctx, tool, params)
        finally:
            _under_way[user_id] -= 1
            if not _under_way[user_id]:
                del _under_way[user_id]

    async def _tools(self) -> dict[str, Tool]:
        try:
            return await self._offering.tools()
        except KhalaError as error:
            raise MCPError(types.INTERNAL_ERROR, error.message, {"code": error.code}) from error

    async def _called(self, ctx: Context, tool: Tool, params: types.CallToolRequestParams) -> types.CallToolResult:
        began = time.monotonic()
        news: asyncio.Queue[str] = asyncio.Queue(maxsize=16)
        sink = _Kept()
        call = CallContext(
            id=str(ids.new()),
            idempotency_key=self._key(params),
            actor=self._offering.actor,
            sink=sink,
            progress=lambda text: _add(news, text),
        )
        teller = asyncio.create_task(_tell(ctx, news))
        try:
            result = await invoke(tool, params.arguments or {}, call)
        finally:
            teller.cancel()
            await asyncio.wait({teller})
        took = round((time.monotonic() - began) * 1000, 1)
        log.info("mcp_call", tool=tool.spec.name, ok=result.ok, code=result.code, ms=took)
        return _told(result, sink)

    def _key(self, params: types.CallToolRequestParams) -> str:
        """A client's own key counts among its account's; nobody meets another's. What is no key counts as none."""
        given = (params.meta or {}).get(KEY)
        key = given if isinstance(given, str) and PLAIN_KEY.fullmatch(given) else str(ids.new())
        return f"mcp:{self._offering.actor.owner_id}:{key}"


class _Kept:
    """A sink that keeps the beginning."""

    def __init__(self) -> None:
        self.content = bytearray()
        self.size = 0

    async def write(self, data: bytes) -> None:
        """Keep as much of it as is told."""
        self.size += len(data)
        if self.size > MOST_OUTPUT:
            raise PayloadTooLarge(f"A tool puts out at most {MOST_OUTPUT:,} bytes.")
        self.content += data[: max(0, KEPT - len(self.content))]


def _described(tool: Tool) -> types.Tool:
    spec = tool.spec
    annotations = types.ToolAnnotations(
        read_only_hint=only_reads(tool),
        idempotent_hint=spec.idempotent,
        open_world_hint="network" in spec.permissions,
    )
    return types.Tool(
        name=spec.name, description=spec.description, input_schema=spec.parameters, annotations=annotations
    )


def _add(news: asyncio.Queue[str], text: str) -> None:
    """What is told faster than it is heard is dropped."""
    with suppress(asyncio.QueueFull):
        news.put_nowait(text)


async def _tell(ctx: Context, news: asyncio.Queue[str]) -> None:
    told = 0
    while True:
        text = await news.get()
        told += 1
        await ctx.session.report_progress(told, message=text)


def _told(result: CallResult, sink: _Kept) -> types.CallToolResult:
    if result.output is None and sink.size:
        return types.CallToolResult(content=[_of_bytes(result.media_type, sink)], is_error=not result.ok)
    if isinstance(result.output, str):
        return types.CallToolResult(content=[_text(result.output.encode("utf-8", "replace"))], is_error=not result.ok)
    encoded = b"" if result.output is None else msgspec.json.encode(result.output)
    structured = result.output if isinstance(result.output, dict) and len(encoded) <= KEPT else None
    return types.CallToolResult(content=[_text(encoded)], structured_content=structured, is_error=not result.ok)


def _of_bytes(media_type: str, sink: _Kept) -> types.ContentBlock:
    kind = media_type.partition(";")[0].strip()
    if kind.startswith("text/") or kind == "application/json":
        return _text(bytes(sink.content), sink.size)
    data, whole = base64.b64encode(sink.content).decode(), sink.size <= KEPT
    if whole and kind.startswith("image/"):
        return types.ImageContent(data=data, mime_type=kind)
    if whole and kind.startswith("audio/"):
        return types.AudioContent(data=data, mime_type=kind)
    return types.TextContent(text=f"[{kind}, {sink.size:,} bytes, left out]")


def _text(encoded: bytes, size: int | None = None) -> types.TextContent:
    """The beginning of a text, and a word on what is missing."""
    size = len(encoded) if size is None else size
    note = f"\n[cut off: {size:,} bytes in all, of which {KEPT:,} are here]" if size > KEPT else ""
    return types.TextContent(text=encoded[:KEPT].decode("utf-8", "replace" if not note else "ignore") + note)


def _failed(message: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(text=message)], is_error=True)
