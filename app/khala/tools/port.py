"""The interface of a tool: arguments go in, a result comes out, and large output goes to a sink."""

from collections.abc import Awaitable, Callable
from typing import Any, Literal, Protocol, TypeAlias

import msgspec

from khala.domain.tools import ToolActor, ToolSpec
from khala.models.port import Prompt
from khala.tools.call_clock import CallClock


class Sink(Protocol):
    """Takes output of any size. Output that does not fit into a part becomes a blob."""

    async def write(self, data: bytes) -> None:
        """Add output. Raises `PayloadTooLarge` past the limit of one call."""
        ...


class SampledText(msgspec.Struct, frozen=True, kw_only=True):
    """A model's text for a tool. `truncated`: it has as many tokens as were allowed."""

    text: str
    model: str
    truncated: bool = False


Sampler: TypeAlias = Callable[[Prompt], Awaitable[SampledText]]
"""Calls a model for a tool call, under the budget of its run. Raises `ToolError`."""


class UserQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """A question of a tool to the person for whom it acts: a form with the fields of `schema`, or a page to visit.

    `source` is the server that asks.
    """

    source: str
    message: str
    schema: dict[str, Any] | None = None
    url: str | None = None


class UserAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer. `content` has the fields of an accepted form. `cancel`: nobody has decided."""

    action: Literal["accept", "decline", "cancel"]
    content: dict[str, Any] | None = None


AskUser: TypeAlias = Callable[[UserQuestion], Awaitable[UserAnswer]]
"""Asks the person for whom a tool acts, and waits for the answer for a bounded time. Raises `ToolError`."""


class CallContext(msgspec.Struct, frozen=True, kw_only=True):
    """The context of one call.

    `idempotency_key` is the same for each try of this call, and unique to it. `progress` reports in a few words how far
    the call is. `sample` and `ask` are None for a call that belongs to no run. `clock` has the time until the timeout.
    A call that is not `personal` uses nothing of the folder in which the person keeps the thread.
    """

    id: str
    idempotency_key: str
    actor: ToolActor
    sink: Sink
    progress: Callable[[str], None] = lambda _: None
    sample: Sampler | None = None
    ask: AskUser | None = None
    clock: CallClock | None = None
    personal: bool = True


class ToolFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file in the result of a tool, as an image. `uri` is the address of the resource whose content it is."""

    data: bytes
    media_type: str = "application/octet-stream"
    uri: str | None = None


class CallResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a call.

    `output` is text or JSON; None if the output was written to the sink, as bytes of `media_type`. A result of several
    texts and files has `content` in place of both. `summary` is a line for people; by default it is the beginning of
    the output.
    """

    ok: bool = True
    output: Any = None
    content: tuple[str | ToolFile, ...] = ()
    media_type: str = "text/plain; charset=utf-8"
    summary: str | None = None
    code: str | None = None
    """The code of a failure: see `ToolError.code`."""


class ToolError(Exception):
    """A call failed. The message is for the model and for the people who watch."""

    def __init__(self, message: str, *, code: str = "failed") -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        """`failed`, `bad_arguments`, `forbidden`, `not_found`, `timeout`, `too_large`, `unavailable` or `unknown`."""


class Tool(Protocol):
    """A tool. Cancelling the task that runs it ends everything that it has started."""

    spec: ToolSpec

    async def run(self, args: dict[str, Any], call: CallContext) -> CallResult:
        """Execute a call. The arguments match the schema. Raises `ToolError`."""
        ...
