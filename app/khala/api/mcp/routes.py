"""The MCP server at `/mcp` and `/mcp/{group}`, its tool groups, and the state of the MCP servers that Khala uses."""

import asyncio
import importlib
import time
from typing import Annotated, Any

from litestar import Controller, Request, asgi, get
from litestar.di import NamedDependency
from litestar.exceptions import MethodNotAllowedException
from litestar.types import Receive, Scope, Send
from msgspec import Meta

from khala.api.accounts import session_cookie
from khala.api.accounts.authentication import BY_ACCOUNT, require_user, with_keys
from khala.api.context import Context, context_of
from khala.api.http.body_limits import MAX_BODY_BYTES, read_ahead
from khala.api.http.problem_details import documented_errors
from khala.api.http.request_origin import refuse_cross_site
from khala.api.mcp import tool_calls
from khala.api.mcp.access_watch import AccessWatch
from khala.api.mcp.offered_tools import McpToolCatalog
from khala.api.oauth import access_tokens
from khala.api.types import ApiStruct, Items
from khala.domain.access import Caller, require_scope
from khala.domain.errors import Forbidden, NotFound
from khala.domain.json_bodies import check_containers
from khala.tools.mcp import ServerState, ToolGroup

MAX_CONTAINERS = 20_000
"""Objects and arrays of a request. The SDK takes 5 µs for each, on the event loop."""
DENIED = ("invalid_input", "unauthorized", "forbidden", "rate_limited", "unavailable")


class OfferedToolGroup(ApiStruct, frozen=True, kw_only=True, omit_defaults=False):
    """A group of tools. `patterns` select them. `tools` are those that the caller is offered at `path`."""

    name: str
    title: str
    description: str
    path: Annotated[str, Meta(description="The path of the group's MCP server.")]
    patterns: tuple[str, ...]
    tools: list[str]


# Mounted, because Litestar does not support path parameters of ASGI handlers.
@asgi("/mcp", is_mount=True, copy_scope=True)
async def endpoint(scope: Scope, receive: Receive, send: Send) -> None:
    """Serve a request to the MCP server. It is stateless, so any process can serve any request."""
    context = context_of(scope)
    request: Request[Any, Any, Any] = Request(scope, receive, send)
    request.scope["state"]["began"] = time.monotonic()
    context.limits.requests.check(request, context.origins)
    if request.method != "POST":
        # The server sends no messages of its own, and has no sessions to end.
        raise MethodNotAllowedException(headers={"Allow": "POST"})
    refuse_cross_site(
        request, context.origins, cookie=session_cookie.session_secret(request, context.origins) is not None
    )
    group_name = scope["path"].strip("/")
    group = _group(context, group_name)
    caller, is_oauth = await access_tokens.authenticate(request, context, group_name)
    if is_oauth and "read" not in caller.scopes:
        raise access_tokens.insufficient_scope(request, context, group_name)
    if caller.only_thread is not None:
        raise Forbidden("A thread token opens one thread and nothing else.")
    require_scope(caller, "read")
    caller = with_keys(caller, request.headers.get("x-anon-key"), request.headers.get("x-share-key"))
    # The SDK takes a second to load, so it is loaded only if the endpoint is used.
    await asyncio.to_thread(importlib.import_module, "khala.api.mcp.server")
    from khala.api.mcp.server import McpOffer, serve

    body = await read_ahead(receive, MAX_BODY_BYTES)
    check_containers(body.content, MAX_CONTAINERS)
    if is_oauth:
        called = tool_calls.called_tool(body.content)
        if called is not None and await tool_calls.needs_write(called.params.name, context, caller, group):
            raise access_tokens.insufficient_scope(request, context, group_name)

    async def authenticate() -> Caller:
        again, _ = await access_tokens.authenticate(request, context, group_name)
        return again

    await serve(McpOffer.of(context, caller, group), AccessWatch(caller, authenticate), scope, body.receive, send)


def _group(context: Context, name: str) -> ToolGroup | None:
    if not name:
        return None
    group = context.tools.groups.get(name)
    if group is None:
        raise NotFound("There is no such group of tools.")
    return group


class McpController(Controller):
    """Descriptions of MCP servers."""

    path = "/"
    tags = ("Tools",)

    @get(
        "/groups",
        operation_id="listGroups",
        summary="List tool groups",
        response_description="All groups, with the tools that the caller is offered.",
        responses=documented_errors(*DENIED),
    )
    async def groups(
        self, context: NamedDependency[Context], caller: NamedDependency[Caller]
    ) -> Items[OfferedToolGroup]:
        """List the groups of tools. Each group is an MCP server at its path."""
        offered = await McpToolCatalog(context.tools.registry, caller, None).tools()
        return Items(items=[_describe(group, list(offered)) for group in context.tools.groups.values()])

    @get(
        "/mcp-servers",
        operation_id="listMcpServers",
        summary="List connected MCP servers",
        response_description="The state of each server, as seen by this process.",
        responses=documented_errors(*DENIED),
        security=BY_ACCOUNT,
    )
    async def servers(self, context: NamedDependency[Context], caller: NamedDependency[Caller]) -> Items[ServerState]:
        """List the MCP servers whose tools Khala uses. URLs, commands and environments are not included."""
        require_user(caller)
        return Items(items=context.tools.mcp_connections.servers())


def _describe(group: ToolGroup, offered: list[str]) -> OfferedToolGroup:
    return OfferedToolGroup(
        name=group.name,
        title=group.title,
        description=group.description,
        path=f"/mcp/{group.name}",
        patterns=group.tools,
        tools=[name for name in offered if group.has(name)],
    )
