"""The MCP server of one request: lists and calls tools, and reads resources and prompts, for its caller."""

import asyncio
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import mcp_types as types
import msgspec
import structlog
from litestar.types import Receive, Scope, Send
from mcp import MCPError
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

from khala.api.context import Context as KhalaContext
from khala.api.http.body_limits import MAX_BODY_BYTES
from khala.api.mcp.access_watch import ACCESS_ENDED, AccessWatch
from khala.api.mcp.app_contents import McpAppContents
from khala.api.mcp.call_results import TruncatingSink, convert_result, failed_result
from khala.api.mcp.completions import McpCompletions
from khala.api.mcp.concurrent_calls import counted_call
from khala.api.mcp.offered_tools import McpToolCatalog, is_read_only
from khala.api.mcp.prompts import McpPrompts
from khala.api.mcp.resources import McpResources
from khala.api.mcp.tool_calls import NEEDS_ACCOUNT, NEEDS_ACCOUNT_MESSAGE
from khala.domain import ids
from khala.domain.access import Caller
from khala.domain.errors import KhalaError, RateLimited
from khala.tools.invocation import invoke
from khala.tools.mcp import ToolGroup
from khala.tools.port import CallContext, CallResult, Tool
from khala.version import KHALA_VERSION

log = structlog.get_logger()

VALID_KEY = re.compile(r"[!-~]{1,200}")
"""An idempotency key of a client: printable ASCII."""
MAX_URI_CHARACTERS = 1_000
"""Characters of a URI that an error repeats."""
TEMPORARY = ("unavailable", "rate_limited")
"""The codes of errors that may go away by themselves."""
IDEMPOTENCY_KEY_FIELD = "khala/idempotencyKey"
"""The field of `_meta` with which a client marks a retry of a call."""

Context = ServerRequestContext[Any, Any]


class McpOffer(msgspec.Struct, frozen=True, kw_only=True):
    """The tools, resources and prompts that the request of one caller is offered."""

    tools: McpToolCatalog
    resources: McpResources
    prompts: McpPrompts

    @classmethod
    def of(cls, context: KhalaContext, caller: Caller, group: ToolGroup | None) -> "McpOffer":
        """The offer to this caller, in the group or in all of Khala."""
        tools = McpToolCatalog(context.tools.registry, caller, group)
        app = McpAppContents(context, caller, tools)
        resources = McpResources(context, caller, tools, app)
        return cls(tools=tools, resources=resources, prompts=McpPrompts(context, caller, group, app))


async def serve(offer: McpOffer, access: AccessWatch, scope: Scope, receive: Receive, send: Send) -> None:
    """Serve one request. A call of a tool ends when its caller's access is revoked."""
    handler = _RequestHandler(offer.tools, access)
    contents = _ContentHandler(offer.resources, offer.prompts)
    server = Server(
        "khala",
        version=KHALA_VERSION,
        title="Khala",
        on_list_tools=handler.list_tools,
        on_call_tool=handler.call_tool,
        on_list_resources=contents.list_resources,
        on_list_resource_templates=contents.list_templates,
        on_read_resource=contents.read_resource,
        on_list_prompts=contents.list_prompts,
        on_get_prompt=contents.get_prompt,
        on_completion=contents.complete,
        # Tools have no parameters in headers.
        get_tool_input_schema=lambda _: None,
    )
    manager = StreamableHTTPSessionManager(server, stateless=True, max_request_body_size=MAX_BODY_BYTES)
    async with manager.run():
        await manager.handle_request(scope, receive, send)  # type: ignore[arg-type]


class _RequestHandler:
    def __init__(self, catalog: McpToolCatalog, access: AccessWatch) -> None:
        self._catalog = catalog
        self._access = access

    async def list_tools(self, _: Context, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        _refuse_cursor(params)
        tools = await self._tools()
        return types.ListToolsResult(tools=[_describe(tool) for tool in tools.values()])

    async def call_tool(self, ctx: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        user_id = self._catalog.actor.user_id
        if user_id is None:
            raise MCPError(NEEDS_ACCOUNT, NEEDS_ACCOUNT_MESSAGE, {"code": "unauthorized"})
        tool = (await self._tools()).get(params.name)
        if tool is None:
            raise MCPError(types.INVALID_PARAMS, f"Unknown tool: {params.name[:100]}")
        with ExitStack() as stack:
            try:
                stack.enter_context(counted_call(user_id))
            except RateLimited as error:
                return failed_result(error.message)
            return await self._call(ctx, tool, params)

    async def _tools(self) -> dict[str, Tool]:
        with _reported():
            return await self._catalog.tools()

    async def _call(self, ctx: Context, tool: Tool, params: types.CallToolRequestParams) -> types.CallToolResult:
        started_at = time.monotonic()
        updates: asyncio.Queue[str] = asyncio.Queue(maxsize=16)
        sink = TruncatingSink()
        call = CallContext(
            id=str(ids.new()),
            idempotency_key=self._idempotency_key(params),
            actor=self._catalog.actor,
            sink=sink,
            progress=lambda text: _add(updates, text),
        )
        reporter = asyncio.create_task(_report_progress(ctx, updates))
        try:
            result = await self._invoke(tool, params.arguments or {}, call)
        finally:
            reporter.cancel()
            await asyncio.wait({reporter})
        duration_ms = round((time.monotonic() - started_at) * 1000, 1)
        if result is None:
            log.info("mcp_call", tool=tool.spec.name, ok=False, code="revoked", ms=duration_ms)
            return failed_result(ACCESS_ENDED)
        log.info("mcp_call", tool=tool.spec.name, ok=result.ok, code=result.code, ms=duration_ms)
        return convert_result(result, sink, call.id)

    async def _invoke(self, tool: Tool, args: dict[str, Any], call: CallContext) -> CallResult | None:
        """Execute the call. None if the access of its caller was revoked before its end."""
        calling = asyncio.create_task(invoke(tool, args, call))
        revoked = asyncio.create_task(self._access.wait_for_revocation())
        try:
            await asyncio.wait({calling, revoked}, return_when=asyncio.FIRST_COMPLETED)
            if not revoked.done():
                return calling.result()
            revoked.result()
            return None
        finally:
            calling.cancel()
            revoked.cancel()
            await asyncio.wait({calling, revoked})

    def _idempotency_key(self, params: types.CallToolRequestParams) -> str:
        """Return the call's idempotency key, within its account. An invalid key counts as absent."""
        given = (params.meta or {}).get(IDEMPOTENCY_KEY_FIELD)
        key = given if isinstance(given, str) and VALID_KEY.fullmatch(given) else str(ids.new())
        return f"mcp:{self._catalog.actor.owner_id}:{key}"


class _ContentHandler:
    """Answers requests for resources, prompts and completions."""

    def __init__(self, resources: McpResources, prompts: McpPrompts) -> None:
        self._resources = resources
        self._prompts = prompts
        self._completions = McpCompletions(resources, prompts)

    async def list_resources(
        self, _: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        with _reported():
            page = await self._resources.page(params.cursor if params else None)
        return types.ListResourcesResult(resources=page.resources, next_cursor=page.next)

    async def list_templates(
        self, _: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourceTemplatesResult:
        _refuse_cursor(params)
        with _reported():
            return types.ListResourceTemplatesResult(resource_templates=await self._resources.templates())

    async def read_resource(self, _: Context, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        with _reported(uri=params.uri[:MAX_URI_CHARACTERS]):
            return types.ReadResourceResult(contents=[await self._resources.read(params.uri)])

    async def list_prompts(self, _: Context, params: types.PaginatedRequestParams | None) -> types.ListPromptsResult:
        _refuse_cursor(params)
        with _reported():
            return types.ListPromptsResult(prompts=await self._prompts.list())

    async def complete(self, _: Context, params: types.CompleteRequestParams) -> types.CompleteResult:
        with _reported():
            return types.CompleteResult(completion=await self._completions.complete(params.ref, params.argument))

    async def get_prompt(self, _: Context, params: types.GetPromptRequestParams) -> types.GetPromptResult:
        with _reported():
            return await self._prompts.get(params.name, params.arguments or {})


@contextmanager
def _reported(**data: str) -> Iterator[None]:
    """Turn errors into errors of the protocol, with the code that the same error has over REST."""
    try:
        yield
    except KhalaError as error:
        code = types.INTERNAL_ERROR if error.code in TEMPORARY else types.INVALID_PARAMS
        raise MCPError(code, error.message, {"code": error.code, **data}) from error


def _refuse_cursor(params: types.PaginatedRequestParams | None) -> None:
    if params is not None and params.cursor:
        raise MCPError(types.INVALID_PARAMS, "There are no more pages.")


def _describe(tool: Tool) -> types.Tool:
    spec = tool.spec
    annotations = types.ToolAnnotations(
        read_only_hint=is_read_only(tool),
        idempotent_hint=spec.idempotent,
        open_world_hint="network" in spec.permissions,
    )
    return types.Tool(
        name=spec.name, description=spec.description, input_schema=spec.parameters, annotations=annotations
    )


def _add(updates: asyncio.Queue[str], text: str) -> None:
    """Queue a progress message. It is dropped if the client reads too slowly."""
    with suppress(asyncio.QueueFull):
        updates.put_nowait(text)


async def _report_progress(ctx: Context, updates: asyncio.Queue[str]) -> None:
    count = 0
    while True:
        text = await updates.get()
        count += 1
        await ctx.session.report_progress(count, message=text)
