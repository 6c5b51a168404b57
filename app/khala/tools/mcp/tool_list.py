"""Filters invalid tools out of a server's messages, because the SDK refuses a whole list with one invalid tool."""

from types import TracebackType
from typing import Any, Self

import mcp_types as types
import structlog
from mcp.shared._stream_protocols import ReadStream
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCResponse
from pydantic import ValidationError

log = structlog.get_logger()

MAX_LOGGED_NAME_CHARACTERS = 100
MAX_LOGGED_TOOLS = 1000


class ToolListFilter:
    """A stream of a server's messages, without invalid tools."""

    def __init__(self, stream: ReadStream[SessionMessage | Exception], server: str) -> None:
        self._stream = stream
        self._server = server
        self._logged: set[str] = set()

    @property
    def last_context(self) -> Any:
        """The sender's context, if the stream has one."""
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> SessionMessage | Exception:
        """The next message."""
        return self._filtered(await self._stream.receive())

    async def aclose(self) -> None:
        """Close the stream."""
        await self._stream.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        return self._filtered(await self._stream.__anext__())

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._stream.__aexit__(kind, error, trace)

    def _filtered(self, message: SessionMessage | Exception) -> SessionMessage | Exception:
        if isinstance(message, SessionMessage) and isinstance(message.message, JSONRPCResponse):
            result = message.message.result
            if isinstance(result.get("tools"), list) and "content" not in result:
                result["tools"] = [tool for tool in result["tools"] if self._is_valid(tool)]
        return message

    def _is_valid(self, tool: Any) -> bool:
        """Whether this is a valid tool. A missing type of the arguments' schema means `object`."""
        problem = _problem(tool)
        if problem is not None:
            name = str(tool.get("name") if isinstance(tool, dict) else tool)[:MAX_LOGGED_NAME_CHARACTERS]
            if name not in self._logged and len(self._logged) < MAX_LOGGED_TOOLS:
                self._logged.add(name)
                log.warning("mcp_tool_rejected", server=self._server, tool=name, problem=problem)
        return problem is None


def _problem(tool: Any) -> str | None:
    if not isinstance(tool, dict) or not isinstance(tool.get("inputSchema"), dict):
        return "The tool has no schema of its arguments."
    # Results are not checked against a schema.
    tool.pop("outputSchema", None)
    if tool["inputSchema"].setdefault("type", "object") != "object":
        return "The arguments are not an object."
    try:
        types.Tool.model_validate(tool, by_name=False)
    except ValidationError:
        return "The definition of the tool is invalid."
    return None
