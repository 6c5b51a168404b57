"""The blocks of a message's content, and the parts of a run, of which the content is the fold."""

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, TypeAlias, TypeVar
from uuid import UUID

import msgspec

from khala_client.wire import WireStruct, decode

Kind = TypeVar("Kind", bound=msgspec.Struct)


class BlobRef(WireStruct, frozen=True, kw_only=True):
    """A reference to a file or a large output. `size` is bytes, `sha256` hex digits, `preview` the beginning."""

    blob_id: UUID
    size: int
    sha256: str
    media_type: str
    preview: str = ""
    name: str | None = None


class Block:
    """Base of the blocks of a content. Blocks of later servers are an `UnknownBlock`."""

    __slots__ = ()

    @staticmethod
    def from_plain(value: Any) -> "Block":
        """The block of a decoded JSON object."""
        name = value.get("type") if isinstance(value, dict) else None
        if not isinstance(name, str):
            raise ValueError("A block is an object with a type.")  # noqa: TRY004 - msgspec reports it with its place
        if name in BLOCKS:
            return msgspec.convert(value, BLOCKS[name])
        return UnknownBlock(value)


class TextBlock(WireStruct, Block, frozen=True, kw_only=True, tag="text", omit_defaults=False):
    """Consecutive text."""

    text: str


class NoticeBlock(WireStruct, Block, frozen=True, kw_only=True, tag="notice"):
    """A notice at its place, such as `model_switched`, `resumed` or `format_repair`.

    With `rate_limited`, the run waits for the model until `until`.
    """

    code: str
    message: str
    until: datetime | None = None


class ToolBlock(WireStruct, Block, frozen=True, kw_only=True, tag="tool"):
    """A tool call and its state: queued, running, completed, failed, blocked or cancelled.

    A blocked call waits for approval until `expires_at`. `summary` is one line; a large output is in `blob`.
    """

    tool_call_id: str
    tool: str
    state: str
    step: int = 0
    args: dict[str, Any] | None = None
    args_blob: BlobRef | None = None
    reason: str | None = None
    digest: str | None = None
    expires_at: datetime | None = None
    summary: str | None = None
    output: Any = None
    blob: BlobRef | None = None
    duration_ms: int | None = None


class CompactionBlock(WireStruct, Block, frozen=True, kw_only=True, tag="compaction"):
    """A summary that replaces older turns for the model."""

    summary: str
    message_id: UUID | None = None
    step: int = 0


class FileBlock(WireStruct, Block, frozen=True, kw_only=True, tag="file"):
    """A file that is attached to a message."""

    blob: BlobRef


class DataBlock(WireStruct, Block, frozen=True, kw_only=True, tag="data", omit_defaults=False):
    """Data of an appended message, for clients."""

    name: str
    data: Any


class UnknownBlock(Block):
    """A block of a type that this version does not know. `value` is the whole JSON object."""

    __slots__ = ("value",)

    def __init__(self, value: Mapping[str, Any]) -> None:
        self.value = value

    @property
    def type(self) -> str:
        """The type of the block."""
        return str(self.value["type"])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UnknownBlock) and self.value == other.value

    def __hash__(self) -> int:
        return hash(self.type)

    def __repr__(self) -> str:
        return f"UnknownBlock({self.value!r})"

    def to_plain(self) -> Mapping[str, Any]:
        """The block as it is on the wire."""
        return self.value


BLOCKS: dict[str, type[TextBlock | NoticeBlock | ToolBlock | CompactionBlock | FileBlock | DataBlock]] = {
    "text": TextBlock,
    "notice": NoticeBlock,
    "tool": ToolBlock,
    "compaction": CompactionBlock,
    "file": FileBlock,
    "data": DataBlock,
}
Content: TypeAlias = tuple[Block, ...]


class TextDelta(WireStruct, frozen=True, kw_only=True):
    """Text to append to the answer."""

    text: str


class ReasoningDelta(WireStruct, frozen=True, kw_only=True):
    """Text of the model's reasoning, no part of the content. Only where the operator stores it."""

    text: str


class ToolCall(WireStruct, frozen=True, kw_only=True):
    """The model calls a tool. Large arguments are in a blob."""

    tool_call_id: str
    tool: str
    step: int = 0
    args: dict[str, Any] | None = None
    args_blob: BlobRef | None = None


class ToolStatus(WireStruct, frozen=True, kw_only=True):
    """A tool call is running, blocked or cancelled. A blocked one waits until `expires_at` for its approval."""

    tool_call_id: str
    state: str
    reason: str | None = None
    digest: str | None = None
    expires_at: datetime | None = None
    args: dict[str, Any] | None = None
    args_blob: BlobRef | None = None


class ToolResult(WireStruct, frozen=True, kw_only=True):
    """A tool call ends. `summary` is one line of at most 120 characters. A large output is in a blob."""

    tool_call_id: str
    ok: bool
    summary: str = ""
    duration_ms: int = 0
    output: Any = None
    blob: BlobRef | None = None


class TokenUsage(WireStruct, frozen=True, kw_only=True):
    """The tokens of model calls. Input includes cached tokens."""

    input_tokens: int = 0
    output_tokens: int = 0


class Step(WireStruct, frozen=True, kw_only=True):
    """A step of tool calls begins. `usage` and `cost_usd` are the run's totals so far."""

    step: int
    max_steps: int
    tool_count: int
    usage: TokenUsage | None = None
    cost_usd: Decimal | None = None


class Notice(WireStruct, frozen=True, kw_only=True):
    """A notice for readers. Codes: see the table of part kinds in the protocol."""

    code: str
    message: str = ""
    until: datetime | None = None


class Compaction(WireStruct, frozen=True, kw_only=True):
    """Older turns were summarised to fit the model's context."""

    summary: str
    message_id: UUID | None = None
    step: int = 0


class RecalledMemory(WireStruct, frozen=True, kw_only=True):
    """A memory that the model was told. `score` is from 0 to 1."""

    id: UUID
    text: str
    score: float


class MemoryRecall(WireStruct, frozen=True, kw_only=True):
    """The memories that the model was told, the best first."""

    memories: tuple[RecalledMemory, ...] = ()


class Route(WireStruct, frozen=True, kw_only=True):
    """The agent that the server chose for the run. `confidence` is the probability that the choice is right."""

    agent: str
    confidence: float
    why: str = ""


class RunFailure(WireStruct, frozen=True, kw_only=True):
    """The error of a failed run; a `Finish` follows. `retry_after` is seconds.

    `cause`: why a provider `refused` a request, if that is known, for example `invalid_key`.
    """

    code: str
    message: str = ""
    cause: str | None = None
    retry_after: float | None = None


class Finish(WireStruct, frozen=True, kw_only=True):
    """The end of a run: exactly one, as its last part. Times are milliseconds.

    `reason` is stop, length, max_steps, no_progress, tool_calls, budget, canceled or error.
    """

    reason: str
    usage: TokenUsage = TokenUsage()
    cost_usd: Decimal | None = None
    model: str | None = None
    provider: str | None = None
    time_to_first_token_ms: int | None = None
    total_ms: int | None = None
    memories: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    reasoning_ms: int | None = None
    witness: str | None = None


class UnknownPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a kind that has no type here, such as `logprobs`, with its data as JSON values."""

    kind: str
    data: Any


PartData: TypeAlias = (
    TextDelta
    | ReasoningDelta
    | ToolCall
    | ToolStatus
    | ToolResult
    | Step
    | Notice
    | Compaction
    | MemoryRecall
    | Route
    | RunFailure
    | Finish
    | UnknownPart
)

PART_KINDS: dict[str, type[PartData]] = {
    "text-delta": TextDelta,
    "reasoning-delta": ReasoningDelta,
    "tool-call": ToolCall,
    "tool-status": ToolStatus,
    "tool-result": ToolResult,
    "step": Step,
    "notice": Notice,
    "compaction": Compaction,
    "memory": MemoryRecall,
    "route": Route,
    "error": RunFailure,
    "finish": Finish,
}


class Part(WireStruct, frozen=True, kw_only=True):
    """One part of a run, keyed by `run_id` and `seq`, which starts at 0 and has no gaps."""

    run_id: UUID
    message_id: UUID
    seq: int
    kind: str
    data: msgspec.Raw
    created_at: datetime

    def read(self) -> PartData:
        """The typed data. Raises `ServerError` if it does not fit its kind."""
        return read_part(self.kind, self.data)


def read_part(kind: str, data: bytes | msgspec.Raw) -> PartData:
    """The typed data of a part."""
    known = PART_KINDS.get(kind)
    return UnknownPart(kind=kind, data=msgspec.json.decode(data)) if known is None else decode(data, known)


def text_of(content: Content) -> str:
    """The text of a content, without text that did not fit the requested format and was written again."""
    return "".join(block.text for block in without_replaced_text(content) if isinstance(block, TextBlock))


def without_replaced_text(content: Content) -> Content:
    """The content without text that did not fit the requested format: the model has written it again."""
    blocks: list[Block] = []
    for block in content:
        if isinstance(block, NoticeBlock) and block.code == "format_repair":
            last_call = next((at for at in reversed(range(len(blocks))) if isinstance(blocks[at], ToolBlock)), -1)
            blocks = [one for at, one in enumerate(blocks) if at <= last_call or not isinstance(one, TextBlock)]
        blocks.append(block)
    return tuple(blocks)
