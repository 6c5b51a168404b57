"""The fields that Khala reads of a chunk of a streamed chat completion. All are optional: servers omit some."""

from typing import Any

import msgspec


class FunctionPiece(msgspec.Struct):
    """A piece of a call: its name, and of its arguments the next characters, or all of them as an object."""

    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class CallPiece(msgspec.Struct):
    """A piece of the tool call with this index."""

    index: int | None = None
    id: str | None = None
    function: FunctionPiece | None = None


class ContentPiece(msgspec.Struct):
    """A part of the text where a server sends it as a list; other parts have no `text`."""

    text: str | None = None


class ChunkDelta(msgspec.Struct):
    """The addition of a chunk to the answer. OpenAI's protocol has no field for reasoning; servers use these two."""

    content: str | list[ContentPiece] | None = None
    reasoning: Any = None
    reasoning_content: Any = None
    refusal: str | None = None
    tool_calls: list[CallPiece] | None = None


class Choice(msgspec.Struct):
    """One answer of those that were asked for; we ask for one."""

    delta: ChunkDelta | None = None
    finish_reason: str | None = None


class Counts(msgspec.Struct):
    """Tokens; the input's include what was cached, the output's the reasoning."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class Chunk(msgspec.Struct):
    """One event of the stream."""

    choices: list[Choice] | None = None
    usage: Counts | None = None
    error: Any = None


decode = msgspec.json.Decoder(Chunk).decode
"""A chunk of its JSON. Raises `msgspec.DecodeError`."""
