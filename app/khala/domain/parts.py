"""The parts of a run: append-only facts, keyed by (run id, seq). An answer's content is their fold."""

import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Literal, TypeAlias
from uuid import UUID

import msgspec

MAX_INLINE_BYTES = 4096
"""Bytes of encoded data in one part."""
HANDED_OVER = "Handed to the caller."
"""The summary of the result of a call that the client executes."""


class PartStruct(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The data of a part, by its kind."""


class TextDelta(PartStruct, frozen=True, kw_only=True):
    """Text to append to the answer."""

    text: str


class ReasoningDelta(PartStruct, frozen=True, kw_only=True):
    """Text of the model's reasoning. It is stored only if the operator enables that, and is no part of the content."""

    text: str


class LikelyToken(PartStruct, frozen=True, kw_only=True):
    """A token that the model considered, and the natural logarithm of its probability."""

    token: str
    logprob: float


class TokenLogprob(PartStruct, frozen=True, kw_only=True):
    """A token of the answer, and the most likely tokens at its place. `bytes` are those of its UTF-8, if known."""

    token: str
    logprob: float
    bytes: tuple[int, ...] | None = None
    top: tuple[LikelyToken, ...] = ()


class Logprobs(PartStruct, frozen=True, kw_only=True):
    """The probabilities of the next tokens of the reply that has just ended. They are no part of the content."""

    tokens: tuple[TokenLogprob, ...]


class BlobRef(PartStruct, frozen=True, kw_only=True):
    """A reference to a blob. `size` is bytes, `sha256` hex digits, and `preview` the beginning of a text."""

    blob_id: UUID
    size: int
    sha256: str
    media_type: str
    preview: str = ""
    name: str | None = None


class ToolCall(PartStruct, frozen=True, kw_only=True):
    """The model calls a tool. Large arguments are in a blob."""

    tool_call_id: str
    step: int
    tool: str
    args: dict[str, Any] | None = None
    args_blob: BlobRef | None = None


class ToolStatus(PartStruct, frozen=True, kw_only=True):
    """A tool call changes its state: queued, running, blocked or cancelled.

    A blocked call waits until `expires_at` for the approval of exactly the call with this `digest`. The approver may
    have replaced the arguments by `args`.
    """

    tool_call_id: str
    state: str
    reason: str | None = None
    digest: str | None = None
    expires_at: datetime | None = None
    args: dict[str, Any] | None = None
    args_blob: BlobRef | None = None


class ToolResult(PartStruct, frozen=True, kw_only=True):
    """A tool call ends. `summary` is one line of at most 120 characters. A large output is in a blob."""

    tool_call_id: str
    ok: bool
    summary: str
    duration_ms: int
    output: Any = None
    blob: BlobRef | None = None


class TokenUsage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The tokens of model calls. Input includes cached tokens."""

    input_tokens: int = 0
    output_tokens: int = 0

    def __add__(self, other: "TokenUsage") -> "TokenUsage":
        return TokenUsage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
        )


class Step(PartStruct, frozen=True, kw_only=True):
    """A step begins. `usage` and `cost_usd` are the run's totals so far."""

    step: int
    max_steps: int
    tool_count: int
    usage: TokenUsage | None = None
    cost_usd: str | None = None


class Notice(PartStruct, frozen=True, kw_only=True):
    """A notice for readers: a model was switched, a call retried, or a run resumed."""

    code: str
    message: str
    until: datetime | None = None
    """The time until which the run waits, if it does."""


class Compaction(PartStruct, frozen=True, kw_only=True):
    """Older turns were summarised to fit the model's context.

    For the model, the summary replaces all messages up to `message_id`, and the answer's own steps up to `step`.
    """

    summary: str
    message_id: UUID | None = None
    step: int = 0


class RecalledMemory(PartStruct, frozen=True, kw_only=True):
    """A memory that the model was told. `score` is from 0 to 1. Of a long text, it has the beginning."""

    id: UUID
    text: str
    score: float


class MemoryRecall(PartStruct, frozen=True, kw_only=True):
    """The memories that fit the question, the best first. They are no part of the content."""

    memories: tuple[RecalledMemory, ...]


class LikelyAgent(PartStruct, frozen=True, kw_only=True):
    """An agent, and the probability that it is the right one for a task."""

    agent: str
    confidence: float


RelevanceBasis: TypeAlias = Literal["words", "meaning"]
"""What the relevance of a tool or an agent follows from: its words alone, or also its meaning."""


class Route(PartStruct, frozen=True, kw_only=True):
    """The agent that the server chose for the run, `default` if it chose none. It is no part of the content.

    `confidence` is the probability that the choice is right. Of the alternatives, a part names only built-in agents.
    `by`: whether the meaning of the task counted, or only its words. Parts of earlier versions do not say it.
    """

    agent: str
    confidence: float
    alternatives: tuple[LikelyAgent, ...]
    why: str
    by: RelevanceBasis | None = None


class RunFailure(PartStruct, frozen=True, kw_only=True):
    """The error of a failed run. A `finish` with reason `error` follows in the same commit.

    `cause`: why a provider `refused` a request, as far as that is known. `retry_after`: the
    seconds that a provider or a command asked to wait.
    """

    code: str
    message: str
    cause: str | None = None
    retry_after: float | None = None


class Finish(PartStruct, frozen=True, kw_only=True):
    """The end of a run: exactly one, as its last part. Times are milliseconds, cost is a decimal string in USD."""

    reason: str
    usage: TokenUsage
    cost_usd: str | None = None
    model: str | None = None
    provider: str | None = None
    time_to_first_token_ms: int | None = None
    total_ms: int | None = None
    memories: int | None = None
    """The number of memories that the model was told, absent for none."""
    cached_tokens: int | None = None
    """Tokens of the input that providers read from a cache, as far as they report it; absent for none."""
    reasoning_tokens: int | None = None
    """Tokens of the output that are reasoning, as far as providers report it; absent for none."""
    reasoning_ms: int | None = None
    """How long the model reasoned, if its reasoning is stored; absent for none."""
    witness: str | None = None
    """The hash of the run's last receipt, which covers all of them: see `khala.domain.receipts`."""


PartData: TypeAlias = (
    TextDelta
    | ReasoningDelta
    | Logprobs
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
)

KINDS: dict[str, type[PartData]] = {
    "text-delta": TextDelta,
    "reasoning-delta": ReasoningDelta,
    "logprobs": Logprobs,
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
KIND_OF: dict[type[PartData], str] = {kind: name for name, kind in KINDS.items()}
_DECODERS: dict[str, msgspec.json.Decoder[PartData]] = {
    name: msgspec.json.Decoder(kind) for name, kind in KINDS.items()
}


class Part(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One part, as stored and on the wire. `data` stays encoded until it is needed."""

    run_id: UUID
    message_id: UUID
    seq: int
    kind: str
    data: msgspec.Raw
    created_at: datetime

    def read(self) -> PartData | None:
        """The typed data, or None if this version does not know the kind."""
        return read(self.kind, self.data)


def read(kind: str, data: bytes | msgspec.Raw) -> PartData | None:
    """The typed data of a stored part, or None if this version does not know the kind."""
    decoder = _DECODERS.get(kind)
    return None if decoder is None else decoder.decode(data)


def encode(data: PartData) -> tuple[str, str]:
    """A part's kind, and its data as JSON text to store."""
    return KIND_OF[type(data)], json_text(data)


def json_text(value: Any) -> str:
    """The value as JSON without NUL, which Postgres can't store even if it is escaped."""
    text = msgspec.json.encode(value).decode()
    if "\\u0000" not in text:
        return text
    # An escaped backslash before `u0000` is not an escaped NUL, and stays.
    return re.sub(r"(\\\\)|\\u0000", lambda match: match[1] or "\\ufffd", text)


def without_failure_text(parts: Sequence[Part]) -> Iterator[tuple[Part, PartData]]:
    """Yield each part of a known kind with its data, without text that repeats the failure after it.

    A failure is also stored as text for people. Clients of other protocols get it once, as an error.
    """
    if len(parts) == 1:  # As most commits have.
        if (data := parts[0].read()) is not None:
            yield parts[0], data
        return
    known = [(part, data) for part in parts if (data := part.read()) is not None]
    for index, (part, data) in enumerate(known):
        following = known[index + 1][1] if index + 1 < len(known) else None
        if isinstance(data, TextDelta) and isinstance(following, RunFailure) and data.text.endswith(following.message):
            rest = data.text.removesuffix(following.message).removesuffix("\n\n")
            yield part, TextDelta(text=rest)
        else:
            yield part, data
