"""Calls of tools outside of a run."""

from typing import Any
from uuid import UUID

import msgspec

from khala.domain import ids
from khala.domain.errors import PayloadTooLarge
from khala.domain.tools import ToolActor
from khala.tools.invocation import invoke
from khala.tools.port import CallContext, CallResult, Tool


class BoundedSink:
    """A sink that stores its content, up to a limit."""

    def __init__(self, max_bytes: int = 128 << 20) -> None:
        self.content = bytearray()
        self.max_bytes = max_bytes

    async def write(self, data: bytes) -> None:
        if len(self.content) + len(data) > self.max_bytes:
            raise PayloadTooLarge("The content is too large.")
        self.content += data


class ToolCallOutput(msgspec.Struct, frozen=True):
    """The result of a call, and the content of its sink."""

    result: CallResult
    content: bytes

    @property
    def ok(self) -> bool:
        return self.result.ok

    @property
    def text(self) -> str:
        """The output as text, from the result or the sink."""
        output = self.result.output
        return self.content.decode() if output is None else str(output)

    @property
    def json(self) -> Any:
        """The output as JSON."""
        return msgspec.json.decode(self.content) if self.result.output is None else self.result.output


def user(user_id: UUID) -> ToolActor:
    """An actor with an account."""
    return ToolActor(owner_id=user_id, user_id=user_id)


def guest(thread_id: UUID) -> ToolActor:
    """An actor without an account, in a thread."""
    return ToolActor(owner_id=thread_id, thread_id=thread_id)


async def call(tool: Tool, actor: ToolActor, /, *, key: str | None = None, **args: Any) -> ToolCallOutput:
    """Call the tool, with a new idempotency key unless one is given."""
    sink = BoundedSink()
    made = CallContext(id="call", idempotency_key=key or str(ids.new()), actor=actor, sink=sink)
    return ToolCallOutput(await invoke(tool, args, made), bytes(sink.content))
