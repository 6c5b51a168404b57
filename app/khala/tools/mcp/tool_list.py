"""What a server says, without those of its tools that are none: the SDK would refuse the whole list for one of them."""

from types import TracebackType
from typing import Any, Self

import mcp_types as types
import structlog
from mcp.shared._stream_protocols import ReadStream
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCResponse
from pydantic import ValidationError

log = structlog.get_logger()

LONGEST_NAME = 100


class ToolListFilter:
    """A stream of a server's messages."""

    def __init__(self, stream: ReadStream[SessionMessage | Exception], server: str) -> None:
        self._stream = stream
        self._server = server
        self._logged: set[str] = set()

    @property
    def last_context(self) -> Any:
        """The sender's context, where the stream has it."""
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> SessionMessage | Exception:
        """The next message."""
        return self._looked_through(await self._stream.receive())

    async def aclose(self) -> None:
        """Close the stream."""
        await self._stream.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        return self._looked_through(await self._stream.__anext__())

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._stream.__aexit__(kind, error, trace)

    def _looked_through(self, message: SessionMessage | Exception) -> SessionMessage | Exception:
        if isinstance(message, SessionMessage) and isinstance(message.message, JSONRPCResponse):
            result = message.message.result
            if isinstance(result.get("tools"), list) and "content" not in result:
                result["tools"] = [tool for tool in result["tools"] if self._takes(tool)]
        return message

    def _takes(self, tool: Any) -> bool:
        """Whether it is a tool; what says nothing of the type of its arguments means an object."""
        problem = _problem(tool)
        if problem is not None:
            name = str(tool.get("name") if isinstance(tool, dict) else tool)[:LONGEST_NAME]
            if name not in self._logged and len(self._logged) < 1000:
                self._logged.add(name)
                log.warning("mcp_tool_left_out", server=self._server, tool=name, problem=problem)
        return problem is None


def _problem(tool: Any) -> str | None:
    if not isinstance(tool, dict) or not isinstance(tool.get("inputSchema"), dict):
        return "It has no schema."
    # What results look like is checked by nobody here.
    tool.pop("outputSchema", None)
    if tool["inputSchema"].setdefault("type", "object") != "object":
        return "Its arguments are no object."
    try:
        types.Tool.model_validate(tool, by_name=False)
    except ValidationError:
        return "It is not as a tool should be."
    return None
