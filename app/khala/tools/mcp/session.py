"""One session with a server, from its handshake to its end. Only this module uses the SDK's client."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import mcp_types as types
from mcp import ClientSession, MCPError
from mcp.client.session import ClientRequestContext
from mcp.shared.dispatcher import ProgressFnT
from mcp_types import CONNECTION_CLOSED
from pydantic import TypeAdapter, ValidationError

from khala.domain.backoff import Backoff
from khala.domain.errors import KhalaError
from khala.tools.mcp import elicitation, http, sampling, stdio, tool_list_changes
from khala.tools.mcp.active_calls import ActiveCalls
from khala.tools.mcp.call_meta import IDEMPOTENCY_KEY_FIELD
from khala.tools.mcp.config import McpServerConfig
from khala.tools.mcp.connection_events import DENIED, FORGOTTEN, LOST, REFUSED, TOO_LARGE, UNREACHABLE, ConnectionSignal
from khala.tools.mcp.input_responder import InputResponder
from khala.tools.mcp.tool_list import ToolListFilter
from khala.tools.port import ToolError
from khala.version import KHALA_VERSION

if TYPE_CHECKING:
    from khala.tools.mcp.accounts.account_tokens import AccountTokens

MAX_PAGES = 100
MAX_TOOLS = 500
"""Tools of one server; further tools are left out."""
OWN_CODES = (UNREACHABLE, LOST, FORGOTTEN, TOO_LARGE, REFUSED, DENIED, CONNECTION_CLOSED)
"""The codes of errors that are no answer of the server."""
MAX_ROUNDS = 20
"""Times that a call is sent, with the input that the server requires. 10 questions and 10 model calls fit."""
RETRY = Backoff(first_seconds=0.05, max_seconds=1.0)
"""The delay before a call is sent again for which the server requires no input."""
_RESULT: TypeAdapter[types.CallToolResult | types.InputRequiredResult] = TypeAdapter(
    types.CallToolResult | types.InputRequiredResult
)
TOO_LARGE_EVENT = "SSE stream failed"
"""The SDK's message for a response over its limit. Such a request is not repeated."""


class McpRequestError(Exception):
    """A request failed. `sent`: the server may have executed it nevertheless."""

    def __init__(self, message: str, *, sent: bool, session_ended: bool, code: str = "failed") -> None:
        super().__init__(message)
        self.message = message
        self.sent = sent
        self.session_ended = session_ended
        """Whether the session has ended."""
        self.code = code
        """As in `ToolError`, if the session continues."""


@asynccontextmanager
async def open_session(
    server: McpServerConfig, signal: ConnectionSignal, calls: ActiveCalls, tokens: "AccountTokens | None" = None
) -> AsyncIterator["McpSession"]:
    """A session that is ready for calls. Raises `McpRequestError`, `OSError` or an error of the SDK.

    `tokens` are those of the account that uses the server, if each account has its own.

    The server may have a model called or the person asked for one of the `calls`, if its configuration allows that.
    """
    transport = http.connect(server, signal, tokens) if server.transport == "http" else stdio.start(server, signal)

    async def handle(message: types.ServerNotification | Exception) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            signal.request_limited_check()

    async def sample(
        context: ClientRequestContext,  # noqa: ARG001  # the SDK passes it
        params: types.CreateMessageRequestParams,
    ) -> types.CreateMessageResult | types.ErrorData:
        return await sampling.respond(server.name, calls, params)

    async def ask(
        context: ClientRequestContext,  # noqa: ARG001  # the SDK passes it
        params: types.ElicitRequestParams,
    ) -> types.ElicitResult | types.ErrorData:
        return await elicitation.respond(server.name, calls, params)

    info = types.Implementation(name="khala", version=KHALA_VERSION)
    async with (
        transport as (read, write),
        ClientSession(
            ToolListFilter(read, server.name),
            write,
            message_handler=handle,
            client_info=info,
            sampling_callback=sample if server.sampling else None,
            elicitation_callback=ask if server.elicitation else None,
        ) as client,
    ):
        try:
            await _handshake(client)
        except MCPError as error:
            raise _request_error(error) from error
        async with tool_list_changes.followed(client, signal):
            yield McpSession(client, InputResponder(server, calls))


async def _handshake(client: ClientSession) -> None:
    """Agree on a version of the protocol: one with a handshake, or else the newer one."""
    try:
        await client.initialize()
    except MCPError as error:
        if error.code in OWN_CODES:
            raise
        # Servers that have no handshake refuse it with various codes.
        try:
            await client.discover()
        except MCPError:
            raise error from None
    except RuntimeError:
        # The SDK raises it if the server answers the handshake with a version that has none.
        await client.discover()


class McpSession:
    """A session with a server. All methods raise `McpRequestError`."""

    def __init__(self, client: ClientSession, responder: InputResponder) -> None:
        self._client = client
        self._responder = responder

    async def tools(self) -> list[types.Tool]:
        """All tools of the server, up to `MAX_TOOLS`."""
        capabilities = self._client.server_capabilities
        if capabilities is None or capabilities.tools is None:
            return []
        tools: list[types.Tool] = []
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            page = await self._page(cursor)
            tools += page.tools
            cursor = page.next_cursor
            if not cursor or len(tools) >= MAX_TOOLS:
                break
        return tools[:MAX_TOOLS]

    async def call(
        self, tool: str, args: dict[str, Any], meta: Mapping[str, str], report: Callable[[str], None]
    ) -> types.CallToolResult:
        """Call a tool with these fields of `_meta`. Cancelling the task cancels the call at the server.

        If the server requires input, it gets that, and the call is sent again.
        """

        # The parameters have the names that the SDK's protocol for this callback requires.
        async def report_progress(progress: float, total: float | None, message: str | None) -> None:
            report(message or (f"{progress:g} of {total:g}" if total else f"{progress:g}"))

        params = types.CallToolRequestParams.model_validate({"name": tool, "arguments": args, "_meta": dict(meta)})
        attempt = self._responder.attempt(meta[IDEMPOTENCY_KEY_FIELD])
        for number in range(1, MAX_ROUNDS + 1):
            result = await self._send(params, report_progress)
            if isinstance(result, types.CallToolResult):
                return result
            if not result.input_requests:
                await asyncio.sleep(RETRY.delay(number))
            try:
                responses = await attempt.respond(result.input_requests or {})
            except (ToolError, KhalaError) as error:
                raise McpRequestError(error.message, sent=True, session_ended=False) from error
            params = params.model_copy(
                update={"input_responses": responses or None, "request_state": result.request_state}
            )
        raise McpRequestError(
            f"The server has required input {MAX_ROUNDS} times, and no end is in sight.", sent=True, session_ended=False
        )

    async def _send(
        self, params: types.CallToolRequestParams, report: ProgressFnT
    ) -> types.CallToolResult | types.InputRequiredResult:
        try:
            request = types.CallToolRequest(params=params)
            return await self._client.send_request(request, _RESULT, progress_callback=report)
        except MCPError as error:
            raise _request_error(error) from error
        except (ValidationError, ValueError) as error:
            raise McpRequestError(
                "The server's response is not a valid result of a tool.", sent=True, session_ended=False
            ) from error

    async def _page(self, cursor: str | None) -> types.ListToolsResult:
        try:
            params = types.PaginatedRequestParams(cursor=cursor) if cursor else None
            return await self._client.list_tools(params=params)
        except MCPError as error:
            raise _request_error(error) from error
        except (ValidationError, ValueError) as error:
            raise McpRequestError("The server's list of tools is invalid.", sent=True, session_ended=False) from error


def _request_error(error: MCPError) -> McpRequestError:
    match error.code:
        case code if code == CONNECTION_CLOSED and error.message.startswith(TOO_LARGE_EVENT):
            return McpRequestError(
                "The server's response is too large.", sent=True, session_ended=False, code="too_large"
            )
        case code if code == UNREACHABLE:
            return McpRequestError(error.message, sent=False, session_ended=True)
        case code if code == DENIED:
            return McpRequestError(error.message, sent=False, session_ended=False, code="forbidden")
        case code if code in (FORGOTTEN, REFUSED):
            return McpRequestError(error.message, sent=False, session_ended=True)
        case code if code in (LOST, CONNECTION_CLOSED):
            return McpRequestError("The connection to the server was lost.", sent=True, session_ended=True)
        case code if code == TOO_LARGE:
            return McpRequestError(error.message, sent=True, session_ended=False, code="too_large")
        case code if code == types.INVALID_PARAMS:
            return McpRequestError(error.message, sent=True, session_ended=False, code="bad_arguments")
        case _:
            return McpRequestError(error.message, sent=True, session_ended=False)
