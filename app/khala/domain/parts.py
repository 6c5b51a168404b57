"""The parts of a run: append-only facts, keyed by (run id, seq), from which every answer is folded."""

import re
from datetime import datetime
from typing import Any, TypeAlias
from uuid import UUID

import msgspec

MAX_INLINE_BYTES = 4096
"""Bytes of encoded data that one part may hold."""


class PartStruct(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What a part of one kind says."""


class TextDelta(PartStruct, frozen=True, kw_only=True):
    """More of the answer's text."""

    text: str


class ReasoningDelta(PartStruct, frozen=True, kw_only=True):
    """More of the model's reasoning; stored only where the operator switched it on, and no part of the content."""

    text: str


class BlobRef(PartStruct, frozen=True, kw_only=True):
    """Where something large is kept; `preview` is the beginning of what is text, `sha256` hex digits, `size` bytes."""

    blob_id: UUID
    size: int
    sha256: str
    media_type: str
    preview: str = ""
    name: str | None = None


class ToolCall(PartStruct, frozen=True, kw_only=True):
    """The model asks for a tool. Large arguments are in a blob."""

    tool_call_id: str
    step: int
    tool: str
    args: dict[str, Any] | None = None
    args_blob: BlobRef | None = None


class ToolStatus(PartStruct, frozen=True, kw_only=True):
    """A tool call changed its state: queued, running, blocked or cancelled.

    What is blocked waits for approval until `expires_at`, of just the call that `digest` stands for; who approved may
    have changed the arguments to `args`.
    """

    tool_call_id: str
    state: str
    reason: str | None = None
    digest: str | None = None
    expires_at: datetime | None = None
    args: dict[str, Any] | None = None
    args_blob: BlobRef | None = None


class ToolResult(PartStruct, frozen=True, kw_only=True):
    """A tool call ended; `summary` is one line of at most 120 characters. A large output is in a blob."""

    tool_call_id: str
    ok: bool
    summary: str
    duration_ms: int
    output: Any = None
    blob: BlobRef | None = None


class TokenUsage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Tokens that model calls used; input includes what came from a cache."""

    input_tokens: int = 0
    output_tokens: int = 0

    def __add__(self, other: "TokenUsage") -> "TokenUsage":
        return TokenUsage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
        )


class Step(PartStruct, frozen=True, kw_only=True):
    """A round of tools begins; `usage` and `cost_usd` are what the run has used until then."""

    step: int
    max_steps: int
    tool_count: int
    usage: TokenUsage | None = None
    cost_usd: str | None = None


class Notice(PartStruct, frozen=True, kw_only=True):
    """Something a reader should know: a model was switched, a call retried, a run resumed."""

    code: str
    message: str


class Compaction(PartStruct, frozen=True, kw_only=True):
    """Older turns were summarised, because a model reads only so much.

    For the model the summary stands in place of all messages up to `message_id`, and of the answer's own steps up to
    `step`.
    """

    summary: str
    message_id: UUID | None = None
    step: int = 0


class RunFailure(PartStruct, frozen=True, kw_only=True):
    """Why the run failed; a `finish` with reason `error` follows in the same commit."""

    code: str
    message: str


class Finish(PartStruct, frozen=True, kw_only=True):
    """How a run ended. Exactly one per run, its last part. Times are milliseconds, cost is a decimal string in USD."""

    reason: str
    usage: TokenUsage
    cost_usd: str | None = None
    model: str | None = None
    provider: str | None = None
    time_to_first_token_ms: int | None = None
    total_ms: int | None = None
    witness: str | None = None
    """The hash of the run's last receipt, which stands for all of them: see `khala.domain.receipts`."""


PartData: TypeAlias = (
    TextDelta | ReasoningDelta | ToolCall | ToolStatus | ToolResult | Step | Notice | Compaction | RunFailure | Finish
)

KINDS: dict[str, type[PartData]] = {
    "text-delta": TextDelta,
    "reasoning-delta": ReasoningDelta,
    "tool-call": ToolCall,
    "tool-status": ToolStatus,
    "tool-result": ToolResult,
    "step": Step,
    "notice": Notice,
    "compaction": Compaction,
    "error": RunFailure,
    "finish": Finish,
}
KIND_OF: dict[type[PartData], str] = {kind: name for name, kind in KINDS.items()}


class Part(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One part as it is stored and as it travels; `data` stays encoded until somebody has to look inside."""

    run_id: UUID
    message_id: UUID
    seq: int
    kind: str
    data: msgspec.Raw
    created_at: datetime

    def read(self) -> PartData | None:
        """The typed data, or None for a kind this version does not know."""
        return read(self.kind, self.data)


def read(kind: str, data: bytes | msgspec.Raw) -> PartData | None:
    """The typed data of a stored part, or None for a kind this version does not know."""
    known = KINDS.get(kind)
    return None if known is None else msgspec.json.decode(data, type=known)


def encode(data: PartData) -> tuple[str, str]:
    """A part's kind and its data as JSON text, ready to be stored."""
    return KIND_OF[type(data)], json_text(data)


def json_text(value: Any) -> str:
    """The value as JSON that Postgres can store: it takes no NUL, not even an escaped one."""
    text = msgspec.json.encode(value).decode()
    if "\\u0000" not in text:
        return text
    # A backslash that is itself escaped, and only looks like the beginning of a NUL, stays.
    return re.sub(r"(\\\\)|\\u0000", lambda found: found[1] or "\\ufffd", text)
