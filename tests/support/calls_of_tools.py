"""Calls of tools without a run around them."""

from typing import Any
from uuid import UUID

import msgspec

from khala.domain import ids
from khala.domain.errors import PayloadTooLarge
from khala.domain.tools import ToolActor
from khala.tools.invocation import invoke
from khala.tools.port import CallContext, CallResult, Tool


class Kept:
    """A sink that keeps all that is written to it, up to a limit."""

    def __init__(self, most: int = 128 << 20) -> None:
        self.content = bytearray()
        self.most = most

    async def write(self, data: bytes) -> None:
        if len(self.content) + len(data) > self.most:
            raise PayloadTooLarge("That is too much.")
        self.content += data


class Said(msgspec.Struct, frozen=True):
    """What a call came to, with what is in its sink."""

    result: CallResult
    content: bytes

    @property
    def ok(self) -> bool:
        return self.result.ok

    @property
    def text(self) -> str:
        """What it said, wherever."""
        output = self.result.output
        return self.content.decode() if output is None else str(output)

    @property
    def json(self) -> Any:
        """What it said, as JSON."""
        return msgspec.json.decode(self.content) if self.result.output is None else self.result.output


def user(user_id: UUID) -> ToolActor:
    """Somebody with an account."""
    return ToolActor(owner_id=user_id, user_id=user_id)


def guest(thread_id: UUID) -> ToolActor:
    """Somebody without one, in a thread."""
    return ToolActor(owner_id=thread_id, thread_id=thread_id)


async def call(tool: Tool, actor: ToolActor, /, *, key: str | None = None, **args: Any) -> Said:
    """Call it; a key of its own unless one is given."""
    sink = Kept()
    made = CallContext(id="call", idempotency_key=key or str(ids.new()), actor=actor, sink=sink)
    return Said(await invoke(tool, args, made), bytes(sink.content))
