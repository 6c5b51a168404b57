"""The fields that Khala reads of the events of a streamed message. All are optional: event types differ."""

from typing import Any

import msgspec


class MessageUsage(msgspec.Struct):
    """Token counts. Input excludes the tokens that were written to the cache or read from it."""

    input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    output_tokens: int | None = None


class StreamedMessage(msgspec.Struct):
    """The message of `message_start`, which is empty but for its usage."""

    usage: MessageUsage | None = None


class ContentBlock(msgspec.Struct):
    """The block that `content_block_start` begins: text, thinking, or a tool call."""

    type: str = ""
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    text: str = ""
    thinking: str = ""


class BlockDelta(msgspec.Struct):
    """The addition of `content_block_delta` to a block, or the stop reason of `message_delta`."""

    type: str = ""
    text: str = ""
    thinking: str = ""
    partial_json: str = ""
    stop_reason: str | None = None


class MessageEvent(msgspec.Struct):
    """One event of the stream."""

    type: str
    index: int = 0
    message: StreamedMessage | None = None
    content_block: ContentBlock | None = None
    delta: BlockDelta | None = None
    usage: MessageUsage | None = None
    error: Any = None


decode = msgspec.json.Decoder(MessageEvent).decode
"""Decode an event from JSON. Raises `msgspec.DecodeError`."""
