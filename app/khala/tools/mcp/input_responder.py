"""Gives MCP servers the input that a call requires (`input_required`, from the protocol version 2026-07-28).

The call has ended with requests: questions to the person, and texts of a model. They are the same requests that a
server sends during a call in older versions, so the same rules apply to them.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping

import mcp_types as types
import structlog

from khala.tools.mcp import elicitation, sampling
from khala.tools.mcp.active_calls import ActiveCalls, NobodyToAskError
from khala.tools.mcp.config import McpServerConfig
from khala.tools.port import ToolError

log = structlog.get_logger()

MAX_REQUESTS = 20
"""Requests of one round."""


class InputResponder:
    """Responds to the requests of one server."""

    def __init__(self, server: McpServerConfig, calls: ActiveCalls) -> None:
        self._server = server
        self._calls = calls

    def attempt(self, key: str) -> "AttemptInputs":
        """The inputs of one attempt of the running call with this idempotency key."""
        return AttemptInputs(self._server, self._calls, key)


class AttemptInputs:
    """The inputs that one attempt of a call requires.

    If the call is repeated because its connection was lost, the next attempt uses the same inputs again.
    """

    def __init__(self, server: McpServerConfig, calls: ActiveCalls, key: str) -> None:
        self._server = server
        self._calls = calls
        self._key = key
        self._required: Counter[str] = Counter()

    async def respond(self, requests: Mapping[str, types.InputRequest]) -> dict[str, types.InputResponse]:
        """The response to each request, one after the other. Raises `ToolError` and `KhalaError`."""
        if len(requests) > MAX_REQUESTS:
            raise ToolError(f"The server requires {len(requests)} inputs at once. At most {MAX_REQUESTS} are allowed.")
        return {name: await self._response_once(request) for name, request in requests.items()}

    async def _response_once(self, request: types.InputRequest) -> types.InputResponse:
        digest = hashlib.sha256(request.model_dump_json(by_alias=True).encode()).hexdigest()
        self._required[digest] += 1
        # The same request in one attempt is another one each time.
        name = f"{digest}/{self._required[digest]}"
        given: dict[str, types.InputResponse] = self._calls.inputs(self._key)
        if name not in given:
            given[name] = await self._response(request)
        return given[name]

    async def _response(self, request: types.InputRequest) -> types.InputResponse:
        server = self._server
        match request:
            case types.ElicitRequest() if server.elicitation:
                try:
                    return await elicitation.ask(server.name, self._calls, request.params, self._key)
                except NobodyToAskError:
                    log.info("mcp_elicitation_declined", server=server.name)
                    return types.ElicitResult(action="decline")
            case types.CreateMessageRequest() if server.sampling:
                return await sampling.sample(self._calls, request.params, self._key)
            case _:
                raise ToolError(f"The server requires {request.method}, which its configuration does not allow.")
