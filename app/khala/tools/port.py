"""The one port to a tool: arguments go in, a result comes out, and what is large goes to a sink on the way."""

from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from khala.domain.tools import ToolActor, ToolSpec


class Sink(Protocol):
    """Where a tool writes output of any size; what does not fit into a part becomes a blob."""

    async def write(self, data: bytes) -> None:
        """More output. Raises `PayloadTooLarge` past the most that one call may put out."""
        ...


class CallContext(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a tool.

    `idempotency_key` is the same whenever this call is tried, and no other call's. `progress` tells whoever watches how
    far it is, in a few words.
    """

    id: str
    idempotency_key: str
    actor: ToolActor
    sink: Sink
    progress: Callable[[str], None] = lambda _: None


class CallResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a call came to.

    `output` is text or JSON; None where it was written to the sink, as bytes of `media_type`. `summary` is what a
    person reads on one line, by default the beginning of the output.
    """

    ok: bool = True
    output: Any = None
    media_type: str = "text/plain; charset=utf-8"
    summary: str | None = None
    code: str | None = None
    """Of a failure: see `ToolError.code`."""


class ToolError(Exception):
    """A call failed in a way that the model should hear of; the message is for it and for the person who watches."""

    def __init__(self, message: str, *, code: str = "failed") -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        """`failed`, `bad_arguments`, `forbidden`, `not_found`, `timeout`, `too_large`, `unavailable` or `unknown`."""


class Tool(Protocol):
    """Something an agent can do. Cancelling the task that runs it ends all that it began."""

    spec: ToolSpec

    async def run(self, args: dict[str, Any], call: CallContext) -> CallResult:
        """Do it. Arguments fit the schema. Raises `ToolError`."""
        ...
