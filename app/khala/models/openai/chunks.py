"""The fields that Khala reads of a chunk of a streamed chat completion. All are optional: servers omit some."""

from typing import Any

import msgspec

from khala.models.streaming.tool_call_assembly import ToolCallDelta


class ContentPart(msgspec.Struct):
    """An element of content that a server sends as a list. Only elements of text have `text`."""

    text: str | None = None


class ChunkDelta(msgspec.Struct):
    """The addition of a chunk to the answer. OpenAI's protocol has no field for reasoning; servers use these two."""

    content: str | list[ContentPart] | None = None
    reasoning: Any = None
    reasoning_content: Any = None
    refusal: str | None = None
    tool_calls: list[ToolCallDelta] | None = None


class ChunkToken(msgspec.Struct):
    """A token and the logarithm of its probability."""

    token: str
    logprob: float


class ChunkLogprob(ChunkToken):
    """A token of the text, and the most likely ones at its place."""

    bytes: tuple[int, ...] | None = None
    top_logprobs: list[ChunkToken] | None = None


class ChunkLogprobs(msgspec.Struct):
    """The probabilities of a chunk's tokens."""

    content: list[ChunkLogprob] | None = None


class Choice(msgspec.Struct):
    """One of the requested answers; Khala requests one."""

    delta: ChunkDelta | None = None
    finish_reason: str | None = None
    logprobs: ChunkLogprobs | None = None


class TokenDetails(msgspec.Struct):
    """Parts of a token count: cached tokens of the input, or reasoning of the output."""

    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class ChunkUsage(msgspec.Struct):
    """Token counts. Input includes cached tokens, and output includes reasoning."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: TokenDetails | None = None
    completion_tokens_details: TokenDetails | None = None


class Chunk(msgspec.Struct):
    """One event of the stream."""

    choices: list[Choice] | None = None
    usage: ChunkUsage | None = None
    error: Any = None


decode = msgspec.json.Decoder(Chunk).decode
"""Decode a chunk from JSON. Raises `msgspec.DecodeError`."""
